"""The average of the weights, worked by hand."""

import pytest
import torch
from torch import nn

from crossdraft.train.core.average import Average


@pytest.fixture
def weights() -> nn.Linear:
    linear = nn.Linear(1, 1)
    nn.init.constant_(linear.weight, 1.0)
    linear.bias.requires_grad_(False)
    return linear


def test_it_follows_by_hand(weights):
    """Decays of 1/10, then 2/11 would come; 0.15 is the most allowed."""
    average = Average(weights, 0.15)
    nn.init.constant_(weights.weight, 2.0)
    average.update(0)
    assert average.values["weight"].item() == pytest.approx(0.1 * 1 + 0.9 * 2)
    nn.init.constant_(weights.weight, 4.0)
    average.update(1)
    assert average.values["weight"].item() == pytest.approx(0.15 * 1.9 + 0.85 * 4)
    assert weights.weight.item() == 4.0


def test_what_is_not_trained_has_no_average(weights):
    assert set(Average(weights, 0.9).values) == {"weight"}


def test_it_stands_in_for_the_weights_and_goes_again(weights):
    average = Average(weights, 0.9)
    nn.init.constant_(weights.weight, 2.0)
    with pytest.raises(RuntimeError, match="on the way"), average.in_place():
        assert weights.weight.item() == 1.0
        raise RuntimeError("on the way")
    assert weights.weight.item() == 2.0
    average.put()
    assert weights.weight.item() == 1.0


def test_it_goes_on_from_kept_values(weights):
    average = Average(weights, 0.9)
    average.take({"weight": torch.tensor([[7.0]]), "bias": torch.zeros(1)})
    assert average.values["weight"].item() == 7.0
    assert weights.weight.item() == 1.0
