"""Tokenizers small enough to be read by eye, of both families."""

from collections.abc import Iterable

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from crossdraft.token_bytes import BYTE_OF

EOS = "</s>"
MARK_OF = {byte: mark for mark, byte in BYTE_OF.items()}


def marks(text: str) -> str:
    """As a byte-level vocabulary writes it: `Ġcar` for ` car`."""
    return "".join(MARK_OF[byte] for byte in text.encode())


def byte_level(*words: str) -> PreTrainedTokenizerFast:
    """All bytes, then every beginning of each word (" car" brings " c", " ca" and " car"), the end last."""
    vocabulary = {mark: byte for byte, mark in MARK_OF.items()}
    merges: list[tuple[str, str]] = []
    for word in map(marks, words):
        for end in range(2, len(word) + 1):
            if word[:end] not in vocabulary:
                vocabulary[word[:end]] = len(vocabulary)
                merges.append((word[: end - 1], word[end - 1]))
    return _wrapped(_bytes_in_and_out(models.BPE(vocabulary, merges)))


def byte_level_from(texts: Iterable[str], size: int) -> PreTrainedTokenizerFast:
    """Learned from texts, as those of real models are."""
    tokenizer = _bytes_in_and_out(models.BPE())
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    return _wrapped(tokenizer)


def sentencepiece(*words: str) -> PreTrainedTokenizerFast:
    """As Llama 2's: a space mark, bytes for what no piece spells, a space put in front of a text."""
    letters = sorted({letter for word in words for letter in word.replace(" ", "▁")} | {"▁", "a"})
    vocabulary = {"<unk>": 0} | {f"<0x{byte:02X}>": byte + 1 for byte in range(256)}
    vocabulary |= {letter: 257 + i for i, letter in enumerate(letters)}
    merges: list[tuple[str, str]] = []
    for word in (word.replace(" ", "▁") for word in words):
        for end in range(2, len(word) + 1):
            if word[:end] not in vocabulary:
                vocabulary[word[:end]] = len(vocabulary)
                merges.append((word[: end - 1], word[end - 1]))
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return _wrapped(tokenizer, unk_token="<unk>")


def _bytes_in_and_out(model: models.BPE) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _wrapped(tokenizer: Tokenizer, **special: str) -> PreTrainedTokenizerFast:
    tokenizer.add_special_tokens([EOS])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=EOS, clean_up_tokenization_spaces=False, **special
    )
