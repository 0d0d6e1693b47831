"""Spans of two tokenizations: cases by hand, properties, and the loss that compares what both say."""

import math
from itertools import accumulate

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from crossdraft_lab.train.align.aligned_spans import AlignedSpan, aligned_spans, span_divergence, span_sums

CUTS = st.lists(st.integers(1, 4), min_size=1, max_size=8)


def cut(text, lengths):
    ends = [end for end in accumulate(lengths) if end < len(text)]
    return [text[a:b] for a, b in zip([0, *ends], [*ends, len(text)], strict=True)]


def test_tokens_without_text_belong_to_the_span_before_and_a_difference_ends_it():
    left, right = [b"a", b"", b"bc", b"d", b"x"], [b"ab", b"c", b"d", b"y"]
    assert list(aligned_spans(left, right)) == [AlignedSpan(0, 3, 0, 2), AlignedSpan(3, 4, 2, 3)]
    assert list(aligned_spans([b" ", b"ab"], [b"ab"])) == [AlignedSpan(0, 2, 0, 1)]
    assert list(aligned_spans([], [b"a"])) == []


@given(CUTS, CUTS)
def test_spans_cover_the_same_bytes_and_cannot_be_cut_further(one, other):
    text = b"aabacabaabacabacabaabacabaabacab"
    left, right = cut(text, one), cut(text, other)
    spans = list(aligned_spans(left, right))
    assert b"".join(b"".join(left[s.left_start : s.left_end]) for s in spans) == text
    before = (0, 0)
    for span in spans:
        assert (span.left_start, span.right_start) == before
        mine, theirs = left[span.left_start : span.left_end], right[span.right_start : span.right_end]
        assert b"".join(mine) == b"".join(theirs)
        inner = [set(accumulate(map(len, side))) for side in (mine, theirs)]
        assert len(inner[0] & inner[1]) == 1  # their common end
        before = span.left_end, span.right_end


@given(CUTS)
def test_of_one_tokenizer_spans_are_its_tokens(lengths):
    tokens = cut(b"aabacabaabacab", lengths)
    assert list(aligned_spans(tokens, tokens)) == [AlignedSpan(i, i + 1, i, i + 1) for i in range(len(tokens))]


def test_a_span_is_as_likely_as_its_tokens_together():
    values = torch.tensor([0.5, 0.25, 0.5, 1.0]).log()
    assert span_sums(values, [(0, 1), (1, 3), (3, 4)]).exp().tolist() == pytest.approx([0.5, 0.125, 1.0])


def test_the_divergence_by_hand():
    """p = 1/2, q = 1/4; and equal ones, certain ones among them."""
    found = span_divergence(torch.tensor([0.25]).log(), torch.tensor([0.5]).log())
    assert found.item() == pytest.approx(0.5 * math.log(2) + 0.5 * math.log(0.5 / 0.75))
    same = torch.tensor([1.0, 0.7, 1e-9]).log()
    assert span_divergence(same, same).abs().max() < 1e-6


def test_its_gradient_is_finite_where_a_span_is_certain_or_hopeless():
    student = torch.tensor([0.0, -80.0, -0.1], requires_grad=True)
    span_divergence(student, torch.tensor([0.0, 0.0, -90.0])).sum().backward()
    assert student.grad.isfinite().all()
    assert student.grad[1] == pytest.approx(-1, abs=1e-3)  # towards what the target says
