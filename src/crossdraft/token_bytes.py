"""The bytes that a token id adds to a text, for byte-level and sentencepiece vocabularies."""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from transformers import PreTrainedTokenizerBase

from crossdraft.engine.detokenize import BROKEN

BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
ANCHOR = "a"  # what a token is decoded after: decoders treat the start of a text in their own way


def token_speller(tokenizer: PreTrainedTokenizerBase) -> Callable[[int], bytes]:
    """Make a function that returns the bytes that an id adds to a text; each id is looked up once.

    A token's string is read for its bytes only if these are no whole characters; all other tokens are decoded.
    """

    @cache
    def spell(token: int) -> bytes:
        decoded = decoded_texts(tokenizer, [token])[token]
        if BROKEN not in decoded:
            return decoded.encode()
        piece = str(tokenizer.convert_ids_to_tokens(token))
        found = sentencepiece(piece) if BYTE_TOKEN.fullmatch(piece) else byte_level(piece)
        return found if found is not None and agrees(found, decoded) else decoded.encode()

    return spell


def decoded_texts(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> dict[int, str]:
    """The text that each id adds, by the tokenizer's own decoder."""
    anchor = plain_ids(tokenizer, ANCHOR)[-1:]
    rows = [anchor, *([*anchor, i] for i in ids)]
    backend: Any = getattr(tokenizer, "backend_tokenizer", None)  # all rows at once, where there is one
    texts: list[str]
    if backend is not None:
        texts = backend.decode_batch(rows, skip_special_tokens=False)
    else:
        texts = [str(tokenizer.decode(row)) for row in rows]
    start, *texts = texts
    return {i: text.removeprefix(start) for i, text in zip(ids, texts, strict=True)}


def agrees(text: bytes, decoded: str) -> bool:
    """True if bytes match their decoded text; bytes that are no whole characters match any replacement mark."""
    try:
        return text.decode() == decoded
    except UnicodeDecodeError:
        return BROKEN in decoded


def plain_ids(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """The ids of a text, without the special tokens that a tokenizer adds."""
    ids: Any = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


def byte_level(token: str) -> bytes | None:
    """The bytes of a token of a byte-level vocabulary; `None` if the token is of no such vocabulary."""
    try:
        return bytes(BYTE_OF[mark] for mark in token)
    except KeyError:
        return None


def sentencepiece(token: str) -> bytes:
    """The bytes of a token of a sentencepiece vocabulary."""
    byte = BYTE_TOKEN.fullmatch(token)
    return bytes([int(byte[1], 16)]) if byte else token.replace("▁", " ").encode()


def _byte_marks() -> dict[str, int]:
    """The mark that byte-level vocabularies write for each byte: itself if it prints, else the next from U+0100 on."""
    prints = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = [byte for byte in range(256) if byte not in prints]
    return {chr(byte): byte for byte in prints} | {chr(256 + n): byte for n, byte in enumerate(others)}


BYTE_OF: Mapping[str, int] = _byte_marks()
