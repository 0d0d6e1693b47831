"""Cost models with a history: times and acceptances that a test chooses."""

import math
import random

from crossdraft.engine.cost_model import CostModel
from crossdraft.engine.estimates import RequestDifficulty


def passes(model, t, slope, rows=1):
    """V(n) = t + slope·(n − 1)."""
    for n in (1, 2, 8, 16, 256):
        model.saw_pass(rows, n, t + slope * (n - 1))


def waits(model, step, overhead=0.0):
    """W(γ) = overhead + step·γ."""
    for _ in range(20):
        for depth in (2, 8, 16):
            model.wait.add(depth, overhead + step * depth)


def trained(alpha, step, slope=0.02):
    """t = 1, a draft costs `step` a token, and one token in 1/(1 − α) is refused."""
    model = CostModel()
    passes(model, 1.0, slope)
    waits(model, step)
    draw = random.Random(0)
    for _ in range(400):
        kept = int(math.log(1 - draw.random()) / math.log(alpha))  # geometric
        for hidden in (False, True):
            model.saw_acceptance(RequestDifficulty(), kept + 1, kept, hidden=hidden)
    return model


def drafted(model, limit=16, request=None, rows=1):
    """A round: how many levels are drafted in it, if nothing is learned of it."""
    levels = model.plan(limit, request or RequestDifficulty(), rows).depth
    model.began_round(levels, rows)
    return levels


def depth(model, limit=16, request=None, **options):
    return model.plan(limit, request or RequestDifficulty(), **options).depth


def reader(wait: float, length: int = 20) -> CostModel:
    """A drafter that is mostly right, for which the target waited so long with each of the last three requests."""
    model = trained(0.9, step=0.002)
    model.read_waits.extend([wait] * 3)
    model.length.add(length)
    return model
