"""Placeholders that a conversation spells in its words: they are text, and no image or clip stands there."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from transformers import PreTrainedTokenizerBase

from crossdraft.errors import CrossdraftError
from crossdraft.messages import VISUAL, Message, Part

UNUSED = range(0xF0000, 0x10FFFE)  # characters that no standard uses


def stand_ins(messages: Sequence[Message], spelt: Collection[str]) -> tuple[tuple[Message, ...], dict[str, str]]:
    """Replace placeholders in a conversation's words by characters that it does not hold.

    A message that shows something keeps them: they may be meant for what it shows, and are refused later.

    Args:
        messages: the conversation.
        spelt: spellings of the model's placeholders.

    Returns:
        The conversation, and for each character the spelling that it stands for.
    """
    words = "".join(message.text for message in messages)
    held = set(words)
    unused = (character for number in UNUSED if (character := chr(number)) not in held)
    found = [one for one in sorted(spelt) if one in words]
    stands = dict(zip(unused, found, strict=False))
    if len(stands) < len(found):
        raise CrossdraftError("The prompt holds every character of Unicode's private planes; leave some out.")
    return tuple(_without(message, stands) for message in messages) if stands else tuple(messages), stands


def _without(message: Message, stands: Mapping[str, str]) -> Message:
    if any(part.kind in VISUAL for part in message.parts):
        return message
    return replace(message, parts=tuple(Part(part.kind, _replaced(part.value, stands)) for part in message.parts))


def _replaced(text: str, stands: Mapping[str, str]) -> str:
    for character, spelling in stands.items():
        text = text.replace(spelling, character)
    return text


def spelling_ids(tokenizer: PreTrainedTokenizerBase, spelling: str) -> list[int]:
    """Ids of a special token's spelling as plain text, without the special token; [] if the tokenizer tells none.

    The tokenizer's own `split_special_tokens` would change it for other threads, too.
    """
    backend: Any = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return []
    split = backend.pre_tokenizer
    words = [] if split is None else [word for word, _ in split.pre_tokenize_str(spelling)]
    pieces = words if "".join(words) == spelling else [spelling]  # some add a space in front
    return [token.id for piece in pieces for token in backend.model.tokenize(piece)]
