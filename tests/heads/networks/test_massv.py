"""MASSV's small language model: what it reads, and what it cannot know."""

from dataclasses import replace

import pytest
import torch

from crossdraft.errors import CrossdraftError
from crossdraft.heads.networks.autoregressive import Autoregressive
from crossdraft.heads.networks.layers import TTTAttention
from tests.heads.consistency import some_batch, some_head

SMALL = {"width": 24, "pool": 2}  # five visual positions become three rows


@pytest.mark.parametrize("layers", [1, 2, 3])
@torch.inference_mode()
def test_it_is_a_language_model_over_visual_rows_and_the_whole_text(layers):
    head = some_head("massv", SMALL, layers=layers)
    batch = some_batch(head, 2)
    rows = head.projector(batch.visual[0])
    visual = torch.stack((rows[:, :2].mean(1), rows[:, 2:4].mean(1), rows[:, 4]), 1)  # the rest has its own
    stream = torch.cat((visual, head.narrow(head.embed(batch.tokens))), 1)
    attend = TTTAttention(head.rotary)
    for number, layer in enumerate(head.layers):
        stream = layer(stream, attend, number)
    whole = head.logits(stream[:, visual.shape[1] + 1 :])
    assert torch.allclose(head(batch)[0].logits[:, :-1], whole, atol=1e-9)


@pytest.mark.parametrize("sees", [True, False])
@torch.inference_mode()
def test_later_offsets_are_offset_1_of_later_positions(sees):
    """A training-time test of several steps would compute the same logits at every position."""
    head = some_head("massv", SMALL, sees=sees)
    batch = some_batch(head, 2)
    found, again = head(batch), Autoregressive.forward(head, batch)
    assert [prediction.offset for prediction in found] == [prediction.offset for prediction in again] == [1, 2, 3, 4]
    for one, other in zip(found, again, strict=True):
        positions = batch.loss_mask(one.offset)
        assert positions.any()
        assert torch.allclose(one.logits[positions], other.logits[positions], atol=1e-9)


def test_training_counts_every_token_once():
    head = some_head("massv", SMALL)
    batch = some_batch(head)
    taught, first = head.train()(batch), head.eval()(batch)[0]
    assert [prediction.offset for prediction in taught] == [1]
    assert torch.equal(taught[0].logits, first.logits)
    taught[0].logits.square().sum().backward()
    learning = {name: weight for name, weight in head.named_parameters() if weight.requires_grad}
    assert "projector.1.weight" in learning
    assert all(weight.grad is not None and weight.grad.any() for weight in learning.values())


@torch.inference_mode()
def test_massv_reads_nothing_behind_the_vision_encoder():
    head = some_head("massv", SMALL)
    batch = some_batch(head)
    assert (head.reads, head.visual_reads) == ((), (0,))
    changed = replace(batch, hidden={layer: torch.ones(1, batch.tokens.shape[1], 32) for layer in range(7)})
    assert torch.equal(head(batch)[0].logits, head(changed)[0].logits)


@torch.inference_mode()
def test_the_text_only_control_differs_in_visual_input_alone():
    seeing, text_only = some_head("massv", SMALL), some_head("massv", SMALL, sees=False)
    assert text_only.visual_reads == ()
    missing = seeing.stored().keys() - text_only.stored().keys()
    assert missing == {f"projector.{name}" for name in ("0.weight", "1.weight", "1.bias", "3.weight", "3.bias")}
    batch = some_batch(text_only)
    changed = replace(batch, hidden={layer: rows + 1 for layer, rows in batch.hidden.items()})
    assert torch.equal(text_only(batch)[0].logits, text_only(changed)[0].logits)
    text_only.load_state_dict(seeing.state_dict(), strict=False)
    unseen = replace(some_batch(seeing), visual={}, visual_ids=None)
    assert torch.equal(text_only(batch)[0].logits, seeing(unseen)[0].logits)


@pytest.mark.parametrize("wrong", [{"width": 0}, {"layers": 0}, {"pool": 0}])
def test_sizes_below_one_are_refused(wrong):
    with pytest.raises(CrossdraftError, match="at least 1"):
        some_head("massv", **{**SMALL, **wrong})
