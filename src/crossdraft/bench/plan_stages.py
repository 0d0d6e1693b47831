"""What `crossdraft plan` is told of a pair: the times of its stages, what is accepted, how long an answer is."""

import math
from dataclasses import dataclass

from crossdraft.errors import CrossdraftError

LEAST_TOKENS, MOST_TOKENS = 3, 10**9
SHORTEST, LONGEST = 1e-6, 1e9  # milliseconds; so that no quotient of two times overflows


@dataclass(frozen=True, slots=True)
class Stages:
    """A machine and a workload. All times in milliseconds.

    Args:
        prefill: P_T, the target's encode and prefill.
        step: t = V(1), one decode step of the target.
        draft_step: d, one drafted token; c = d / t.
        acceptance: chance that a drafted token is accepted, given those before it: one value for all positions, or one
            for each. What lies behind the last of several is never accepted.
        tokens: N, length of an answer.
        draft_prefill: P_D, the drafter's encode and prefill.
        passes: (n, V(n)), the time of one target pass over n new tokens, for any n; V(1) is `step`, so with none V is
            flat. Straight lines join the points and lead on behind the last. A pass over more tokens is not faster: a
            point below an earlier one is lifted to it.
        contention: what the drafter's work beside the prefill adds to the longer of the two, as a share of the shorter:
            0 = a device of its own, 1 = one shared device, no better than one after the other.

    Raises:
        CrossdraftError: a number that is out of range.
    """

    prefill: float
    step: float
    draft_step: float
    acceptance: tuple[float, ...]
    tokens: int
    draft_prefill: float = 0.0
    passes: tuple[tuple[int, float], ...] = ()
    contention: float = 0.0

    def __post_init__(self) -> None:
        _check_time("prefill", self.prefill)
        _check_time("step", self.step)
        _check_time("draft step", self.draft_step, least=0)
        _check_time("draft prefill", self.draft_prefill, least=0)
        _check("contention", self.contention, 0, 100, "0 for a device of its own, 1 for a shared one")
        if not self.acceptance:
            raise CrossdraftError("No acceptance is given; give one from 0 to 1.")
        for chance in self.acceptance:
            _check("acceptance", chance, 0, 1, "a chance from 0 to 1")
        if not LEAST_TOKENS <= self.tokens <= MOST_TOKENS:
            raise CrossdraftError(
                f"The answer is {self.tokens} tokens long; give {LEAST_TOKENS} to {MOST_TOKENS} (the prefill gives the "
                "first, the pass that checks a draft the last)."
            )
        self._check_passes()

    def _check_passes(self) -> None:
        seen: set[int] = set()
        for n, time in self.passes:
            if not 1 <= n <= MOST_TOKENS:
                raise CrossdraftError(f"There is no pass over {n} tokens; give V(n) for n of 1 or more.")
            if n in seen:
                raise CrossdraftError(f"V({n}) is given twice; give it once.")
            _check_time(f"time V({n})", time)
            if n == 1 and time != self.step:
                raise CrossdraftError(
                    f"V(1) is {time:g} ms and the step {self.step:g} ms, but they are the same; give one of them."
                )
            seen.add(n)

    @property
    def c(self) -> float:
        """Draft step over target step."""
        return self.draft_step / self.step

    @property
    def alpha(self) -> float:
        """Accepted over judged: what `acceptance` by position comes to over a draft as long as the list.

        A position is judged if all before it were accepted: Σ_i Π_{j≤i} h_j / Σ_i Π_{j<i} h_j.
        """
        reach = [math.prod(self.acceptance[:depth]) for depth in range(len(self.acceptance) + 1)]
        return sum(reach[1:]) / sum(reach[:-1])

    def hazards(self, depth: int) -> tuple[float, ...]:
        """[depth] conditional acceptances of a chain."""
        if len(self.acceptance) == 1:
            return self.acceptance * depth
        return (self.acceptance + (0.0,) * depth)[:depth]

    def verify(self, n: int) -> float:
        """V(n).

        >>> Stages(300, 10, 2, (0.8,), 50, passes=((3, 14),)).verify(5)
        18.0
        """
        lifted, highest = [(1, self.step)], self.step
        for width, time in sorted(self.passes):
            highest = max(highest, time)
            if width > 1:
                lifted.append((width, highest))
        place = next((i for i, (width, _) in enumerate(lifted) if width >= n), len(lifted) - 1)
        if place == 0:
            return self.step
        (x0, y0), (x1, y1) = lifted[place - 1], lifted[place]
        return y0 + (n - x0) * (y1 - y0) / (x1 - x0)

    def drafting(self, hidden: int) -> float:
        """P_D and `hidden` drafted tokens; the first token costs no step, and the prefill gives the target's own."""
        return self.draft_prefill + hidden * self.draft_step

    def contended(self, hidden: int) -> float:
        """What drafting and prefill add to each other side by side."""
        return self.contention * min(self.prefill, self.drafting(hidden))

    @property
    def free(self) -> int:
        """Tokens that can be drafted before the prefill is over at no cost, of those that an answer has room for."""
        left = self.prefill - self.draft_prefill
        if self.contention or left < 0:
            return 0
        room = self.tokens - 2
        return int(left / self.draft_step) if left < room * self.draft_step else room


def _check_time(what: str, milliseconds: float, least: float = SHORTEST) -> None:
    _check(what, milliseconds, least, LONGEST, f"milliseconds from {least:g} to {LONGEST:g}")


def _check(what: str, value: float, least: float, most: float, wanted: str) -> None:
    if not least <= value <= most:  # false of nan too
        raise CrossdraftError(f"The {what} is {value:g}; give {wanted}.")
