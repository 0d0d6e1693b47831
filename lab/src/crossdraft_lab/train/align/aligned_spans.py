"""Spans of one text in two tokenizers: the finest pieces that both can be cut into (CTPD's aligned spans, 2601.11865).

the target's tokens    | The | red   car |  turns |
the drafter's tokens   | The | re d  car |  turns |      between bars: a span
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from crossdraft.engine.tree import common_prefix


@dataclass(frozen=True, slots=True)
class AlignedSpan:
    """Tokens `left[left_start:left_end]` and `right[right_start:right_end]` that cover the same bytes."""

    left_start: int
    left_end: int
    right_start: int
    right_end: int


def aligned_spans(left: Sequence[bytes], right: Sequence[bytes]) -> Iterator[AlignedSpan]:
    """The spans of two tokenizations, in order; where these are equal each span is one token.

    The first tokens may differ in leading spaces, which only some tokenizers put before a text. Tokens without bytes
    belong to the span before them. Tokens after the first byte that differs are in no span.

    >>> for span in aligned_spans([b"The", b" red", b" car"], [b" The", b" re", b"d", b" car"]):
    ...     print(span.left_start, span.left_end, span.right_start, span.right_end)
    0 1 0 1
    1 2 1 3
    2 3 3 4
    >>> [(span.left_end, span.right_end) for span in aligned_spans([b"tur", b"ning"], [b"turn", b"ing"])]
    [(2, 2)]
    """
    left, right = _begun(left), _begun(right)
    same = common_prefix(b"".join(left), b"".join(right))
    ends, other_ends = _ends(left), _ends(right)
    shared = sorted(byte for byte in ends.keys() & other_ends.keys() if byte <= same)
    for start, end in pairwise(shared):
        yield AlignedSpan(ends[start] if start else 0, ends[end], other_ends[start] if start else 0, other_ends[end])


def span_sums(values: Tensor, bounds: Sequence[tuple[int, int]]) -> Tensor:
    """[M] sum of the values [n] over each span (start, end): the log-probability of a span from those of its tokens."""
    total = torch.cat((values.new_zeros(1), values.cumsum(0)))
    starts, ends = (torch.tensor(side, device=values.device) for side in zip(*bounds, strict=True))
    return total[ends] - total[starts]


def span_divergence(student: Tensor, teacher: Tensor) -> Tensor:
    """Binary KL of a span and its absence, log-probabilities [M] twice to [M]: p log(p/q) + (1-p) log((1-p)/(1-q)).

    Texts other than the span cannot be compared between two vocabularies; their total probability can.
    """
    # A probability that rounds to 1 is taken to be slightly less.
    student, teacher = student.clamp(max=-NEARLY), teacher.clamp(max=-NEARLY)
    said = teacher.exp()
    return said * (teacher - student) + (1 - said) * (_log_rest(teacher) - _log_rest(student))


NEARLY = 1e-6


def _log_rest(log_probs: Tensor) -> Tensor:
    """log(1 - p)."""
    return (-torch.expm1(log_probs)).log()


def _begun(texts: Sequence[bytes]) -> list[bytes]:
    """Strip the spaces that the text begins with from its tokens."""
    spaces = len(b"".join(texts)) - len(b"".join(texts).lstrip(b" "))
    found = []
    for text in texts:
        found.append(text[min(spaces, len(text)) :])
        spaces -= len(text) - len(found[-1])
    return found


def _ends(texts: Sequence[bytes]) -> dict[int, int]:
    """Map each byte at which a token ends, and the beginning, to the number of tokens that end there or before."""
    return {byte: count for count, byte in enumerate(accumulate(map(len, texts), initial=0))}
