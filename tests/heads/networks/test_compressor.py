"""Compressors of visual tokens, by hand."""

import pytest
import torch

from crossdraft.errors import CrossdraftError
from crossdraft.heads.networks.compressor import Conv, Pool, Prune, Resampler, TextOnly

ROWS = torch.arange(10, dtype=torch.double).view(1, 5, 2)  # row i holds 2i and 2i + 1


def test_pooling_by_hand():
    rows, positions = Pool(2)(ROWS)
    assert rows.tolist() == [[[1, 2], [5, 6], [8, 9]]]  # what is left over is a mean of its own
    assert positions.tolist() == [1, 3, 4]


def test_text_only_keeps_nothing():
    rows, positions = TextOnly()(ROWS)
    assert rows.shape == (1, 0, 2)
    assert not len(positions)


@pytest.mark.parametrize(("ratio", "kept"), [(1, [0, 1, 2, 3, 4]), (2, [0, 2, 4]), (3, [1, 3]), (9, [2])])
def test_uniform_pruning_by_hand(ratio, kept):
    rows, positions = Prune(ratio)(ROWS)
    assert positions.tolist() == kept
    assert torch.equal(rows, ROWS[:, kept])


def test_random_pruning_is_repeatable():
    clip = torch.randn(2, 400, 3)
    rows, positions = Prune(20, "random")(clip)
    again, same = Prune(20, "random")(clip)
    assert len(positions) == 20
    assert positions.tolist() == sorted(set(positions.tolist())) == same.tolist()
    assert torch.equal(rows, clip[:, positions])
    assert torch.equal(rows, again)
    assert positions.tolist() != Prune(20)(clip)[1].tolist()


def test_a_convolution_is_initialised_as_pooling():
    clip = torch.randn(2, 6, 4)
    rows, positions = Conv(4, 3)(clip)
    means, same = Pool(3)(clip)
    assert torch.allclose(rows, means, atol=1e-6)
    assert torch.equal(positions, same)


@torch.no_grad()
def test_a_convolution_by_hand():
    conv = Conv(2, 2).double()
    conv.depthwise.weight.copy_(torch.tensor([[[1.0, 10.0]], [[0.0, 1.0]]]))
    conv.pointwise.weight.copy_(torch.tensor([[0.0, 1.0], [1.0, 0.0]]))
    rows, positions = conv(ROWS)
    # rows (0, 1), (2, 3): channel 0 is 0 + 10·2, channel 1 is 3, then the two are exchanged; zeros stand after row 4.
    assert rows.tolist() == [[[3, 20], [7, 64], [0, 8]]]
    assert positions.tolist() == [1, 3, 4]


@torch.no_grad()
def test_a_resampler_by_hand():
    """A query that matches one row alone finds that row; one that matches none finds the mean."""
    resampler = Resampler(2, 2, 1).double()
    for layer in (resampler.k_proj, resampler.v_proj, resampler.o_proj):
        torch.nn.init.eye_(layer.weight)
    resampler.queries.copy_(torch.tensor([[1000.0, 0.0], [0.0, 0.0]]))
    rows, positions = resampler(torch.tensor([[[0.0, 4.0], [3.0, 1.0], [0.0, 1.0]]], dtype=torch.double))
    assert torch.allclose(rows, torch.tensor([[[3.0, 1.0], [1.0, 2.0]]], dtype=torch.double))
    assert positions.tolist() == [1, 2]


@pytest.mark.parametrize("count", [1, 2, 7, 40])
@pytest.mark.parametrize(
    "compressor", [Pool(3), Conv(4, 3), Prune(3), Prune(3, "random")], ids=["pool", "conv", "uniform", "random"]
)
def test_one_of_three_is_kept(compressor, count):
    rows, positions = compressor(torch.randn(2, count, 4))
    assert rows.shape == (2, -(-count // 3), 4)
    assert positions.tolist() == sorted(set(positions.tolist()))
    assert 0 <= positions[0] <= positions[-1] < count


@pytest.mark.parametrize("make", [Pool, Prune, lambda number: Conv(4, number), lambda number: Resampler(4, number, 2)])
def test_a_compression_ratio_below_one_is_refused(make):
    with pytest.raises(CrossdraftError, match="at least 1"):
        make(0)


def test_other_mistakes_are_named():
    with pytest.raises(CrossdraftError, match="'best'"):
        Prune(2, "best")
    with pytest.raises(CrossdraftError, match="3 heads"):
        Resampler(8, 2, 3)
