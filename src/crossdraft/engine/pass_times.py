"""Measured times of passes of a target: V(n), the time of a pass over n new tokens."""

import logging
import time
from collections.abc import Callable, Sequence

import torch

from crossdraft.engine.cost_model import CostModel
from crossdraft.engine.fast.elastic import borrowing
from crossdraft.engine.fast.static_cache import hand_back
from crossdraft.engine.passes import Chunk, PassRow
from crossdraft.engine.target import Target
from crossdraft.engine.tree import DraftTree

log = logging.getLogger(__name__)

BEFORE = 512  # tokens in the cache before a pass
TOKEN = 3  # an arbitrary id
WIDE = (1, 2, 6, 8, 12, 16, 32)  # tokens of the passes that give the shape of V(n); between them it is a line
CHUNK, ROWS = 256, 8  # tokens of a chunk, and most rows, of passes that are measured
LONGEST_S = 0.5  # longest expected time of a chunk that is measured
LEAST, MOST, SHAPE_S, OTHERS_S = 2, 5, 1.0, 0.15  # timings of each pass, and seconds after which there are no more
TIMED = 20.0  # passes that each measured time counts as


@torch.inference_mode()
def calibrate(target: Target, cost: CostModel, rows: int, spare: Callable[[], tuple[int, ...]]) -> None:
    """Measure passes for the cost model before the first request, in a second or two, or each twice if that is longer.

    Passes over few and many tokens, which give the shape of V(n), and over a token in each of several rows are
    measured, also on the drafter's cores if it has some; then the gain of these cores for a chunk of a prompt, or for
    the widest draft where a chunk takes too long.

    Args:
        target: the target, in the thread that will run its passes.
        cost: model that gets the times; times that it has, or for which the context is too short, are not measured.
        rows: most requests that share a pass.
        spare: the drafter's cores that nothing runs on now.
    """
    if target.context <= CHUNK:
        return
    rows, widest, shape = min(rows, ROWS), WIDE[-1], dict[int, float]()
    if not cost.verify.one.weight:
        with borrowing(spare):
            found = least_seconds(target, 1, 1, [width - 1 for width in WIDE], SHAPE_S)
        shape = dict(zip(WIDE, found, strict=True))
        rise = max(0.0, shape[widest] - shape[widest // 2]) / (widest - widest // 2)
        cost.verify.measure({**shape, CHUNK: shape[widest] + rise * (CHUNK - widest)}, TIMED)
        cost.saw_pass(1, 1, shape[1])
    if rows > 1 and rows not in cost.shared:
        try:
            with borrowing(spare):
                (shared,) = least_seconds(target, rows, 1)
            cost.saw_pass(rows, 1, shared / rows)
        except (MemoryError, RuntimeError) as error:  # PyTorch raises the latter where memory runs out
            log.info("A pass over %d rows was not timed: %s", rows, error)
    if shape and spare():
        kind = (CHUNK, [0]) if CHUNK / widest * shape[widest] < LONGEST_S else (1, [widest - 1])
        with borrowing(spare):
            (lent,) = least_seconds(target, 1, *kind)
        cost.reading_worth = least_seconds(target, 1, *kind)[0] / lent


@torch.inference_mode()
def least_seconds(
    target: Target, rows: int, tokens: int, nodes: Sequence[int] = (0,), most_s: float = OTHERS_S
) -> list[float]:
    """Least seconds of passes over `rows` rows, each with a chunk of `tokens` tokens and a draft of so many nodes.

    They run in turn, so that a machine that slows down slows all of them, after at most `BEFORE` tokens, and begin
    until `most_s` seconds are over. The first of each chooses kernels and starts threads, so there are two.
    """
    before = min(BEFORE, target.context - CHUNK)
    room = before + tokens + max(nodes)
    cache, chunk = target.new_cache(rows, room), Chunk(torch.full((tokens,), TOKEN))
    trees = [DraftTree.chain([TOKEN] * count) for count in nodes]
    found, start = list[list[float]](), time.perf_counter()

    def run(tree: DraftTree) -> float:
        taken = target.extend(cache, [PassRow(row, chunk, tree) for row in range(rows)]).seconds
        for row in range(rows):
            cache.truncate(row, before)
        return taken

    try:
        for _ in range(rows):
            cache.advance(row := cache.add_row(room), before)
            cache.mark(row)
        while len(found) < LEAST or (len(found) < MOST and time.perf_counter() - start < most_s):
            found.append([run(tree) for tree in trees])
    finally:
        hand_back(cache)
    return [min(times) for times in zip(*found, strict=True)]
