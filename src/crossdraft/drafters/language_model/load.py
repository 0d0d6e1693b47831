"""Loads a causal language model or a video VLM as a drafter."""

from dataclasses import replace
from pathlib import Path

from transformers import AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from crossdraft.checkpoints.files import read_config
from crossdraft.drafters.cross_vocab.assistant import CrossVocabDrafter
from crossdraft.drafters.cross_vocab.drafter import cross_vocab_drafter
from crossdraft.drafters.cross_vocab.vocabulary import TokenTable, map_vocabularies, read_token_table
from crossdraft.drafters.independent import IndependentDrafter
from crossdraft.errors import CrossdraftError
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
from crossdraft.trial import check_class
from crossdraft.video.spec import FrameSpec, PixelBudget
from crossdraft.video_prompt import VideoPrompt

WIDEST, LONGEST = 16, 4096  # tokens of a compiled pass, and of a request that is drafted for by such passes


def _within(prepare: object, pixels: int, folder: Path) -> VideoPrompt:
    """A VLM's preparation of prompts with at most so many pixels of a frame and of an image."""
    sizes = [] if not isinstance(prepare, VideoPrompt) else [prepare.spec, prepare.image_spec]
    made: list[FrameSpec] = []
    for spec in sizes:
        if spec is None or not isinstance(size := spec.size, PixelBudget):
            break
        # The budget may be a whole clip's: a frame's share of it is capped. HF grows the lower bound by a twentieth.
        capped = replace(size, low=min(size.low, pixels * 9 // 10), frame_tokens=max(1, pixels // size.multiple**2))
        made.append(replace(spec, size=capped))
    if not isinstance(prepare, VideoPrompt) or len(made) < 2:
        raise CrossdraftError(f"The drafter in {folder} reads frames of one size; leave out pixels={pixels}.")
    return replace(prepare, spec=made[0], image_spec=made[1])


def load_model_drafter(
    source: str,
    target: TokenTable,
    how: str | None = None,
    device: str | None = None,
    dtype: str | None = None,
    *,
    packed: bool = True,
    quantize: str | None = None,
    compiled: bool = False,
    frames: int | None = None,
    pixels: int | None = None,
) -> IndependentDrafter | CrossVocabDrafter:
    """A causal language model or a video VLM as an independent drafter, of the target's vocabulary or another.

    Args:
        source: `text` of the reference pair, or the folder of a Hugging Face checkpoint (safetensors).
        target: the target's vocabulary.
        how: `slem`, `tli` or `omni`, see `drafters.cross_vocab`; default none where the vocabularies are the same, else
            `slem`.
        device, dtype, packed, quantize: as in `load_drafter`.
        compiled: compile its decode passes, if `Target.compile` takes such a model.
        frames, pixels: frames that a VLM reads of a clip, and most pixels of each and of an image; default: its own.

    Raises:
        CrossdraftError: as `load_target`; the model cannot draft; or it reads no frames, or frames of one size.
    """
    folder, dtype = checked_folder(source, ("text",)), dtype or draft_dtype(device)
    config, tokenizer = read_config(folder), load_tokenizer(folder)
    # Types such as Gemma 3 and Qwen3.5 are listed as causal language models, too.
    sees = "vision_config" in config or config.get("model_type") not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    if sees:
        model = load_target(str(folder), device, dtype, packed=packed, quantize=quantize, num_frames=frames)
        if pixels is not None:
            model = model.reading(_within(model.prepare, pixels, folder))
    elif frames is not None or pixels is not None:
        raise CrossdraftError(
            f"The drafter in {folder} is a text model, which sees nothing; leave out frames and pixels."
        )
    else:
        network = load_network(AutoModelForCausalLM, folder, device, dtype, packed=packed, quantize=quantize)
        decode, eos = token_text(tokenizer), ends_of(network, tokenizer)
        model = text_model(network, TextPrompt(tokenizer), decode, eos, reserved_of(network, tokenizer))
        if source != "text":  # the shipped one, which is right
            check_class(model, {})
    if compiled and model.fast is not None and model.fast.plain:
        model.compile(1, WIDEST, longest=LONGEST)
    own = read_token_table(tokenizer, model.vocab_size, tuple(model.eos), tuple(model.reserved))
    same = bool(set(own.ids) & set(target.ids)) and map_vocabularies(own, target).identity
    if how is None and same:
        banned = [i for i, text in enumerate(target.token_bytes) if text is None and i not in target.eos]
        return IndependentDrafter(model, banned, sees=sees)
    return cross_vocab_drafter(model, own, target, how or "slem", sees=sees)
