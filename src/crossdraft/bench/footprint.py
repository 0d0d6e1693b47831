"""Peak memory of a contestant, measured where nothing else runs: in a fresh process that has no other contestant.

The race itself cannot tell: there all contestants share a process.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from crossdraft.bench.assembly import Models, make_method
from crossdraft.bench.cores import Cores
from crossdraft.bench.environment import peak_cuda_mib, peak_rss_of
from crossdraft.bench.measure import answer_once
from crossdraft.bench.specs import HUGGING_FACE
from crossdraft.bench.workload import Item
from crossdraft.engine.fast.pinning import pinned

HOW = (
    "peak resident set of a process that loads this contestant alone and answers one question, plus that of its "
    "drafter's process if it has one; pages that both map, such as libraries, count in each"
)


@dataclass(frozen=True, slots=True)
class Footprint:
    """Peak memory in MiB; see `HOW`. None where this system does not tell.

    Args:
        target: of the process of the target, and of all that runs in it.
        drafter: of the drafter's own process; None without one.
        cuda: peak allocated on GPUs by the target's process; None without a GPU.
    """

    target: float | None
    drafter: float | None = None
    cuda: float | None = None

    @property
    def total(self) -> float | None:
        """Resident memory of both processes."""
        return None if self.target is None else self.target + (self.drafter or 0.0)

    def to_json(self) -> dict[str, float | None]:
        """Plain values."""
        return {"total_mib": self.total, "target_mib": self.target, "drafter_mib": self.drafter, "cuda_mib": self.cuda}


def measure_footprints(
    names: Sequence[str], models: Models, cores: Cores | None, item: Item, tick: Callable[[str], None] | None = None
) -> dict[str, Footprint]:
    """The footprint of each contestant, one after another.

    Args:
        names: of contestants, or specs of drafters.
        models, cores: as in `make_methods`.
        item: what each of them answers once.
        tick: told the name after each.
    """
    found = {}
    for name in names:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            found[name] = pool.submit(_footprint, name, models, cores, item).result()
        if tick is not None:
            tick(name)
    return found


def _footprint(name: str, models: Models, cores: Cores | None, item: Item) -> Footprint:
    """Runs in the fresh process."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    with pinned(None if cores is None else cores.pair):
        target = models.load_target(packed=name not in HUGGING_FACE)
        method = make_method(name, target, models, cores)
        try:
            answer_once(method, item)
            # The kernel's peak of each program since its start. `getrusage` would also count what a child shared with
            # its parent before it became a program of its own.
            drafters = [peak for child in _children() if (peak := peak_rss_of(child)) is not None]
            return Footprint(peak_rss_of(os.getpid()), round(sum(drafters), 1) if drafters else None, peak_cuda_mib())
        finally:
            method.close()


def _children() -> Iterator[int]:
    """The ids of this process's children, where the system keeps them under /proc."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The name in brackets may hold anything, spaces and brackets too; state and parent stand behind it.
            _, parent = stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[:2]
        except OSError:  # it has ended meanwhile
            continue
        if int(parent) == os.getpid():
            yield int(stat.parent.name)
