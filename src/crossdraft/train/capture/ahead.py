"""Clips read in processes of their own, ahead of the target that is busy with the ones before."""

import os
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context

import torch

from crossdraft.train.capture.sources import Clip, Source

AHEAD = 8  # clips read ahead by each process


def read_ahead(source: Source, indices: Iterable[int], workers: int) -> Iterator[Clip]:
    """The clips of these numbers, in order; `workers` = 0 reads each when it is wanted."""
    if not workers or not source.heavy:
        yield from map(source.read, indices)
        return
    pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_one_thread)
    try:
        waiting: deque[Future[Clip]] = deque()
        for index in indices:
            waiting.append(pool.submit(source.read, index))
            if len(waiting) > AHEAD * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def _one_thread() -> None:
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
