"""A head learns: its loss falls, its guesses come true, its figures are counted right."""

import pytest
import torch

from crossdraft.errors import CrossdraftError
from crossdraft.train.heads.learn import Teaching
from crossdraft.train.heads.lessons import noisy
from crossdraft.train.loop import optimise
from crossdraft.train.share import Share
from crossdraft.train.stage import Stage
from tests.train.heads.small import IDS, Counting, counting, recipe, small_head, tables


def teaching(head, **more):
    return Teaching(head, tables().head[head.draft_ids], recipe(**more))


@pytest.mark.parametrize("network", ["eagle", "eagle3"])
def test_a_head_learns_to_count(network, tmp_path):
    loss = {"soft_cross_entropy": 1.0}
    head = small_head(network)
    taught = teaching(head, network=network, loss=loss)
    before = taught.figures(Counting(), 2)
    optimise(Stage(tmp_path, "train", taught.recipe.optim), head, taught.loss_of(Counting()))
    after = taught.figures(Counting(), 2)
    assert before["tau"] < 1.6
    assert after["right_1"] > 0.9
    assert after["tau"] > 2.3  # of at most 3


def test_figures_are_counted_place_by_place():
    """A head that is told the answer two places on by its own features would be right everywhere but at the end."""
    head = small_head()
    found = teaching(head).figures(Counting(), 1)
    lesson = counting(8)
    guess = head(lesson)[0]
    said = torch.tensor(IDS)[guess.logits.argmax(-1)]
    # Place t guesses the token two places on; the last guess there is anything to hold against stands at place 9.
    right = (said[:, 3:10] == lesson.tokens[:, 5:12]).float().mean()
    assert found["right_1"] == pytest.approx(float(right))


def test_noise_moves_features_but_not_what_they_are_judged_by():
    lesson = counting(2)
    loud = noisy(lesson, 0.5, step=3, seed=0)
    assert torch.equal(loud.hidden[4], noisy(lesson, 0.5, step=3, seed=0).hidden[4])
    assert not torch.equal(loud.hidden[4], noisy(lesson, 0.5, step=4, seed=0).hidden[4])
    moved = (loud.hidden[4] - lesson.hidden[4]).abs()
    assert 0 < moved.max() <= 0.5 * lesson.hidden[4].std()
    assert noisy(lesson, 0.0, 0, 0) is lesson


def test_shares_of_a_step_come_to_the_loss_of_the_whole():
    head = small_head()
    loss_of = teaching(head).loss_of(Counting())
    whole = loss_of(5, Share())[0].detach()
    parts = [loss_of(5, Share(i, 2)) for i in range(2)]
    places = [figures["places"] for _, figures in parts]
    mean = sum(loss.detach() * n for (loss, _), n in zip(parts, places, strict=True)) / sum(places)
    assert float(mean) == pytest.approx(float(whole), abs=1e-5)


def test_a_loss_that_nobody_knows_is_named_with_the_nearest():
    with pytest.raises(CrossdraftError, match="did you mean 'smooth_l1'"):
        teaching(small_head(), loss={"smooth_11": 1.0}).loss_of(Counting())
