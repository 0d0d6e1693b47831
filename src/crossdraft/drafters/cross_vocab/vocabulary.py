"""Vocabulary mapping: the bytes of every token id of two tokenizers, and which ids of the two spell the same.

Tokens are compared as bytes, so that `Ġcar` of a byte-level BPE and `▁car` of a sentencepiece model are equal, and half
a character is a token like any other. A token's bytes are derived from its string and then verified by decoding; where
the two disagree, the id is left out.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

from transformers import PreTrainedTokenizerBase

from crossdraft.engine.detokenize import BROKEN
from crossdraft.errors import CrossdraftError

ANCHOR = "a"  # what a token is decoded after: decoders treat the start of a text in their own way
BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True)
class TokenTable:
    """One tokenizer.

    Args:
        token_bytes: for every row of the head the bytes it adds to a text; `None` = none (special, padded, reserved).
        encode: ids of a text that continues another one: no special tokens, no space put in front.
        ids: the id that spells these bytes; of several, the one that is no byte fallback, then the lowest.
        eos: ids that end an answer.
        eos_id: the one of them that the tokenizer itself uses; `None` if there is none.
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
        """The text of a sequence; what has no text adds nothing."""
        return b"".join(self.token_bytes[i] or b"" for i in ids if i < self.width)


@dataclass(frozen=True)
class VocabularyMap:
    """A map between ids of a drafter and a target for the same text. One to one; heads may be padded differently.

    Args:
        to_target: for every drafter id the target id with the same bytes, -1 where there is none.
        to_drafter: the other way round.
        same_ids: equal tokens that have one id, counted from 0 up to the first that do not.
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
        """True if whatever the drafter can write is, id for id, what the target reads: no translation is needed."""
        return self.same_ids == len(self.to_target)


def map_vocabularies(drafter: TokenTable, target: TokenTable) -> VocabularyMap:
    """Pair the ids that spell the same, and the ends of both.

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
    """Count the ids, from 0 on, that either have their equal at the same id or no text that could be drafted."""
    for i, (text, match) in enumerate(zip(drafter.token_bytes, to_target, strict=True)):
        silent = text is None and i not in drafter.eos
        if match != i and not silent:
            return i
    return len(to_target)


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
    decoded = _decoded(tokenizer, list(tokens))
    best: dict[int, bytes] = {}
    for scheme in (_byte_level, _sentencepiece):
        read = {i: token.encode() if i in added else scheme(token) for i, token in tokens.items()}
        right = {i: text for i, text in read.items() if text and _agrees(text, decoded[i])}
        best = max(best, right, key=len)
    token_bytes = tuple(best.get(i) for i in range(width))
    ids: dict[bytes, int] = {}
    for i in sorted(best, key=lambda i: (BYTE_TOKEN.fullmatch(tokens[i]) is not None, i)):
        ids.setdefault(best[i], i)
    known = frozenset(i for i in ends if i < width)
    own: Any = tokenizer.eos_token_id
    end = own if own in known else min(known, default=None)
    return TokenTable(token_bytes, _encoder(tokenizer, token_bytes), ids, known, end)


def token_speller(tokenizer: PreTrainedTokenizerBase) -> Callable[[int], bytes]:
    """A function that says which bytes an id adds to a text; each id is looked up once.

    Only where its bytes are no whole characters does a token's string say which they are: all others are decoded.
    """

    @cache
    def spell(token: int) -> bytes:
        decoded = _decoded(tokenizer, [token])[token]
        if BROKEN not in decoded:
            return decoded.encode()
        piece = str(tokenizer.convert_ids_to_tokens(token))
        found = _sentencepiece(piece) if BYTE_TOKEN.fullmatch(piece) else _byte_level(piece)
        return found if found is not None and _agrees(found, decoded) else decoded.encode()

    return spell


def _decoded(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> dict[int, str]:
    """The text that each id adds, by the tokenizer's own decoder."""
    anchor = _plain(tokenizer, ANCHOR)[-1:]
    rows = [anchor, *([*anchor, i] for i in ids)]
    backend: Any = getattr(tokenizer, "backend_tokenizer", None)  # all rows at once, where there is one
    texts: list[str]
    if backend is not None:
        texts = backend.decode_batch(rows, skip_special_tokens=False)
    else:
        texts = [str(tokenizer.decode(row)) for row in rows]
    start, *texts = texts
    return {i: text.removeprefix(start) for i, text in zip(ids, texts, strict=True)}


def _agrees(text: bytes, decoded: str) -> bool:
    """Bytes that are no whole characters are decoded to replacement marks, and cannot be compared further."""
    try:
        return text.decode() == decoded
    except UnicodeDecodeError:
        return BROKEN in decoded


def _plain(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    ids: Any = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


def _encoder(tokenizer: PreTrainedTokenizerBase, token_bytes: Sequence[bytes | None]) -> Callable[[str], list[int]]:
    def spell(ids: Sequence[int]) -> bytes:
        return b"".join(token_bytes[i] or b"" for i in ids if i < len(token_bytes))

    def encode(text: str) -> list[int]:
        plain = _plain(tokenizer, text)
        if spell(plain) == text.encode():
            return plain
        # Sentencepiece puts a space in front of what it takes for a text's start; after a line break it does not.
        behind = _plain(tokenizer, f"\n{text}")
        breaks = (at for at, i in enumerate(behind) if spell([i]) == b"\n")
        rest = behind[next(breaks, -1) + 1 :]
        return rest if spell(rest) == text.encode() else plain

    return encode


def _byte_level(token: str) -> bytes | None:
    try:
        return bytes(BYTE_OF[mark] for mark in token)
    except KeyError:
        return None


def _sentencepiece(token: str) -> bytes:
    byte = BYTE_TOKEN.fullmatch(token)
    return bytes([int(byte[1], 16)]) if byte else token.replace("▁", " ").encode()


def _byte_marks() -> dict[str, int]:
    """The mark that byte-level vocabularies write for each byte: itself if it prints, else the next from U+0100 on."""
    prints = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = [byte for byte in range(256) if byte not in prints]
    return {chr(byte): byte for byte in prints} | {chr(256 + n): byte for n, byte in enumerate(others)}


BYTE_OF: Mapping[str, int] = _byte_marks()
