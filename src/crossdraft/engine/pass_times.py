"""Measured times of passes of a target: V(n), the time of one over n new tokens."""

import logging
import time
from collections.abc import Callable
from functools import partial

import torch

from crossdraft.engine.cost_model import CostModel
from crossdraft.engine.fast.elastic import borrowing
from crossdraft.engine.fast.static_cache import hand_back
from crossdraft.engine.passes import Chunk, PassRow
from crossdraft.engine.target import Target
from crossdraft.engine.tree import DraftTree

log = logging.getLogger(__name__)

BEFORE = 512  # tokens that stand before those of a pass
SAMPLES = 5  # of each pass, at most
TOKEN = 3  # any
WIDE, CHUNK, ROWS = 16, 256, 8  # tokens and rows of passes that `calibrate` measures,
CALIBRATION_S, LONGEST_S = 0.15, 0.5  # each for so long, and a chunk if it is not expected to take longer


@torch.inference_mode()
def calibrate(target: Target, cost: CostModel, rows: int, spare: Callable[[], tuple[int, ...]]) -> None:
    """Tell the cost model what passes take before the first request; it takes about a second, or four passes.

    Measured are a token, a draft of `WIDE - 1` behind it, and a token in each of several rows, on the drafter's cores
    as well where it has some; then, what these cores are worth to such a draft and to a chunk of a prompt.

    Args:
        target: whose passes, in the thread that will run them.
        cost: is told; what it knows already is not measured again, nor anything where the context has no room for it.
        rows: requests that share passes, at most.
        spare: the drafter's cores that nothing runs on now.
    """
    if target.context <= CHUNK:
        return
    seconds, rows = partial(_least_seconds, target), min(rows, ROWS)
    if rows > 1 and (rows, False) not in cost.shared:
        try:
            with borrowing(spare):
                cost.saw_pass(rows, 1, seconds(rows, 1) / rows)
        except (MemoryError, RuntimeError) as error:  # PyTorch raises the latter where memory runs out
            log.info("A pass over %d rows was not timed: %s", rows, error)
    if cost.verify.one.weight:
        return
    with borrowing(spare):
        one, wide = seconds(1, 1), seconds(1, 1, WIDE - 1)
    cost.saw_pass(1, 1, one)
    cost.saw_pass(1, WIDE, wide)
    if spare():
        cost.cores_worth = cost.reading_worth = seconds(1, 1, WIDE - 1) / wide
        if CHUNK / WIDE * wide < LONGEST_S:
            with borrowing(spare):
                chunk = seconds(1, CHUNK)
            cost.reading_worth = seconds(1, CHUNK) / chunk


def _least_seconds(target: Target, rows: int, tokens: int, nodes: int = 0) -> float:
    """The least of some passes over so many rows, of a chunk and a draft each, after `BEFORE` tokens or fewer."""
    before = min(BEFORE, target.context - CHUNK)
    room = before + tokens + nodes
    cache, chunk = target.new_cache(rows, room), Chunk(torch.full((tokens,), TOKEN))
    tree, found, start = DraftTree.chain([TOKEN] * nodes), list[float](), time.perf_counter()
    try:
        for _ in range(rows):
            cache.advance(cache.add_row(room), before)
        while not found or (len(found) <= SAMPLES and time.perf_counter() - start < CALIBRATION_S):
            found.append(target.extend(cache, [PassRow(row, chunk, tree) for row in range(rows)]).seconds)
            for row in range(rows):
                cache.truncate(row, before)
    finally:
        hand_back(cache)
    return min(found[1:] or found)  # the first one chooses kernels and starts threads
