"""Vocabulary mapping: the bytes of every token id of two tokenizers, and the pairs of ids that spell the same.

Tokens are compared as bytes, so that `Ġcar` of a byte-level BPE and `▁car` of a sentencepiece model are equal, and half
a character is a token like any other. A token's bytes are derived from its string and then verified by decoding; where
the two disagree, the id is left out.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from transformers import PreTrainedTokenizerBase

from crossdraft.errors import CrossdraftError
from crossdraft.records import DrafterContext
from crossdraft.token_bytes import BYTE_TOKEN, agrees, byte_level, decoded_texts, plain_ids, sentencepiece


@dataclass(frozen=True)
class TokenTable:
    """One tokenizer.

    Args:
        token_bytes: for every row of the head the bytes it adds to a text; `None` = none (special, padded, reserved).
        encode: ids of a text that continues another one: no special tokens, no space put in front.
        ids: the id of each byte string; of several ids the one that is no byte fallback, then the lowest.
        eos: ids that end an answer.
        eos_id: the end id that the tokenizer itself uses; `None` if there is none.
    """

    token_bytes: tuple[bytes | None, ...]
    encode: Callable[[str], list[int]]
    ids: Mapping[bytes, int]
    eos: frozenset[int] = frozenset()
    eos_id: int | None = None

    @property
    def width(self) -> int:
        """Rows of the head."""
        return len(self.token_bytes)

    def to_bytes(self, ids: Sequence[int]) -> bytes:
        """The bytes of a sequence of ids; ids without text add nothing."""
        return b"".join(self.token_bytes[i] or b"" for i in ids if i < self.width)


@dataclass(frozen=True)
class VocabularyMap:
    """A map between ids of a drafter and a target for the same text. One to one; heads may be padded differently.

    Args:
        to_target: for every drafter id the target id with the same bytes, -1 where there is none.
        to_drafter: for every target id the drafter id with the same bytes, -1 where there is none.
        same_ids: number of ids, from 0 on, before the first whose token differs between the two.
    """

    to_target: tuple[int, ...]
    to_drafter: tuple[int, ...]
    same_ids: int

    @cached_property
    def shared(self) -> int:
        """Number of shared tokens."""
        return sum(match >= 0 for match in self.to_target)

    @property
    def identity(self) -> bool:
        """True if every token that the drafter can write has the same id in the target: no translation is needed."""
        return self.same_ids == len(self.to_target)


def map_vocabularies(drafter: TokenTable, target: TokenTable) -> VocabularyMap:
    """Pair the ids that spell the same, and the end ids of both.

    Raises:
        CrossdraftError: nothing is shared.
    """
    to_target, to_drafter = [-1] * drafter.width, [-1] * target.width
    pairs = [(i, target.ids[text]) for text, i in drafter.ids.items() if text in target.ids]
    if not pairs:
        raise CrossdraftError(
            "The drafter's vocabulary shares no token with the target's; draft with how=slem, which compares texts."
        )
    if drafter.eos_id is not None and target.eos_id is not None:
        pairs.append((drafter.eos_id, target.eos_id))
    for own, other in pairs:
        to_target[own], to_drafter[other] = other, own
    return VocabularyMap(tuple(to_target), tuple(to_drafter), _same_ids(drafter, to_target))


def _same_ids(drafter: TokenTable, to_target: Sequence[int]) -> int:
    """Count the ids, from 0 on, whose token is the target's at the same id, or has no text that could be drafted."""
    for i, (text, match) in enumerate(zip(drafter.token_bytes, to_target, strict=True)):
        silent = text is None and i not in drafter.eos
        if match != i and not silent:
            return i
    return len(to_target)


def target_table(context: DrafterContext) -> TokenTable:
    """The token table of the target that a drafter is made for."""
    return read_token_table(context.read_tokenizer(), context.vocab_size, context.eos, context.banned)


def read_token_table(
    tokenizer: PreTrainedTokenizerBase, width: int, ends: Collection[int] = (), reserved: Collection[int] = ()
) -> TokenTable:
    """Read the text of each of a tokenizer's ids.

    Args:
        tokenizer: byte-level or sentencepiece.
        width: rows of the model's head; it may have more than the tokenizer has ids, or fewer.
        ends: ids that end an answer.
        reserved: ids that stand for no text, beside the tokenizer's special ones.
    """
    silent = {*reserved, *tokenizer.all_special_ids, *ends}
    tokens = {i: token for token, i in tokenizer.get_vocab().items() if i < width and i not in silent}
    vocabulary: Any = tokenizer  # pyright does not see what transformers' tokenizers inherit
    added = {i for i in vocabulary.get_added_vocab().values() if i in tokens}
    decoded = decoded_texts(tokenizer, list(tokens))
    best: dict[int, bytes] = {}
    for scheme in (byte_level, sentencepiece):
        read = {i: token.encode() if i in added else scheme(token) for i, token in tokens.items()}
        right = {i: text for i, text in read.items() if text and agrees(text, decoded[i])}
        best = max(best, right, key=len)
    token_bytes = tuple(best.get(i) for i in range(width))
    ids: dict[bytes, int] = {}
    for i in sorted(best, key=lambda i: (BYTE_TOKEN.fullmatch(tokens[i]) is not None, i)):
        ids.setdefault(best[i], i)
    known = frozenset(i for i in ends if i < width)
    own: Any = tokenizer.eos_token_id
    end = own if own in known else min(known, default=None)
    return TokenTable(token_bytes, _encoder(tokenizer, token_bytes), ids, known, end)


def _encoder(tokenizer: PreTrainedTokenizerBase, token_bytes: Sequence[bytes | None]) -> Callable[[str], list[int]]:
    def spell(ids: Sequence[int]) -> bytes:
        return b"".join(token_bytes[i] or b"" for i in ids if i < len(token_bytes))

    def encode(text: str) -> list[int]:
        plain = plain_ids(tokenizer, text)
        if spell(plain) == text.encode():
            return plain
        # Sentencepiece puts a space in front of what it takes for a text's start; after a line break it does not.
        behind = plain_ids(tokenizer, f"\n{text}")
        breaks = (at for at, i in enumerate(behind) if spell([i]) == b"\n")
        rest = behind[next(breaks, -1) + 1 :]
        return rest if spell(rest) == text.encode() else plain

    return encode
