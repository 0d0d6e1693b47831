"""The drafter `choose`: a choice among several drafters for each answer, learned from the speed of earlier answers.

A bandit (UCB1: Auer et al. 2002, with fading counts): for every answer the drafter with the best upper bound of its
rate is taken. The rate of an answer is its tokens per second, from its first proposal to its end.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from crossdraft.drafters.combine.grouped import propose_grouped
from crossdraft.engine.drafter import Budget, Draft, Drafter, Needs, Proposal, VerifyOutput
from crossdraft.engine.request import Request
from crossdraft.errors import CrossdraftError

FADING = 0.98  # weight that an old answer keeps when one more has come
CURIOSITY = 0.3  # share of the best rate that a little-known arm may lack and still be tried


@dataclass
class Arm:
    """Statistics of a drafter."""

    answers: float = 0.0
    rate: float = 0.0  # tokens per second, summed over those answers

    @property
    def mean(self) -> float:
        """Tokens per second."""
        return self.rate / self.answers if self.answers else 0.0


@dataclass(eq=False)
class ChooseState:
    """One answer: the drafter that was taken, its state, and the tokens and time since its first proposal."""

    arm: int
    state: Any
    began: float | None = None
    tokens: int = 0


class ChooseDrafter:
    """One of several drafters for each answer.

    Args:
        drafters: the drafters to choose from.
        clock: function that returns seconds.

    Raises:
        CrossdraftError: fewer than two drafters.
    """

    def __init__(self, drafters: Sequence[Drafter[Any]], clock: Callable[[], float] = time.perf_counter) -> None:
        if len(drafters) < 2:
            raise CrossdraftError("A choice needs two drafters or more, such as choose:event,memory.")
        self.drafters = list(drafters)
        self.arms = [Arm() for _ in drafters]
        self.clock = clock
        self.needs = Needs.of_all([drafter.needs for drafter in drafters])

    def begin(self, requests: Sequence[Request]) -> list[ChooseState]:
        chosen = []
        for request in requests:
            arm = best_arm(self.arms)
            chosen.append(ChooseState(arm, self.drafters[arm].begin([request])[0]))
        return chosen

    def propose(self, states: Sequence[ChooseState], budgets: Sequence[Budget]) -> list[Draft]:
        return self.propose_async(states, budgets)()

    def propose_async(self, states: Sequence[ChooseState], budgets: Sequence[Budget]) -> Proposal:
        """See `AsyncDrafter`."""
        for state in states:
            state.began = self.clock() if state.began is None else state.began
        taken = [self.drafters[state.arm] for state in states]
        return propose_grouped(taken, [state.state for state in states], budgets)

    def commit(self, states: Sequence[ChooseState], outputs: Sequence[VerifyOutput]) -> None:
        for state, output in zip(states, outputs, strict=True):
            state.tokens += len(output.tokens)
            self.drafters[state.arm].commit([state.state], [output])

    def fork(self, states: Sequence[ChooseState]) -> list[ChooseState]:
        return [replace(state, state=self.drafters[state.arm].fork([state.state])[0]) for state in states]

    def end(self, states: Sequence[ChooseState]) -> None:
        for state in states:
            self.drafters[state.arm].end([state.state])
            if state.began is not None and state.tokens:
                learn(self.arms, state.arm, state.tokens / max(1e-9, self.clock() - state.began))


def learn(arms: Sequence[Arm], taken: int, rate: float) -> None:
    """Count an answer of `rate` tokens a second for the arm `taken`; older answers then count for less."""
    for i, arm in enumerate(arms):
        arm.answers *= FADING
        arm.rate *= FADING
        if i == taken:
            arm.answers += 1
            arm.rate += rate


def best_arm(arms: Sequence[Arm]) -> int:
    """The arm with the highest upper bound; an arm that was hardly tried comes first."""
    untried = next((i for i, arm in enumerate(arms) if arm.answers < 0.5), None)
    if untried is not None:
        return untried
    tried, best = sum(arm.answers for arm in arms), max(arm.mean for arm in arms)
    bounds = [arm.mean + CURIOSITY * best * math.sqrt(math.log(1 + tried) / arm.answers) for arm in arms]
    return bounds.index(max(bounds))
