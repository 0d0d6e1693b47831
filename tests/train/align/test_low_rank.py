"""Additions beside frozen layers, and layers in 4 bits that gradients go through."""

import pytest
import torch
from torch import nn

from crossdraft.engine.fast.quantized_linear import quantized_layers
from crossdraft.errors import CrossdraftError
from crossdraft_lab.train.align.low_rank import Int4Linear, LowRankLinear, Scratch, attach_low_rank
from crossdraft_lab.train.core.finite import require_finite


def linear(wide: int = 64, out: int = 32) -> nn.Linear:
    return nn.Linear(wide, out, dtype=torch.bfloat16)


def test_four_bits_stand_for_what_the_kernels_layer_stands_for():
    layer = linear()
    ours, kernel = Int4Linear(layer, Scratch()), quantized_layers([layer], 4)[0]
    assert torch.allclose(ours.weight.float(), kernel.weight.float(), atol=2e-3)
    assert not torch.allclose(ours.weight.float(), layer.weight.float(), atol=2e-3)
    assert (ours.weight - layer.weight).abs().max() < 0.02  # the range of weights, 0.25, in 15 steps
    assert ours.nbytes == 64 * 32 * 5 // 8
    assert ours.packed.is_contiguous()  # across, to unpack takes three times as long


def test_the_input_gets_the_gradient_of_the_unpacked_weight():
    scratch = Scratch()
    layer, other = Int4Linear(linear(), scratch), Int4Linear(linear(96, 64), scratch)
    rows = torch.randn(5, 64, dtype=torch.bfloat16, requires_grad=True)
    out = layer(rows)
    other(torch.randn(1, 96, dtype=torch.bfloat16))  # unpacked in the same memory, before the way back
    assert torch.allclose(out, rows @ layer.weight.T + layer.bias, atol=1e-2)  # summed in another order
    pulled = torch.randn_like(out)
    out.backward(pulled)
    assert torch.allclose(rows.grad, pulled @ layer.weight, atol=1e-2)
    one = torch.zeros(1, 64, dtype=torch.bfloat16)
    one[0, 40] = 1  # no sum: exact, and a column of the second group's
    assert torch.equal(layer(one)[0], layer.weight[:, 40] + layer.bias)


def test_an_addition_is_what_it_says():
    layer = LowRankLinear(nn.Linear(6, 4, bias=False), 2, 0.5)
    rows = torch.randn(3, 6)
    assert torch.equal(layer(rows), layer.base(rows))
    with torch.no_grad():
        layer.up.copy_(torch.tensor([[1.0, 0], [0, 2], [0, 0], [3, 3]]))
    expected = rows @ (layer.base.weight + layer.addition()).T
    assert torch.allclose(layer(rows), expected, atol=1e-6)
    assert torch.allclose(layer.addition()[1], layer.down[1])  # 0.5 x 2 x the second row


def test_a_model_without_attention_is_refused():
    with pytest.raises(CrossdraftError, match="has no q_proj"):
        attach_low_rank(nn.Sequential(nn.Linear(2, 2)), 1, 1.0)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_what_is_not_finite_is_named(wrong):
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    require_finite(model, "it")
    model[1].weight.data[0, 1] = wrong
    with pytest.raises(CrossdraftError, match=r"The weight 1\.weight of it is not finite"):
        require_finite(model, "it")
