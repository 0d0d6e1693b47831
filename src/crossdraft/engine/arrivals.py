"""The target's visual features on their way to a drafter, and which frames of a clip a drafter looks at."""

from concurrent.futures import Future

import numpy as np
from torch import Tensor

VisualFuture = Future[Tensor | None]
"""[N, E] visual features of a request's clip, once they are made; `None`: they cannot be had."""


def evenly(total: int, count: int) -> list[int]:
    """Indexes of `count` of `total` items, evenly spread from the first to the last; a single index is the middle.

    >>> evenly(8, 2), evenly(8, 3), evenly(8, 1), evenly(2, 3)
    ([0, 7], [0, 3, 7], [3], [0, 0, 1])
    """
    if count == 1:
        return [(total - 1) // 2]
    return np.linspace(0, total - 1, count).astype(int).tolist()
