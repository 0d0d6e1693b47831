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
        """The cores of the pair: all that target and drafter use together."""
        return tuple(sorted({*self.target, *self.draft}))

    @property
    def shared(self) -> bool:
        """True if some core serves both, so that nothing can be hidden for free."""
        return bool(set(self.target) & set(self.draft))

    def __str__(self) -> str:
        """The cores for people: `0-1`, or `0 + 1` where the drafter's process has cores of its own."""
        return spans(self.target) + (f" + {spans(self.draft)}" if self.draft else "")


def choose_cores(
    target: str | Sequence[int] | None = None, draft: str | Sequence[int] | None = None, *, all_target: bool = False
) -> Cores:
    """The cores that were asked for; by default one for each side.

    Args:
        target, draft: numbers, or text as `checks.parse_cores` reads it; `None` = choose.
        all_target: by default give the target all cores but the drafter's one, not just one.

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
