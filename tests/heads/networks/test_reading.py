"""Networks of EAGLE-3 and DFlash on a batch."""

import pytest
import torch

from crossdraft.errors import CrossdraftError
from crossdraft.heads.files import load_head, make, save_head
from crossdraft.heads.networks.dflash import spread
from crossdraft.heads.networks.train_batch import TrainBatch
from crossdraft.heads.registry import NETWORKS
from tests.heads.consistency import HIDDEN, LONG, VALUES, shared, some_batch, some_head

ALL = ("eagle3", "dflash")
POSITION = 6  # from where drafts leave in these tests


def changed(batch, hidden_from, tokens_from):
    """The batch with other features from one position on, and other tokens from another."""
    hidden = {layer: rows.clone() for layer, rows in batch.hidden.items()}
    for rows in hidden.values():
        rows[:, hidden_from:] += 1
    tokens = batch.tokens.clone()
    tokens[:, tokens_from:] = 43 - tokens[:, tokens_from:]  # other ids among 3 … 39, 4 … 40
    return TrainBatch(tokens, hidden, batch.starts, batch.lengths)


def logits_at(head, batch):
    return torch.stack([prediction.logits[0, POSITION] for prediction in head(batch)])


@pytest.mark.parametrize("network", ALL)
@torch.inference_mode()
def test_a_training_prediction_depends_on_no_more_than_a_draft_has(network):
    """Features up to its position; of tokens the root and those drafted before (a block: the root)."""
    head = some_head(network)
    batch = some_batch(head)
    before = logits_at(head, batch)
    behind = changed(batch, POSITION + 1, LONG)
    assert torch.equal(logits_at(head, behind), before)
    for offset in range(1, 5):
        known = POSITION + 1 + (offset if network != "dflash" else 1)
        other = logits_at(head, changed(batch, POSITION + 1, known))
        assert torch.allclose(other[offset - 1], before[offset - 1], atol=1e-12)
    assert not torch.allclose(logits_at(head, changed(batch, POSITION, LONG)), before)
    assert not torch.allclose(logits_at(head, changed(batch, POSITION + 1, POSITION + 1)), before)


@pytest.mark.parametrize("network", ALL)
def test_a_saved_head_is_loaded_unchanged_and_holds_nothing_of_the_target(network, tmp_path):
    head = make(network, config(network), shared()).float()
    head.restore({name: (value + 0.1).bfloat16().float() for name, value in head.stored().items()})
    save_head(tmp_path, head, network, "of this target")
    again = load_head(tmp_path, shared(), "of this target").double()
    batch = some_batch(head)
    for one, other in zip(head.double()(batch), again(batch), strict=True):
        assert torch.allclose(one.logits, other.logits, atol=1e-4)  # the borrowed rows were float32
    assert not [name for name in head.stored() if name.startswith(("target.", "embeddings"))]
    assert ("lm_head.weight" in head.stored()) == (network == "eagle3")


def config(network, **more):
    kind = NETWORKS[network].config_class
    values = VALUES | more
    return kind(**{name: value for name, value in values.items() if name in kind.__dataclass_fields__})


# -- DFlash ------------------------------------------------------------------------------------------------------------


def batch_of(rows, long, start):
    head = some_head("dflash", anchors=3)
    generator = torch.Generator().manual_seed(4)
    tokens = torch.randint(3, 40, (rows, long), generator=generator)
    hidden = {layer: torch.randn(rows, long, HIDDEN, generator=generator, dtype=torch.double) for layer in head.reads}
    lengths = torch.tensor([long - row for row in range(rows)])
    return head, TrainBatch(tokens, hidden, torch.full((rows,), start), lengths)


def test_anchors_are_evenly_spread_over_the_answer_outside_training():
    head, batch = batch_of(2, 14, 4)
    valid = head(batch)[0].valid
    # Compared at offset 1: positions 3 … 11 and, one token shorter, 3 … 10.
    assert valid.nonzero().tolist() == [[0, 5], [0, 8], [0, 11], [1, 5], [1, 8], [1, 10]]
    assert torch.equal(head(batch)[3].valid, valid)


def test_training_anchors_are_random_positions_of_the_answer():
    head, batch = batch_of(2, 14, 4)
    head.train()
    torch.manual_seed(0)
    drawn = [head(batch)[0].valid for _ in range(30)]
    assert all((valid.sum(1) == 3).all() and not (valid & ~batch.loss_mask(1)).any() for valid in drawn)
    assert torch.equal(torch.stack(drawn).any(0), batch.loss_mask(1))


def test_an_answer_shorter_than_its_anchors_has_fewer():
    head, batch = batch_of(1, 7, 4)  # two positions are compared
    prediction = head(batch)[0]
    assert prediction.valid.nonzero().tolist() == [[0, 3], [0, 4]]


@torch.inference_mode()
def test_blocks_of_one_pass_do_not_attend_to_each_other():
    head, batch = batch_of(2, 14, 4)
    every = some_head("dflash", anchors=50)
    for few, all_ in zip(head(batch), every(batch), strict=True):
        assert torch.allclose(few.logits[few.valid], all_.logits[few.valid], atol=1e-12)


def test_layers_are_spread_over_the_depth():
    assert spread(7) == (1, 2, 4, 5, 6)
    assert spread(36) == (1, 10, 18, 26, 35)
    assert spread(3) == (1, 2)
    assert spread(1) == (1,)
    with pytest.raises(CrossdraftError, match="cannot read layer 9"):
        config("dflash", read_layers=(2, 9))
