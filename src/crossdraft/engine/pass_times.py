"""Measured times of passes of a target: V(n), the time of one over n new tokens."""

import time
from collections.abc import Callable

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
SAMPLES = 5  # of each pass, at most
TOKEN = 3  # any
WIDE, CHUNK, ROWS = 16, 256, 8  # tokens and rows of passes that `calibrate` measures,
CALIBRATION_S, LONGEST_S = 0.15, 0.5  # each for so long, and a chunk if it is not expected to take longer


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


@torch.inference_mode()
def calibrate(target: Target, cost: CostModel, rows: int, spare: Callable[[], tuple[int, ...]]) -> None:
    """Tell the cost model what passes take before the first request; it takes about a second at most.

    Measured are a token, a draft of `WIDE - 1` behind it, a token in each of several rows, and a chunk of a prompt;
    and how much faster the last two are on the drafter's cores as well.

    Args:
        target: whose passes, in the thread that will run them.
        cost: is told; nothing is measured if it knows V(1) already.
        rows: requests that share passes, at most.
        spare: the drafter's cores that nothing runs on now.
    """
    if cost.verify.one.weight:
        return
    rows, before = min(rows, ROWS), min(BEFORE, target.context - CHUNK)
    if before < 1:
        return  # a context without room for it
    cache = target.new_cache(rows, before + CHUNK)
    for _ in range(rows):
        cache.advance(cache.add_row(before + CHUNK), before)

    def seconds(count: int, tokens: int, nodes: int = 0) -> float:
        """The least of some passes over so many rows, of a chunk and a draft each; 0 if they would take too long."""
        chunk, tree = Chunk(torch.full((tokens,), TOKEN)), DraftTree.chain([TOKEN] * nodes)
        start, found = time.perf_counter(), list[float]()
        while len(found) < 2 or (len(found) <= SAMPLES and time.perf_counter() - start < CALIBRATION_S):
            found.append(target.extend(cache, [PassRow(row, chunk, tree) for row in range(count)]).seconds)
            for row in range(count):
                cache.truncate(row, before)
        return min(found[1:])  # the first one chooses kernels and starts threads

    try:
        with borrowing(spare):
            one, wide = seconds(1, 1), seconds(1, 1, WIDE - 1)
            shared = seconds(rows, 1) if rows > 1 else 0.0
            chunk = seconds(1, CHUNK) if CHUNK / WIDE * wide < LONGEST_S else 0.0
        cost.saw_pass(1, 1, one)
        cost.saw_pass(1, WIDE, wide)
        if shared:
            cost.saw_pass(rows, 1, shared / rows)
        if spare():
            cost.cores_worth = cost.reading_worth = seconds(1, 1, WIDE - 1) / wide
            if chunk:
                cost.reading_worth = seconds(1, CHUNK) / chunk
    finally:
        hand_back(cache)
