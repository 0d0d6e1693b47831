"""Measured times of passes of a target: V(n), the time of one over n new tokens."""

import time
from collections.abc import Callable, Iterator

import torch

from crossdraft.engine.cache import KVCache
from crossdraft.engine.cost_model import CostModel
from crossdraft.engine.fast.elastic import borrowing
from crossdraft.engine.fast.static_cache import hand_back
from crossdraft.engine.passes import Chunk, PassRow
from crossdraft.engine.target import Target
from crossdraft.engine.tree import DraftTree

WIDTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
BEFORE = 512  # tokens that stand before those of a pass
SAMPLES, BUDGET_S = 5, 0.5  # of each width: so many, or as many as fit into the time, but one at least
TOKEN = 3  # any
WORTH_WIDTH = 8  # tokens of a pass that tells what cores are worth


@torch.inference_mode()
def timed_pass(target: Target, cache: KVCache, n: int) -> tuple[float, float]:
    """One pass over n tokens after row 0, a chain behind its first; nothing of it stays.

    Returns:
        seconds of the model's own forward, and of the whole `extend` around it.
    """
    length, start = cache.lengths[0], time.perf_counter()
    root, tree = Chunk(torch.tensor([TOKEN])), DraftTree.chain([TOKEN] * (n - 1))
    forward = target.extend(cache, [PassRow(0, root, tree)]).seconds
    cache.truncate(0, length)
    return forward, time.perf_counter() - start


def pass_times(target: Target) -> Iterator[tuple[int, float]]:
    """n and a time V(n) in seconds, several for each n, after 512 tokens, or as many as the model's context has."""
    before = min(BEFORE, target.context - WIDTHS[-1])
    cache = target.new_cache(1, before + WIDTHS[-1])
    cache.add_row(before + WIDTHS[-1])
    cache.advance(0, before)
    try:
        for n in WIDTHS:
            timed_pass(target, cache, n)  # its memory is touched, its kernels are chosen
            start = time.perf_counter()
            for number in range(SAMPLES):
                if number and time.perf_counter() - start > BUDGET_S:
                    break
                yield n, timed_pass(target, cache, n)[0]
    finally:
        hand_back(cache)


def learn_pass_times(target: Target, cost: CostModel) -> None:
    """Tell the cost model V(n), n = 1 … 64; takes about a hundred passes, fewer where they are slow."""
    for n, seconds in pass_times(target):
        cost.saw_pass(1, n, seconds)


@torch.inference_mode()
def learn_cores_worth(target: Target, spare: Callable[[], tuple[int, ...]], cost: CostModel) -> None:
    """Tell the cost model what a drafter's CPU cores are worth to the target's passes; takes a few passes.

    Args:
        target: whose passes.
        spare: the cores that nothing runs on now.
        cost: is told.
    """
    if not spare():
        return
    cache = target.new_cache(1, WORTH_WIDTH + 1)
    cache.add_row(WORTH_WIDTH + 1)
    own, shared = [], []
    try:
        start = time.perf_counter()
        for _ in range(1 + SAMPLES):  # the first ones choose kernels and start threads
            own.append(timed_pass(target, cache, WORTH_WIDTH)[0])
            with borrowing(spare):
                shared.append(timed_pass(target, cache, WORTH_WIDTH)[0])
            if len(own) > 1 and time.perf_counter() - start > BUDGET_S:
                break
    finally:
        hand_back(cache)
    cost.cores_worth = min(own[1:]) / min(shared[1:])
