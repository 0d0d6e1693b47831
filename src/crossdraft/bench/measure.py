"""Running contestants against each other: interleaved, in one process, in balanced order."""

import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from crossdraft.bench.cores import Cores
from crossdraft.bench.order import orders
from crossdraft.bench.workload import Item
from crossdraft.engine.fast.pinning import pinned
from crossdraft.errors import CrossdraftError


@dataclass(frozen=True, slots=True)
class Run:
    """One answer by one contestant: what it said and what it cost. All times in seconds.

    Args:
        tokens: of the answer.
        total_s: from handing the request over to holding the answer.
        ttft_s: until the first final token.
        provisional_s: until the first drafted token could be shown; None if none could be before the first final one.
        stages_s: where the time on the target's lane went; they add up to `total_s`.
        rounds: target passes that emitted tokens; the prefill's is one.
        accepted_at, offered_at: drafts kept and offered, by depth.
        prefill_s: the target's encoding and prefill up to the last piece; preparing the video is not in it.
        hidden_drafting_s, hidden_inside_s: drafting for the ride-along, drafts that came too late for it included, and
            the part of it while the target prepared, encoded and prefilled.
        rounds_s, overhead_s: the rounds after the prefill, and the engine's own part of them, `communication` included.
        notes: what the engine wants to be known (a lost drafter).
        lossy: the acceptance rule with its settings, if it was a lossy one.
    """

    tokens: tuple[int, ...]
    total_s: float
    ttft_s: float
    stages_s: Mapping[str, float]
    rounds: int
    accepted_at: tuple[int, ...] = ()
    offered_at: tuple[int, ...] = ()
    prefill_s: float | None = None
    provisional_s: float | None = None
    hidden_drafting_s: float = 0.0
    hidden_inside_s: float = 0.0
    rounds_s: float = 0.0
    overhead_s: float = 0.0
    notes: tuple[str, ...] = ()
    lossy: str | None = None


class BenchMethod(Protocol):
    """Whoever answers requests; `cores` are those that it may use, None = any."""

    cores: Cores | None

    def answer(self, item: Item) -> Run:
        """Answer once, and say what it cost."""
        ...

    def close(self) -> None:
        """Stop whatever runs."""
        ...


@dataclass
class Results:
    """Runs by contestant, pair and repeat: `runs[name][pair][repeat]`."""

    runs: dict[str, list[list[Run]]] = field(default_factory=dict)

    def of(self, name: str) -> list[Run]:
        """All runs of a contestant."""
        return [run for repeats in self.runs[name] for run in repeats]

    def tokens(self, name: str) -> list[int]:
        """Tokens of each pair, repeats added up."""
        return [sum(len(run.tokens) for run in repeats) for repeats in self.runs[name]]

    def rounds(self, name: str) -> list[int]:
        """Target passes of each pair, repeats added up."""
        return [sum(run.rounds for run in repeats) for repeats in self.runs[name]]

    def seconds(self, name: str) -> list[float]:
        """Total time of each pair, repeats added up."""
        return [sum(run.total_s for run in repeats) for repeats in self.runs[name]]


def measure(
    methods: Mapping[str, BenchMethod],
    items: Sequence[Item],
    repeats: int,
    warm_ups: Sequence[Item] = (),
    tick: Callable[[str], None] | None = None,
) -> Results:
    """Let every contestant answer every pair `repeats` times.

    Whatever disturbs the machine for a while (another process, heat) then falls on all of them, and the order (see
    `orders`) sees to it that none always runs behind the same predecessor.

    Args:
        contestants: by name.
        items: the pairs.
        repeats: runs of each pair.
        warm_ups: pairs that everybody answers first and whose runs are thrown away: caches fill, and the engine's
            cost model learns its times.
        tick: told the contestant's name after every run, warm-ups included.
    """
    if repeats < 1:
        raise CrossdraftError(f"The number of repeats is {repeats}; run each pair at least once.")
    names, turns = list(methods), orders(list(methods))
    results = Results({name: [[] for _ in items] for name in names})
    for item in warm_ups:
        for name in names:
            answer_once(methods[name], item)
            _tell(tick, name)
    gc.collect()
    gc.freeze()  # the models' many objects need no scanning while the clock runs
    try:
        for pair, item in enumerate(items):
            for _ in range(repeats):
                for name in next(turns):
                    results.runs[name][pair].append(answer_once(methods[name], item))
                    _tell(tick, name)
    finally:
        gc.unfreeze()
    return results


def answer_once(method: BenchMethod, item: Item) -> Run:
    """Let it answer on its own cores, with as many torch threads; the clock starts behind the change."""
    with pinned(None if method.cores is None else method.cores.target):
        return method.answer(item)


def _tell(tick: Callable[[str], None] | None, name: str) -> None:
    if tick is not None:
        tick(name)
