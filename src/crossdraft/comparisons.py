"""Helpers for comparing the target alone with a pair: balanced orders, the first difference of two answers."""

from collections.abc import Iterator, Sequence
from itertools import count, islice
from typing import TypeVar

import numpy as np
import torch

from crossdraft.engine.reference import full_forward
from crossdraft.engine.request import Request
from crossdraft.engine.structure import masked
from crossdraft.engine.target import Target

T = TypeVar("T")


def orders(methods: Sequence[T], after: int = 0) -> Iterator[list[T]]:
    """Endless balanced orders, the same every time: blocks of a Williams design, their rows shuffled.

    The first `after` orders are left out: a part of a measurement that runs by itself continues behind earlier parts.

    Over a block, each method is first, second … equally often, and follows every other equally often: what a method
    leaves behind (warm caches, a hot core) helps or hurts all alike. Rows are shuffled so that they do not keep in step
    with the workload, whose kinds of question come in turn.
    """
    rng = np.random.default_rng(0)
    rows = williams(len(methods))
    every = (rows[number] for _ in count() for number in rng.permutation(len(rows)))
    return ([methods[index] for index in row] for row in islice(every, after, None))


def williams(count: int) -> list[list[int]]:
    """Rows of a Williams design (1949): a Latin square in zigzag; with an odd number, its mirror image as well.

    >>> williams(4)
    [[0, 1, 3, 2], [1, 2, 0, 3], [2, 3, 1, 0], [3, 0, 2, 1]]
    """
    zigzag = [(step + 1) // 2 if step % 2 else -(step // 2) for step in range(count)]  # 0, 1, -1, 2, -2 …
    square = [[(start + step) % count for step in zigzag] for start in range(count)]
    return square if count % 2 == 0 else square + [row[::-1] for row in square]


def first_difference(left: Sequence[int], right: Sequence[int]) -> int:
    """Index of the first token that differs; the shorter length if one begins with the other."""
    pairs = enumerate(zip(left, right, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(left), len(right)))


def top2_gap(target: Target, request: Request, prefix: Sequence[int]) -> float:
    """Gap in logits between the target's first and second choice after an answer's prefix, as its structure allows."""
    logits = full_forward(target, target.prepare(request), prefix)
    if (structure := request.constraint) is not None:
        masks = structure.begin(target.text, target.vocab_size, target.defaults.eos)
        masks.commit(prefix)
        logits = masked(logits, masks.mask().to(logits.device))
    first, second = torch.topk(logits.double(), 2).values.tolist()
    return first - second
