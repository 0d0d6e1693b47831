"""A head learns: its loss falls, its drafts become right, its figures are counted right."""

from dataclasses import replace

import pytest
import torch

from crossdraft.errors import CrossdraftError
from crossdraft.heads.networks.eagle3 import Eagle3Config
from crossdraft_lab.train.core.dist import MicroBatch
from crossdraft_lab.train.core.trainer import Stage, Trainer
from crossdraft_lab.train.heads.batches import add_noise
from crossdraft_lab.train.heads.feature_task import FeatureTask, HeadLoss
from tests.train.heads.small import IDS, Counting, counting, recipe, shared_weights, small_head


def data(head, **more):
    return HeadLoss(head, shared_weights().lm_head[head.draft_ids], recipe(**more))


@pytest.mark.parametrize("network", ["eagle", "eagle3"])
def test_a_head_learns_to_count(network, tmp_path):
    loss = {"soft_cross_entropy": 1.0}
    head = small_head(network)
    taught = data(head, network=network, loss=loss)
    before = taught.figures(Counting(), 2)
    Trainer(Stage(tmp_path, "train", taught.recipe.optim), head, taught.loss_of(Counting())).run()
    after = taught.figures(Counting(), 2)
    assert before["tau"] < 1.6
    assert after["right_1"] > 0.9
    assert after["tau"] > 2.3  # of at most 3


def test_levels_before_a_norm_of_all_are_not_scaled():
    """Measured scales there could not be exported; without the norm they are measured, for which a capture is read."""
    settings = {"levels": (1, 2, 3, 4)}
    measured = FeatureTask.measured_settings
    assert measured(None, Eagle3Config, settings | {"norm_before_fc": True}) == {"level_scales": (1.0,) * 4}
    assert measured(None, Eagle3Config, settings | {"norm_before_fc": True, "level_scales": (0.5,) * 4}) == {}
    with pytest.raises(AttributeError, match="_source"):
        measured(None, Eagle3Config, settings | {"norm_before_fc": False})


def test_figures_are_counted_position_by_position():
    """A head whose features hold the token two positions on would be right everywhere but at the end."""
    head = small_head()
    found = data(head).figures(Counting(), 1)
    batch = counting(8)
    draft = head(batch)[0]
    drafted = torch.tensor(IDS)[draft.logits.argmax(-1)]
    # Position t drafts the token two positions on; the last draft with a label stands at position 9.
    right = (drafted[:, 3:10] == batch.tokens[:, 5:12]).float().mean()
    assert found["right_1"] == pytest.approx(float(right))


def test_figures_of_batches_are_weighed_by_their_own_positions():
    """The second batch is too short for offset 2: it does not count in `right_2`."""
    head, short = small_head(), 7

    class Shortened(Counting):
        def batch(self, step, count, share):
            batch = counting(count, step)
            return batch if step == 0 else replace(batch, lengths=batch.starts + short - 4)

    alone, both = (data(head).figures(Shortened(), steps) for steps in (1, 2))
    found = Shortened().batch(1, 8, MicroBatch())
    assert int(found.loss_mask(1).sum()) == 8 * 2
    assert int(found.loss_mask(2).sum()) == 8
    drafts = [[draft.logits.argmax(-1) for draft in head(Shortened().batch(s, 8, MicroBatch()))] for s in (0, 1)]
    for offset in (1, 2):
        right = count = 0
        for step in (0, 1):
            batch = Shortened().batch(step, 8, MicroBatch())
            drafted = torch.tensor(IDS)[drafts[step][offset - 1]]
            for row in range(8):
                for position in range(3, int(batch.lengths[row]) - 1 - offset):
                    count += 1
                    right += int(drafted[row, position] == batch.tokens[row, position + offset + 1])
        assert both[f"right_{offset}"] == pytest.approx(right / count)
    assert alone.keys() == both.keys()


def test_a_figure_without_positions_is_left_out():
    class Short(Counting):
        tokens = 6

        def batch(self, step, count, share):
            batch = counting(count, step)
            return replace(batch, lengths=torch.full_like(batch.lengths, self.tokens))

    class Nothing(Short):
        tokens = 4

    assert data(small_head()).figures(Short(), 2).keys() == {"right_1", "tau"}
    assert data(small_head()).figures(Nothing(), 2) == {}


def test_noise_moves_features_but_not_labels():
    batch = counting(2)
    loud = add_noise(batch, 0.5, seed=0, step=3)
    assert torch.equal(loud.hidden[4], add_noise(batch, 0.5, seed=0, step=3).hidden[4])
    assert not torch.equal(loud.hidden[4], add_noise(batch, 0.5, seed=0, step=4).hidden[4])
    assert not torch.equal(loud.hidden[4], add_noise(batch, 0.5, seed=1, step=3).hidden[4])
    moved = (loud.hidden[4] - batch.hidden[4]).abs()
    for row in (0, 1):
        size = batch.hidden[4][row, :11].std()
        assert 0.4 * size < moved[row].max() <= 0.5 * size
    assert not moved[:, 11].any()  # no features are there
    assert add_noise(batch, 0.0, 0, 0) is batch
    assert not torch.equal(loud.hidden[4] - batch.hidden[4], loud.hidden[3] - batch.hidden[3])


def test_an_answers_noise_is_the_same_in_every_micro_batch():
    batch = counting(4)
    whole = add_noise(batch, 0.5, seed=0, step=3).hidden[4]
    hidden = {layer: value[2:, :8] for layer, value in batch.hidden.items()}
    short = replace(
        batch, tokens=batch.tokens[2:, :8], hidden=hidden, starts=batch.starts[2:], lengths=torch.tensor([8, 8])
    )  # fmt: skip
    padded = {layer: torch.nn.functional.pad(value, (0, 0, 0, 5)) for layer, value in hidden.items()}
    some = add_noise(short, 0.5, seed=0, step=3, first=2).hidden[4]
    assert torch.equal(some, add_noise(replace(short, hidden=padded), 0.5, 0, 3, 2).hidden[4][:, :8])
    part = {layer: value[2:] for layer, value in batch.hidden.items()}
    second = replace(batch, tokens=batch.tokens[2:], hidden=part, lengths=batch.lengths[2:])
    assert torch.equal(add_noise(second, 0.5, seed=0, step=3, first=2).hidden[4], whole[2:])
    assert not torch.equal(add_noise(second, 0.5, seed=0, step=3).hidden[4], whole[2:])


@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_micro_batches_add_up_to_the_loss_of_the_step(noise):
    head = small_head()
    loss_of = data(head, noise=noise).loss_of(Counting())
    whole = loss_of(5, MicroBatch())[0].detach()
    parts = [loss_of(5, MicroBatch(i, 2)) for i in range(2)]
    positions = [figures["places"] for _, figures in parts]
    mean = sum(loss.detach() * n for (loss, _), n in zip(parts, positions, strict=True)) / sum(positions)
    assert float(mean) == pytest.approx(float(whole), abs=1e-5)


def test_an_unknown_loss_is_named_with_the_nearest():
    with pytest.raises(CrossdraftError, match="did you mean 'smooth_l1'"):
        data(small_head(), loss={"smooth_11": 1.0}).loss_of(Counting())
