"""Whose turn it is: orders in which none gains from its place or from whom it follows."""

from collections.abc import Iterator, Sequence
from typing import TypeVar

import numpy as np

T = TypeVar("T")


def orders(methods: Sequence[T], seed: int = 0) -> Iterator[list[T]]:
    """Endless orders, the same for the same seed: block after block of a Williams design, its rows shuffled.

    Over a block, everybody is first, second … equally often, and follows each other one equally often: what a
    contestant leaves behind (warm caches, a hot core) helps or hurts all alike. Rows are shuffled so that they do not
    keep in step with the workload, whose kinds of question come in turn.
    """
    rng = np.random.default_rng(seed)
    rows = williams(len(methods))
    while True:
        for row in rng.permutation(len(rows)):
            yield [methods[place] for place in rows[row]]


def williams(count: int) -> list[list[int]]:
    """Rows of a Williams design (1949): a Latin square in zigzag; with an odd number, its mirror image as well.

    >>> williams(4)
    [[0, 1, 3, 2], [1, 2, 0, 3], [2, 3, 1, 0], [3, 0, 2, 1]]
    """
    zigzag = [(step + 1) // 2 if step % 2 else -(step // 2) for step in range(count)]  # 0, 1, -1, 2, -2 …
    square = [[(start + step) % count for step in zigzag] for start in range(count)]
    return square if count % 2 == 0 else square + [row[::-1] for row in square]
