"""Where two answers part, and how close the call was."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from crossdraft.bench.workload import Item
from crossdraft.engine.conformance import full_forward
from crossdraft.engine.request import Request
from crossdraft.engine.target import Target


@dataclass(frozen=True, slots=True)
class Divergence:
    """An answer that is not the target's own.

    Args:
        seed: of the scene.
        question: that was asked.
        position: index of the first token that differs.
        gap: the target's top logit minus its second there. Rounding that depends on the shape of a pass can flip a
            gap near zero; nothing but a fault explains a wide one.
    """

    seed: int
    question: str
    position: int
    gap: float

    def to_json(self) -> dict[str, object]:
        """Plain values."""
        return {"seed": self.seed, "question": self.question, "position": self.position, "top2_gap": self.gap}


def find_divergence(target: Target, item: Item, expected: Sequence[int], found: Sequence[int]) -> Divergence | None:
    """The first difference between the target's own tokens and another's; None if there is none."""
    if tuple(expected) == tuple(found):
        return None
    position = first_difference(expected, found)
    gap = top2_gap(target, item.request, expected[:position])
    return Divergence(item.seed, item.request.prompt, position, gap)


def first_difference(left: Sequence[int], right: Sequence[int]) -> int:
    """Index of the first token that differs; the shorter length if one begins with the other."""
    pairs = enumerate(zip(left, right, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(left), len(right)))


def top2_gap(target: Target, request: Request, prefix: Sequence[int]) -> float:
    """How far the target's first choice behind an answer's prefix is ahead of its second, in logits."""
    logits = full_forward(target, target.prepare(request), prefix)
    first, second = torch.topk(logits.double(), 2).values.tolist()
    return first - second
