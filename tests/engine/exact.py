"""Exact expectation: run a random procedure once per outcome of its chances, instead of once per draw."""

from collections import defaultdict
from collections.abc import Callable, Hashable
from typing import TypeVar

from torch import Tensor

Outcome = TypeVar("Outcome", bound=Hashable)


class Scripted:
    """A `Chance` whose first decisions are given; the others take their first option and note what they left out."""

    def __init__(self, script: tuple[int, ...]) -> None:
        self.script = script
        self.taken: tuple[int, ...] = ()
        self.probability = 1.0
        self.untaken: list[tuple[int, ...]] = []

    def happens(self, probability: float) -> bool:
        return self._choose({1: min(1.0, probability), 0: 1 - min(1.0, probability)}) == 1

    def draw(self, weights: Tensor) -> int:
        shares = (weights / weights.sum()).tolist()
        return self._choose(dict(enumerate(shares)))

    def _choose(self, shares: dict[int, float]) -> int:
        possible = {option: share for option, share in shares.items() if share > 0}
        index = len(self.taken)
        if index < len(self.script):
            option = self.script[index]
        else:
            option, *others = possible
            self.untaken += [(*self.taken, other) for other in others]
        self.taken += (option,)
        self.probability *= possible[option]
        return option


def distribution(procedure: Callable[[Scripted], Outcome]) -> dict[Outcome, float]:
    """The probability of every outcome of `procedure`, which takes all its chances from its argument."""
    found: dict[Outcome, float] = defaultdict(float)
    scripts: list[tuple[int, ...]] = [()]
    while scripts:
        chance = Scripted(scripts.pop())
        found[procedure(chance)] += chance.probability
        scripts += chance.untaken
    return dict(found)
