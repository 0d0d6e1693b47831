"""The division of CPU cores between target and drafter."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

from crossdraft.engine.fast.cores import available_cores
from crossdraft.errors import CrossdraftError

MOST_SPANS, MOST_LETTERS = 8, 40  # of a list in an error message


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


def choose_cores(target: str | None = None, draft: str | None = None, *, all_target: bool = False) -> Cores:
    """The cores that were asked for; by default one for each side.

    Args:
        target, draft: as `parse_cores` reads them; `None` = choose.
        all_target: by default give the target all cores but the drafter's one, not just one.

    Raises:
        CrossdraftError: a core that this process may not use.
    """
    allowed = available_cores()
    own = None if target is None else parse_cores(target, allowed)
    other = None if draft is None else parse_cores(draft, allowed)
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
    cores: set[int] = set()
    for part in text.split(","):
        first, last = _ends(part, text)
        cores.update(core for core in allowed if first <= core <= last)
        # Counted up from the first, so that a range of a billion cores is refused as soon as one is absent.
        absent = next(core for core in count(first) if core > last or core not in allowed)
        if absent <= last:
            raise CrossdraftError(
                f"'{_cut(text)}' names core {absent}, but this process may use only {spans(allowed)}."
            )
    return tuple(sorted(cores))


def spans(cores: Sequence[int]) -> str:
    """Cores for people, neighbours drawn together, and no more of them than can be read.

    >>> spans((0, 1, 2, 5))
    '0-2, 5'
    """
    runs: list[list[int]] = []
    for core in sorted(cores):
        if runs and core == runs[-1][-1] + 1:
            runs[-1].append(core)
        else:
            runs.append([core])
    shown = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    more = f" … ({len(cores)} in all)" if len(shown) > MOST_SPANS else ""
    return ", ".join(shown[:MOST_SPANS]) + more


def _ends(part: str, text: str) -> tuple[int, int]:
    """First and last core of `3` or `0-3`."""
    found = re.fullmatch(r"([0-9]{1,18})(?:-([0-9]{1,18}))?", part.strip())
    first, last = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
    if first > last:
        raise CrossdraftError(f"'{_cut(text)}' is no list of cores; write it as 0, 0,2 or 0-3.")
    return first, last


def _cut(text: str) -> str:
    return text if len(text) <= MOST_LETTERS else f"{text[:MOST_LETTERS]}…"
