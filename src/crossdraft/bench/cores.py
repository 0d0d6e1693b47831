"""Who computes on which CPU cores."""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from crossdraft.errors import CrossdraftError


@dataclass(frozen=True, slots=True)
class Cores:
    """Core numbers of the target (and of all that runs in its process) and of a drafter's own process."""

    target: tuple[int, ...]
    draft: tuple[int, ...]

    @property
    def shared(self) -> bool:
        """True if some core serves both, so that nothing can be hidden for free."""
        return bool(set(self.target) & set(self.draft))


def choose_cores(target: str | None = None, draft: str | None = None, *, all_target: bool = False) -> Cores:
    """The cores that were asked for; by default one for each side.

    Args:
        target, draft: as `parse_cores` reads them; `None` = choose.
        all_target: by default give the target all cores but the drafter's one, not just one.

    Raises:
        CrossdraftError: a core that this process may not use.
    """
    allowed = sorted(os.sched_getaffinity(0))
    own = parse_cores(target, allowed) if target else None
    other = parse_cores(draft, allowed) if draft else None
    if own is None:
        free = [core for core in allowed if core not in (other or ())] or allowed
        own = tuple(free[: max(1, len(free) - (other is None))] if all_target else free[:1])
    if other is None:
        other = tuple(core for core in allowed if core not in own)[:1] or own
    return Cores(own, other)


def parse_cores(text: str, allowed: Sequence[int]) -> tuple[int, ...]:
    """Core numbers such as `0`, `0,2` or `0-3`.

    Raises:
        CrossdraftError: not a list of numbers, or a core that is not in `allowed`.
    """
    cores: list[int] = []
    for part in text.split(","):
        if not re.fullmatch(r"\d+(-\d+)?", part):
            raise CrossdraftError(f"'{text}' is no list of cores; write it as 0, 0,2 or 0-3.")
        first, _, last = part.partition("-")
        cores += range(int(first), int(last or first) + 1)
    absent = sorted(set(cores) - set(allowed))
    if absent or not cores:
        raise CrossdraftError(
            f"'{text}' names core {absent or 'none'}, but this process may use only {', '.join(map(str, allowed))}."
        )
    return tuple(sorted(set(cores)))


@contextmanager
def pinned(cores: Sequence[int] | None) -> Iterator[None]:
    """Bind this thread, and those it starts inside, to the cores, one torch thread for each; `None` = as it is."""
    if cores is None:
        yield
        return
    before, threads = os.sched_getaffinity(0), torch.get_num_threads()
    os.sched_setaffinity(0, cores)
    torch.set_num_threads(len(cores))
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
        torch.set_num_threads(threads)
