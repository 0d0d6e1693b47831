"""The division of CPU cores between target and drafter."""

from collections.abc import Sequence
from dataclasses import dataclass

from crossdraft.checks import core_numbers, spans
from crossdraft.engine.fast.cores import available_cores


@dataclass(frozen=True, slots=True)
class Cores:
    """Core numbers of the target (and of all that runs in its process), and of a drafter's own process if any."""

    target: tuple[int, ...]
    draft: tuple[int, ...] = ()

    @property
    def pair(self) -> tuple[int, ...]:
        """All cores of the pair: those that target and drafter use together."""
        return tuple(sorted({*self.target, *self.draft}))

    @property
    def shared(self) -> bool:
        """True if a core serves both, so that hidden work is not free."""
        return bool(set(self.target) & set(self.draft))

    def __str__(self) -> str:
        """Cores for people: `0-1`, or `0 + 1` if the drafter's process has cores of its own."""
        return spans(self.target) + (f" + {spans(self.draft)}" if self.draft else "")


def choose_cores(
    target: str | Sequence[int] | None = None, draft: str | Sequence[int] | None = None, *, all_target: bool = False
) -> Cores:
    """Choose the cores of both sides: those given, or one each by default.

    Args:
        target, draft: core numbers, or text as `checks.parse_cores` reads it; `None` = choose.
        all_target: give the target all cores but the drafter's one by default, instead of one.

    Raises:
        CrossdraftError: a core that this process may not use.
    """
    allowed = available_cores()
    own = core_numbers("target_cores", target, allowed)
    other = core_numbers("draft_cores", draft, allowed)
    if own is None:
        free = [core for core in allowed if core not in (other or ())] or allowed
        own = tuple(free[: max(1, len(free) - (other is None))] if all_target else free[:1])
    if other is None:
        other = tuple(core for core in allowed if core not in own)[:1] or own
    return Cores(own, other)
