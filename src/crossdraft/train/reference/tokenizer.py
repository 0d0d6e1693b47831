"""One byte-level BPE for both models, its special tokens last.

Special tokens take the *last* ids, so that "may be drafted" is one comparison: `id < first_special`.
"""

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from crossdraft.errors import CrossdraftError

BOS, EOS, PAD, IMAGE, VIDEO, EVENT = SPECIALS = ("<s>", "</s>", "<pad>", "<image>", "<video>", "<event>")


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """Learn a byte-level BPE of exactly `vocab_size` ids, `SPECIALS` last; encoding adds `<s>` in front.

    Where the texts hold too few merges, the gap before the specials is filled with unused `<unused_i>` ids so
    that both models keep the shape of the recipe.

    Raises:
        CrossdraftError: `vocab_size` cannot hold the 256 bytes and the specials.
    """
    ordinary = vocab_size - len(SPECIALS)
    if ordinary < 256:
        raise CrossdraftError(f"A byte-level vocabulary needs at least {256 + len(SPECIALS)} ids, got {vocab_size}.")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=ordinary, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.model = _padded(tokenizer, ordinary)
    tokenizer.add_special_tokens(list(SPECIALS))
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[(BOS, vocab_size - len(SPECIALS))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=PAD,
        additional_special_tokens=[IMAGE, VIDEO, EVENT],
        clean_up_tokenization_spaces=False,
        padding_side="left",
        model_max_length=1024,
    )


def _padded(tokenizer: Tokenizer, size: int) -> models.BPE:
    """The learned model with `size` ids: entries that no merge makes fill what was not learned."""
    learned = json.loads(tokenizer.to_str())["model"]
    vocab: dict[str, int] = learned["vocab"]
    vocab |= {f"<unused_{i}>": len(vocab) + i for i in range(size - len(vocab))}
    return models.BPE(vocab, [tuple(merge) for merge in learned["merges"]])


def load_tokenizer(folder: str | Path) -> PreTrainedTokenizerFast:
    """Read a saved tokenizer from a local folder.

    Raises:
        CrossdraftError: the folder holds none.
    """
    if not (Path(folder) / "tokenizer.json").is_file():
        raise CrossdraftError(f"No tokenizer.json in {folder}; run the stage 'tokenizer' first.")
    return PreTrainedTokenizerFast.from_pretrained(str(folder))


def first_special(tokenizer: PreTrainedTokenizerFast) -> int:
    """The lowest id that must never be drafted."""
    return int(tokenizer.convert_tokens_to_ids(BOS))
