"""Keeping a thread, and the threads that it starts, on CPU cores of its own."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from crossdraft.engine.fast.cores import available_cores, bind_cores
from crossdraft.engine.fast.elastic import disband


def pin(cores: Sequence[int] | None) -> Callable[[], None]:
    """Bind the calling thread to the cores, one torch thread for each; `None` = no change. Returns the undoing call."""
    if cores is None:
        return lambda: None
    before, threads = available_cores(), torch.get_num_threads()

    def undo() -> None:
        bind_cores(before)
        torch.set_num_threads(threads)

    bind_cores(cores)
    torch.set_num_threads(len(cores))
    return undo


@contextmanager
def pinned(cores: Sequence[int] | None) -> Iterator[None]:
    """Bind the calling thread to the cores, as `pin` does, while the context is open."""
    undo = pin(cores)
    try:
        yield
    finally:
        undo()


@contextmanager
def one_thread() -> Iterator[None]:
    """Have the calling thread compute alone, without OpenMP helpers, while the context is open."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def loading(cores: Sequence[int] | None) -> Iterator[None]:
    """Compute on the cores, and end the calling thread's OpenMP helpers afterwards; with one thread if none can end."""
    with pinned(cores) if disband() else one_thread():
        try:
            yield
        finally:
            disband()


@torch.inference_mode()
def done_on(work: Callable[[], Any], cores: Sequence[int], threads: int) -> Any:
    """Run some work on `cores` with `threads` threads, which end with it, and return its result."""
    with pinned(cores):
        torch.set_num_threads(threads)
        try:
            return work()
        finally:
            disband()
