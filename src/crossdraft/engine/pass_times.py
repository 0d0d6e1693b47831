"""Measured times of passes of a target: V(n), the time of a pass over n new tokens."""

import logging
import time
from collections.abc import Callable
from functools import partial

import torch

from crossdraft.engine.cost_model import CostModel
from crossdraft.engine.fast.elastic import borrowing
from crossdraft.engine.fast.packed_linear import FEW
from crossdraft.engine.fast.static_cache import hand_back
from crossdraft.engine.passes import Chunk, PassRow
from crossdraft.engine.target import Target
from crossdraft.engine.tree import DraftTree

log = logging.getLogger(__name__)

BEFORE = 512  # tokens in the cache before a pass
SAMPLES = 5  # most timings of each pass
TOKEN = 3  # an arbitrary id
WIDE, CHUNK, ROWS = 16, 256, 8  # tokens and rows of passes that `calibrate` measures,
CALIBRATION_S, LONGEST_S = 0.15, 0.5  # seconds for each of them; longest expected time of a chunk that is measured


@torch.inference_mode()
def calibrate(target: Target, cost: CostModel, rows: int, spare: Callable[[], tuple[int, ...]]) -> None:
    """Measure passes for the cost model before the first request, in about a second, or five passes.

    Passes over a token, over a token and a draft of `FEW - 1` or `WIDE - 1`, and over a token in each of several rows
    are measured, also on the drafter's cores if it has some; then the gain of these cores for a chunk of a prompt, or
    for such a draft where a chunk takes too long.

    Args:
        target: the target, in the thread that will run its passes.
        cost: model that gets the times; times that it has, or for which the context is too short, are not measured.
        rows: most requests that share a pass.
        spare: the drafter's cores that nothing runs on now.
    """
    if target.context <= CHUNK:
        return
    seconds, rows = partial(least_seconds, target), min(rows, ROWS)
    if rows > 1 and rows not in cost.shared:
        try:
            with borrowing(spare):
                cost.saw_pass(rows, 1, seconds(rows, 1) / rows)
        except (MemoryError, RuntimeError) as error:  # PyTorch raises the latter where memory runs out
            log.info("A pass over %d rows was not timed: %s", rows, error)
    if cost.verify.one.weight:
        return
    with borrowing(spare):
        one, few, wide = seconds(1, 1), seconds(1, 1, FEW - 1), seconds(1, 1, WIDE - 1)
    for tokens, taken in ((1, one), (FEW, few), (WIDE, wide)):
        cost.saw_pass(1, tokens, taken)
    if spare():
        if CHUNK / WIDE * wide < LONGEST_S:
            with borrowing(spare):
                chunk = seconds(1, CHUNK)
            cost.reading_worth = seconds(1, CHUNK) / chunk
        else:
            cost.reading_worth = seconds(1, 1, WIDE - 1) / wide


@torch.inference_mode()
def least_seconds(target: Target, rows: int, tokens: int, nodes: int = 0) -> float:
    """Least seconds of some passes over `rows` rows, each with a chunk and a draft, after at most `BEFORE` tokens."""
    before = min(BEFORE, target.context - CHUNK)
    room = before + tokens + nodes
    cache, chunk = target.new_cache(rows, room), Chunk(torch.full((tokens,), TOKEN))
    tree, found, start = DraftTree.chain([TOKEN] * nodes), list[float](), time.perf_counter()
    try:
        for _ in range(rows):
            cache.advance(row := cache.add_row(room), before)
            cache.mark(row)
        while not found or (len(found) <= SAMPLES and time.perf_counter() - start < CALIBRATION_S):
            found.append(target.extend(cache, [PassRow(row, chunk, tree) for row in range(rows)]).seconds)
            for row in range(rows):
                cache.truncate(row, before)
    finally:
        hand_back(cache)
    return min(found[1:] or found)  # the first one chooses kernels and starts threads
