"""Lanes: two threads that compute at the same time, on half of the CPU cores each.

What a core does alone waits for no other: two prompts, or a prompt and the rounds of others, take less time so than one
after the other on all cores, where the products are small.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from crossdraft.engine.fast.cores import available_cores
from crossdraft.engine.fast.pinning import pinned


@dataclass(frozen=True)
class Lanes:
    """Two threads that compute at the same time.

    Args:
        cores: of each.
        threads: that each computes with.
    """

    cores: tuple[Sequence[int], Sequence[int]]
    threads: int


def halves(spare: Sequence[int]) -> Lanes | None:
    """This thread's CPU cores, and `spare` ones, in two halves; `None` where there are not two threads to share."""
    own, threads = available_cores(), torch.get_num_threads()
    more = [core for core in spare if core not in own]
    cores, threads = [*own, *more], (threads + len(more)) // 2
    half = (len(cores) + 1) // 2
    return Lanes((cores[:half], cores[half:]), threads) if threads and len(cores) > 1 else None


@contextmanager
def on_lane(cores: Sequence[int], threads: int) -> Iterator[None]:
    """Have the calling thread compute on these cores while the context is open."""
    with pinned(cores):
        torch.set_num_threads(threads)
        yield


@torch.inference_mode()
def done_on(work: Callable[[], Any], cores: Sequence[int], threads: int) -> Any:
    """Run some work on these cores, and return its result."""
    with on_lane(cores, threads):
        return work()
