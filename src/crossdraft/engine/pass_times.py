"""Measured times of passes of a target: V(n), the time of a pass over n new tokens."""

import logging
import time
from collections.abc import Callable

import torch

from crossdraft.engine.cost_model import CostModel
from crossdraft.engine.estimates import WIDTHS
from crossdraft.engine.fast.elastic import borrowing
from crossdraft.engine.fast.static_cache import hand_back
from crossdraft.engine.passes import Chunk, PassRow
from crossdraft.engine.target import Target
from crossdraft.engine.tree import DraftTree

log = logging.getLogger(__name__)

BEFORE = 512  # tokens in the cache before a pass
TOKEN = 3  # an arbitrary id
SAMPLES, CALIBRATION_S = 5, 1.0  # most timings of each pass, and the seconds after which none is begun
MEASURED, CHUNK, ROWS = 32, 256, 8  # most tokens of a pass with a draft that is measured; of a chunk; most rows
LONGEST_S = 0.5  # longest expected time of a chunk that is measured
TIMED = 20.0  # later passes that a measured one weighs as much as: there is time for one each of a large model


@torch.inference_mode()
def calibrate(target: Target, cost: CostModel, rows: int, spare: Callable[[], tuple[int, ...]]) -> None:
    """Measure passes for the cost model before the first request, in about a second, or one pass of each kind.

    Passes over one to `MEASURED` tokens, which give the shape of V(n), and over a token in each of several rows are
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
    timed, rows, verify = bool(cost.verify.one.weight), min(rows, ROWS), cost.verify
    if not timed:
        widths = [width for width in WIDTHS if width <= MEASURED]
        with borrowing(spare):
            found = least_seconds(target, 1, 1, *(width - 1 for width in widths))
        for width, taken in zip(widths, found, strict=True):
            cost.saw_pass(1, width, taken, TIMED)
        beyond = (CHUNK - MEASURED) * (verify(MEASURED) - verify(MEASURED // 2)) / (MEASURED // 2)
        cost.saw_pass(1, CHUNK, verify(MEASURED) + beyond)
    if rows > 1 and rows not in cost.shared:
        try:
            with borrowing(spare):
                (shared,) = least_seconds(target, rows, 1)
            cost.saw_pass(rows, 1, shared / rows)
        except (MemoryError, RuntimeError) as error:  # PyTorch raises the latter where memory runs out
            log.info("A pass over %d rows was not timed: %s", rows, error)
    if spare() and not timed:
        kind = (CHUNK, 0) if verify(CHUNK) < LONGEST_S else (1, MEASURED - 1)
        with borrowing(spare):
            (lent,) = least_seconds(target, 1, *kind)
        cost.reading_worth = least_seconds(target, 1, *kind)[0] / lent


@torch.inference_mode()
def least_seconds(target: Target, rows: int, tokens: int, *nodes: int) -> list[float]:
    """Least seconds of passes over `rows` rows, each with a chunk of `tokens` tokens and a draft of so many nodes.

    They run in turn, after at most `BEFORE` tokens, so that a machine that slows down slows all of them.
    """
    nodes = nodes or (0,)
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
        run(trees[0])  # the first one chooses kernels and starts threads
        while not found or (len(found) < SAMPLES and time.perf_counter() - start < CALIBRATION_S):
            found.append([run(tree) for tree in trees])
    finally:
        hand_back(cache)
    return [min(times) for times in zip(*found, strict=True)]
