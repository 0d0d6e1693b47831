"""A step's batch in shares: micro-steps one after the other, and ranks side by side."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from torch import Tensor

from crossdraft.errors import CrossdraftError
from crossdraft.heads.networks.objective import PLACES

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Share:
    """The `index`-th of `of` equal shares of a step's batch."""

    index: int = 0
    of: int = 1

    def take(self, batch: Sequence[Item]) -> Sequence[Item]:
        """The share's part of what the step learns from.

        Example: share 1 of 2 of (a, b, c, d) is (c, d).
        """
        return batch[len(batch) * self.index // self.of : len(batch) * (self.index + 1) // self.of]


WHOLE = Share()

LossOf = Callable[[int, Share], tuple[Tensor, dict[str, float]]]
"""(step, share) -> (loss with a graph, figures for the log). Pure: the same step and share give the same loss."""


@dataclass(frozen=True, slots=True)
class Part:
    """What one share came to: its loss, how much that weighs, its figures."""

    loss: float
    weight: float
    figures: dict[str, float]


def whole(loss_of: Callable[[int], tuple[Tensor, dict[str, float]]]) -> LossOf:
    """The loss of a training that takes each step's batch in one piece.

    Raises:
        CrossdraftError: it is asked for a share.
    """

    def of_share(step: int, share: Share) -> tuple[Tensor, dict[str, float]]:
        if share.of > 1:
            raise CrossdraftError(
                "This training takes a step in one piece; set optim.accumulate to 1 and run it in one process."
            )
        return loss_of(step)

    return of_share


def weight(share: Share, figures: dict[str, float]) -> float:
    """How much a share's mean counts."""
    return 1.0 if share.of == 1 else figures.get(PLACES, 1.0)


def merged(parts: Sequence[Part]) -> tuple[float, dict[str, float]]:
    """Loss and figures of the step that the shares make up: weighted means, and the sum of `places`."""
    figures: dict[str, float] = {}
    for name in dict.fromkeys(name for part in parts for name in part.figures):
        known = [part for part in parts if name in part.figures]
        mean = _mean([part.figures[name] for part in known], [part.weight for part in known])
        figures[name] = sum(part.figures[name] for part in known) if name == PLACES else mean
    return _mean([part.loss for part in parts], [part.weight for part in parts]), figures


def _mean(values: Sequence[float], weights: Sequence[float]) -> float:
    if len(values) == 1:
        return values[0]
    return sum(v * w for v, w in zip(values, weights, strict=True)) / (sum(weights) or 1.0)
