"""Distributions on their way to another process."""

import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from crossdraft.engine.runner.wire_rows import pack_rows, unpack_rows
from crossdraft.engine.sampling import Sampling, warp
from crossdraft.engine.tree import DraftTree

VOCABULARY = 152_064


@given(st.integers(0, 5), st.integers(1, 40), st.floats(0, 1), st.sampled_from([torch.float32, torch.float64]))
def test_rows_arrive_to_the_bit(count, width, density, dtype):
    generator = torch.Generator().manual_seed(count + 10 * width)
    rows = torch.rand(count, width, generator=generator, dtype=dtype)
    rows *= torch.rand(count, width, generator=generator) < density
    tree = DraftTree((0,) * count, tuple(range(-1, count - 1)), rows, tuple(range(count)))
    found = unpack_rows(pickle.loads(pickle.dumps(pack_rows(tree))))
    assert torch.equal(found, rows)
    assert found.dtype == dtype


def test_nothing_drawn_is_nothing_sent():
    assert pack_rows(DraftTree.chain([1, 2])) is None
    assert unpack_rows(None) is None


@pytest.mark.parametrize(
    ("sampling", "most"),
    [(Sampling(1.0, top_k=50), 50_000), (Sampling(1.0, top_p=0.9), 500_000), (Sampling(1.0), 20_000_000)],
)
def test_what_a_filter_left_out_is_not_sent(sampling, most):
    """32 distributions over a large vocabulary; sharp ones, as those of a model are."""
    logits = 6 * torch.randn(32, VOCABULARY, generator=torch.Generator().manual_seed(0))
    rows = warp(logits, sampling)
    tree = DraftTree.chain(range(32), rows)
    packed = pack_rows(tree)
    assert len(pickle.dumps(packed)) < most
    assert torch.equal(unpack_rows(packed), rows)


def test_rows_of_nodes_that_were_cut_off_stay():
    tree = DraftTree.chain(range(8), torch.eye(8)).first(3)
    assert len(unpack_rows(pack_rows(tree))) == 3
