r"""Vocabularies of the reference pair, and its prompt in token ids.

Both VLMs share one byte-level BPE whose special tokens take the *last* ids, so that "may be drafted" is one comparison.
The text drafter has a small vocabulary of its own. The prompt is split where the questions about a clip begin:

<s>USER: <video>*400 \n{question} ASSISTANT: {answer}</s>
|---- prefix -------|----------- branch -----------------|
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from crossdraft.errors import CrossdraftError

BOS, EOS, PAD, IMAGE, VIDEO, EVENT = SPECIALS = ("<s>", "</s>", "<pad>", "<image>", "<video>", "<event>")
UNKNOWN = "<unk>"
TEXT_SPECIALS = (UNKNOWN, BOS, EOS, PAD)
TEXT_ALPHABET = "\n" + "".join(map(chr, range(32, 127)))


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """Learn a byte-level BPE of exactly `vocab_size` ids, `SPECIALS` last; encoding adds `<s>` in front.

    Where the texts hold too few merges, the gap before the specials is filled with unused `<unused_i>` ids so
    that both models keep the shape of the recipe.

    Raises:
        CrossdraftError: `vocab_size` is too small for the 256 bytes and the specials.
    """
    ordinary = vocab_size - len(SPECIALS)
    if ordinary < 256:
        raise CrossdraftError(f"A byte-level vocabulary needs at least {256 + len(SPECIALS)} ids, got {vocab_size}.")
    tokenizer = _byte_level(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=ordinary, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.model = _padded(tokenizer, ordinary)
    tokenizer.add_special_tokens(list(SPECIALS))
    _add_bos(tokenizer)
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


def train_text_tokenizer(texts: Iterable[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """Learn the text drafter's byte-level BPE of `vocab_size` ids over ASCII; encoding adds `<s>` in front.

    The road world's texts are ASCII. Rows for the other 160 bytes would be a tenth of the model and never be trained;
    such a byte in a user's question becomes `<unk>`.

    Raises:
        CrossdraftError: the texts hold too few merges.
    """
    tokenizer = _byte_level(models.BPE(unk_token=UNKNOWN))
    splitter = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = {mark for char in TEXT_ALPHABET for mark in splitter.pre_tokenize_str(char)[0][0]}
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(TEXT_SPECIALS),
        initial_alphabet=sorted(alphabet),
        limit_alphabet=len(alphabet),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.get_vocab_size() != vocab_size:
        raise CrossdraftError(
            f"The texts make a vocabulary of {tokenizer.get_vocab_size()} ids, not {vocab_size}; raise "
            "text_drafter.scenes, or lower text_drafter.vocab_size."
        )
    _add_bos(tokenizer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token=UNKNOWN,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=PAD,
        clean_up_tokenization_spaces=False,
        model_max_length=1024,
    )


def _byte_level(model: models.BPE) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _padded(tokenizer: Tokenizer, size: int) -> models.BPE:
    """Fill the learned model up to `size` ids with unused entries."""
    learned = json.loads(tokenizer.to_str())["model"]
    vocab: dict[str, int] = learned["vocab"]
    vocab |= {f"<unused_{i}>": len(vocab) + i for i in range(size - len(vocab))}
    return models.BPE(vocab, [tuple(merge) for merge in learned["merges"]])


def _add_bos(tokenizer: Tokenizer) -> None:
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[(BOS, tokenizer.token_to_id(BOS))]
    )


def load_tokenizer(folder: Path, size: int | None = None) -> PreTrainedTokenizerFast:
    """Read the tokenizer that an earlier stage saved.

    Raises:
        CrossdraftError: the folder holds no tokenizer, or one of another size than the recipe's `size`.
    """
    if not (folder / "tokenizer.json").is_file():
        raise CrossdraftError(f"No tokenizer.json in {folder}; run the stage 'tokenizer' first.")
    tokenizer = PreTrainedTokenizerFast.from_pretrained(str(folder))
    if size is not None and len(tokenizer) != size:
        raise CrossdraftError(
            f"The tokenizer in {folder} has {len(tokenizer)} ids where the recipe asks for {size}; choose another "
            "--out, or remove it and what was trained with it."
        )
    return tokenizer


def token_id(tokenizer: PreTrainedTokenizerFast, token: str) -> int:
    """Id of one token of the vocabulary, such as `</s>`."""
    return cast("int", tokenizer.convert_tokens_to_ids(token))


def token_ids(tokenizer: PreTrainedTokenizerFast, text: str, *, bos: bool = False) -> list[int]:
    """Ids of a text, with `<s>` in front if `bos`."""
    return cast("list[int]", tokenizer(text, add_special_tokens=bos)["input_ids"])


@dataclass(frozen=True, slots=True)
class PromptCodec:
    """Converts prefix and branches to token ids, for one model's placeholder (`<video>` or `<event>`)."""

    tokenizer: PreTrainedTokenizerFast
    placeholder: str

    @property
    def eos_id(self) -> int:
        return cast("int", self.tokenizer.eos_token_id)

    @property
    def pad_id(self) -> int:
        return cast("int", self.tokenizer.pad_token_id)

    def prefix_ids(self) -> list[int]:
        """Ids in front of the visual tokens, `<s>` first."""
        return token_ids(self.tokenizer, f"USER: {self.placeholder}", bos=True)[:-1]

    def question_ids(self, question: str) -> list[int]:
        """Ids between the visual tokens and the answer."""
        return token_ids(self.tokenizer, f"\n{question} ASSISTANT:")

    def answer_ids(self, answer: str, *, whole: bool = True) -> list[int]:
        """Ids of the answer, `</s>` included unless it was cut short."""
        ids = token_ids(self.tokenizer, f" {answer}")
        return [*ids, self.eos_id] if whole else ids

    def text(self, ids: list[int]) -> str:
        """Decode the answer's text: up to `</s>`, stripped."""
        return cast("str", self.tokenizer.decode(ids, skip_special_tokens=True)).strip()
