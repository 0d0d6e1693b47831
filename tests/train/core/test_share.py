"""Shares of a batch, and what they add up to."""

import pytest
import torch

from crossdraft.errors import CrossdraftError
from crossdraft.train.core.share import Part, Share, merged, weight, whole


@pytest.mark.parametrize("of", [1, 2, 3, 7])
def test_shares_are_the_batch(of):
    batch = list(range(6))
    assert [item for index in range(of) for item in Share(index, of).take(batch)] == batch


def test_a_share_by_hand():
    assert Share(1, 2).take("abcd") == "cd"
    assert Share().take("abcd") == "abcd"


def test_losses_are_weighted_and_places_are_counted():
    parts = [Part(1.0, 3.0, {"places": 3.0, "tau": 2.0}), Part(5.0, 1.0, {"places": 1.0, "tau": 4.0, "right_3": 0.5})]
    assert merged(parts) == (2.0, {"places": 4.0, "tau": 2.5, "right_3": 0.5})


def test_one_share_passes_untouched():
    assert merged([Part(0.1, 1.0, {"places": 7.0, "right": 0.3})]) == (0.1, {"places": 7.0, "right": 0.3})


def test_shares_that_judge_nothing_cost_nothing():
    assert merged([Part(0.0, 0.0, {"places": 0.0})] * 2) == (0.0, {"places": 0.0})


def test_a_whole_batch_weighs_one():
    assert weight(Share(), {"places": 9.0}) == 1.0
    assert weight(Share(0, 2), {"places": 9.0}) == 9.0
    assert weight(Share(0, 2), {}) == 1.0


def test_a_training_in_one_piece_says_so():
    loss_of = whole(lambda step: (torch.tensor(float(step)), {}))
    assert loss_of(3, Share())[0] == 3
    with pytest.raises(CrossdraftError, match=r"in one piece; set optim\.accumulate to 1"):
        loss_of(3, Share(0, 2))
