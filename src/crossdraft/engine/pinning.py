"""Keeping a thread, and the threads that it starts, on CPU cores of its own."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch


def pin(cores: Sequence[int] | None) -> Callable[[], None]:
    """Bind the calling thread to the cores, one torch thread for each; `None` = as it is. Returns what undoes it."""
    if cores is None:
        return lambda: None
    before, threads = os.sched_getaffinity(0), torch.get_num_threads()

    def undo() -> None:
        os.sched_setaffinity(0, before)
        torch.set_num_threads(threads)

    os.sched_setaffinity(0, cores)
    torch.set_num_threads(len(cores))
    return undo


@contextmanager
def pinned(cores: Sequence[int] | None) -> Iterator[None]:
    """`pin` for as long as the context is open."""
    undo = pin(cores)
    try:
        yield
    finally:
        undo()
