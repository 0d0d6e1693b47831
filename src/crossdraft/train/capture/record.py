r"""What is captured of a clip: the piece of the prompt that shows it, and every answer about it.

    place        0     1    …   s-1     s      s+1   …   T-1
    tokens       \n   What  …   :       A      red   …   </s>        s = `start`
    hidden       f0    f1   …   f(s-1)  f(s)   …        (none)
    top                         t(s)    t(s+1) …                      what the answer's tokens were chosen from

The last token was never fed to the target, so there is no feature at it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from crossdraft.errors import CrossdraftError

ID_BYTES, FEATURE_BYTES = 4, 2  # int32; bfloat16
OFFSET_BYTES = 8


@dataclass(frozen=True)
class Wanted:
    """What is kept of each answer.

    Args:
        layers: of the text behind the first piece; see `capture.layers`.
        visual_layers: of the first piece, which ends with the last visual token.
        top_k: how many of the target's likeliest tokens at every place of an answer.
        max_new_tokens: the longest answer.
    """

    layers: tuple[int, ...]
    visual_layers: tuple[int, ...] = ()
    top_k: int = 8
    max_new_tokens: int = 96

    def __post_init__(self) -> None:
        for name, value in (
            ("layers", len(self.layers)),
            ("top-k", self.top_k),
            ("max-new-tokens", self.max_new_tokens),
        ):
            if value < 1:
                raise CrossdraftError(f"--{name} asks for {value}; a capture needs at least 1.")


@dataclass(frozen=True)
class Told:
    """One answer.

    Args:
        tokens: [T] ids of the prompt's last piece, then of the answer.
        start: place of the answer's first token.
        hidden: layer -> [T - 1, H] bfloat16.
        top_ids, top_logits: [A, k], A = T - start: what each token of the answer was chosen from, likeliest first.
    """

    tokens: Tensor
    start: int
    hidden: Mapping[int, Tensor]
    top_ids: Tensor
    top_logits: Tensor


@dataclass(frozen=True)
class ClipRecord:
    """A prompt's first piece, and all that was told behind it.

    Args:
        visual_ids: [N] ids; N = 0 where the prompt has nothing visual.
        visual: layer -> [N, H] bfloat16.
    """

    visual_ids: Tensor
    told: tuple[Told, ...]
    visual: Mapping[int, Tensor] = field(default_factory=dict)


def piece_bytes(tokens: int, hidden_size: int, wanted: Wanted) -> int:
    """What a first piece takes on disk."""
    return OFFSET_BYTES + tokens * (ID_BYTES + FEATURE_BYTES * hidden_size * len(wanted.visual_layers))


def answer_bytes(text: int, answer: int, hidden_size: int, wanted: Wanted) -> int:
    """What an answer of `answer` tokens behind `text` tokens of the prompt takes on disk."""
    tokens = text + answer
    features = (tokens - 1) * FEATURE_BYTES * hidden_size * len(wanted.layers)
    return 2 * OFFSET_BYTES + 2 * ID_BYTES + tokens * ID_BYTES + features + answer * wanted.top_k * 2 * ID_BYTES


def merged(records: Iterable[ClipRecord]) -> list[ClipRecord]:
    """The records of one clip in order, neighbours with the same first piece as one."""
    found: list[ClipRecord] = []
    for record in records:
        if found and torch.equal(found[-1].visual_ids, record.visual_ids):
            found[-1] = replace(found[-1], told=found[-1].told + record.told)
        else:
            found.append(record)
    return found
