"""Networks of HiViS, ViSpec, EagleVLM and SpecVLM: what they add to EAGLE."""

from dataclasses import replace

import pytest
import torch

from crossdraft.heads.files import make
from crossdraft.heads.networks.layers import TTTAttention
from crossdraft.heads.networks.specvlm import CHOICES
from crossdraft.heads.registry import NETWORKS
from tests.heads.consistency import HIDDEN, LAYERS, START, VISUAL, shared, some_batch, some_head

SMALL = {"pool": 2, "prune": 2, "conv": 3}  # of five visual positions


@torch.inference_mode()
def test_a_prefix_is_keys_and_values_only():
    """EagleVLM is its layer over visual pairs and those of the text."""
    head = some_head("eaglevlm")
    batch = some_batch(head, 2)
    logits = head(batch)[0].logits
    # Places of the whole prompt: five visual ones, then the text. Each goes with the embedding of the position after.
    embeds = torch.cat((batch.visual[0], head.embed(batch.tokens)), 1)[:, 1:]
    features = torch.cat((batch.visual[LAYERS], batch.hidden[LAYERS][:, :-1]), 1)
    whole = head.logits(head.decode(embeds, features, TTTAttention(head.rotary), 0))
    assert torch.allclose(logits[:, :-1], whole[:, VISUAL:], atol=1e-9)


@torch.inference_mode()
def test_choices_of_one_batch_are_independent():
    """In a batch every question's own choice is masked out of all five: the same as computing it by itself."""
    head = some_head("specvlm", SMALL)
    batch = some_batch(head, 12)
    found = head(batch)
    question = batch.hidden[LAYERS][torch.arange(12), batch.starts - 1]
    assert len(set(head.gate(question).argmax(-1).tolist())) > 2
    for row in range(12):
        alone = head(row_of(batch, row))
        for one, many in zip(alone, found, strict=True):
            assert torch.allclose(one.logits[0], many.logits[row], atol=1e-9)


def row_of(batch, row):
    own = slice(row, row + 1)
    return replace(
        batch,
        tokens=batch.tokens[own],
        starts=batch.starts[own],
        lengths=batch.lengths[own],
        visual_ids=batch.visual_ids[own],
        hidden={layer: rows[own] for layer, rows in batch.hidden.items()},
        visual={layer: rows[own] for layer, rows in batch.visual.items()},
    )


@pytest.mark.parametrize("choice", CHOICES)
def test_a_saturated_gate_trains_its_choice_alone(choice):
    """Of a gate without doubt the soft choice is the hard one."""
    head = some_head("specvlm", SMALL)
    with torch.no_grad():
        head.gate.bias[CHOICES.index(choice)] += 1e4
        batch = some_batch(head)
        hard, soft = head.eval()(batch), head.train()(batch)
    for one, other in zip(hard, soft, strict=True):
        assert torch.allclose(one.logits, other.logits, atol=1e-9)


def test_a_soft_choice_has_gradients_in_the_gate_and_every_compressor():
    head = some_head("specvlm", SMALL).train()
    head.gate.weight.data.zero_()
    head.gate.bias.data.zero_()
    head(some_batch(head, 3))[-1].logits.square().sum().backward()
    learning = [name for name, weight in head.named_parameters() if weight.requires_grad]
    silent = [name for name, weight in head.named_parameters() if weight.requires_grad and not weight.grad.any()]
    assert {"gate.weight", "compressors.3.pointwise.weight", "compressors.4.queries"} <= set(learning)
    assert not silent
    assert all(weight.grad.isfinite().all() for weight in head.parameters() if weight.grad is not None)


@torch.inference_mode()
def test_vispec_is_initialised_as_eagle_with_one_prefix_row():
    """A fresh one tells its text nothing; with a single query there is no row in front either."""
    torch.manual_seed(0)
    tried = some_head("eagle")
    config = NETWORKS["vispec"].config_class(**vars(tried.config), num_q=1)
    head = make("vispec", config, shared()).double().eval()
    head.load_state_dict(tried.state_dict(), strict=False)
    batch = some_batch(head)
    batch = replace(batch, hidden=some_batch(tried).hidden)
    for own, eagles in zip(head(batch), tried(batch), strict=True):
        # Its text stands five positions further on, by angles of single precision.
        assert torch.allclose(own.logits, eagles.logits, rtol=1e-3, atol=1e-3)
    head.global_fc.weight.normal_()
    assert not torch.allclose(head(batch)[0].logits, tried(batch)[0].logits)


@torch.inference_mode()
def test_hivis_depends_on_the_step():
    """A residual changes the predictions of its step and of later ones, and none before."""
    head = some_head("hivis")
    batch = some_batch(head)
    before = head(batch)
    head.residuals[2] += 1
    after = head(batch)
    moved = [not torch.allclose(a.logits, b.logits) for a, b in zip(before, after, strict=True)]
    assert moved == [False, False, True, True]
    assert torch.allclose(
        head.decode(*pair(), TTTAttention(head.rotary), 3), head.decode(*pair(), TTTAttention(head.rotary), 9)
    )


def pair():
    generator = torch.Generator().manual_seed(3)
    return torch.randn(2, 1, 1, HIDDEN, generator=generator, dtype=torch.double)


@pytest.mark.parametrize("network", ["vispec", "eaglevlm", "specvlm", "massv"])
@torch.inference_mode()
def test_the_clip_matters_at_every_step(network):
    head = some_head(network, SMALL)
    if network == "specvlm":
        head.gate.bias[CHOICES.index("pool")] += 1000
    batch = some_batch(head)
    other = replace(batch, visual={layer: rows.flip(1) + 1 for layer, rows in batch.visual.items()})
    for one, two in zip(head(batch), head(other), strict=True):
        assert not torch.allclose(one.logits[:, START:], two.logits[:, START:], atol=1e-4)
