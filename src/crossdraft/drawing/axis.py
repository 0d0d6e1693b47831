"""Round marks on an axis of time."""

import math
from collections.abc import Sequence


def ticks(seconds: float, most: int) -> list[float]:
    """Round times from 0 on, at most `most` steps of 1, 2 or 5 times a power of ten.

    >>> ticks(0.17, 4)
    [0.0, 0.05, 0.1, 0.15]
    """
    power = 10.0 ** math.floor(math.log10(seconds / most))
    step = next(factor * power for factor in (1, 2, 5, 10) if seconds <= factor * power * most)
    return [round(mark * step, 9) for mark in range(int(seconds / step + 1e-9) + 1)]


def labels(marks: Sequence[float], seconds: float) -> list[str]:
    """Texts of the marks of an axis of that length; the last one carries the unit."""
    unit, scale = ("s", 1.0) if seconds >= 5 else ("ms", 1e3)
    texts = [f"{mark * scale:g}" for mark in marks]
    return [*texts[:-1], f"{texts[-1]} {unit}"]
