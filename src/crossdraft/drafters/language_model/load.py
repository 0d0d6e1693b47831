"""Loads a causal language model or a video VLM as a drafter."""

from transformers import AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from crossdraft.checkpoints.files import read_config
from crossdraft.drafters.cross_vocab.assistant import CrossVocabDrafter
from crossdraft.drafters.cross_vocab.drafter import cross_vocab_drafter
from crossdraft.drafters.cross_vocab.vocabulary import TokenTable, map_vocabularies, read_token_table
from crossdraft.drafters.independent import IndependentDrafter
from crossdraft.load import (
    checked_folder,
    draft_dtype,
    ends_of,
    load_network,
    load_target,
    load_tokenizer,
    reserved_of,
    token_text,
)
from crossdraft.text_model import TextPrompt, text_model


def load_model_drafter(
    source: str,
    target: TokenTable,
    how: str | None = None,
    device: str | None = None,
    dtype: str | None = None,
    *,
    packed: bool = True,
    quantize: str | None = None,
) -> IndependentDrafter | CrossVocabDrafter:
    """A causal language model or a video VLM as an independent drafter, of the target's vocabulary or another.

    Args:
        source: `text` of the reference pair, or the folder of a Hugging Face checkpoint (safetensors).
        target: the target's vocabulary.
        how: `slem`, `tli` or `omni`, see `drafters.cross_vocab`; default none where the vocabularies are the same, else
            `slem`.
        device, dtype, packed, quantize: as in `load_drafter`.

    Raises:
        CrossdraftError: as `load_target`, or the model cannot draft.
    """
    folder, dtype = checked_folder(source, ("text",)), dtype or draft_dtype(device)
    sees = read_config(folder).get("model_type") not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    tokenizer = load_tokenizer(folder)
    if sees:
        model = load_target(str(folder), device, dtype, packed=packed, quantize=quantize)
    else:
        network = load_network(AutoModelForCausalLM, folder, device, dtype, packed=packed, quantize=quantize)
        decode, eos = token_text(tokenizer), ends_of(network, tokenizer)
        model = text_model(network, TextPrompt(tokenizer), decode, eos, reserved_of(network, tokenizer))
    own = read_token_table(tokenizer, model.vocab_size, tuple(model.eos), tuple(model.reserved))
    same = bool(set(own.ids) & set(target.ids)) and map_vocabularies(own, target).identity
    if how is None and same:
        banned = [i for i, text in enumerate(target.token_bytes) if text is None and i not in target.eos]
        return IndependentDrafter(model, banned, sees=sees)
    return cross_vocab_drafter(model, own, target, how or "slem", sees=sees)
