"""Networks of HiViS, ViSpec and EagleVLM: what they add to EAGLE."""

from dataclasses import replace

import pytest
import torch

from crossdraft.errors import CrossdraftError
from crossdraft.heads.files import make
from crossdraft.heads.networks.layers import TTTAttention
from crossdraft.heads.networks.vispec import Resampler
from crossdraft.heads.registry import NETWORKS
from tests.heads.consistency import HIDDEN, LAYERS, START, VISUAL, shared, some_batch, some_head

SMALL = {"pool": 2}  # of five visual positions


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


@pytest.mark.parametrize("network", ["vispec", "eaglevlm"])
@torch.inference_mode()
def test_the_clip_matters_at_every_step(network):
    head = some_head(network, SMALL)
    batch = some_batch(head)
    other = replace(batch, visual={layer: rows.flip(1) + 1 for layer, rows in batch.visual.items()})
    for one, two in zip(head(batch), head(other), strict=True):
        assert not torch.allclose(one.logits[:, START:], two.logits[:, START:], atol=1e-4)


@torch.no_grad()
def test_a_resampler_by_hand():
    """A query that matches one row alone finds that row; one that matches none finds the mean."""
    resampler = Resampler(2, 2, 1).double()
    for layer in (resampler.k_proj, resampler.v_proj, resampler.o_proj):
        torch.nn.init.eye_(layer.weight)
    resampler.queries.copy_(torch.tensor([[1000.0, 0.0], [0.0, 0.0]]))
    rows = resampler(torch.tensor([[[0.0, 4.0], [3.0, 1.0], [0.0, 1.0]]], dtype=torch.double))
    assert torch.allclose(rows, torch.tensor([[[3.0, 1.0], [1.0, 2.0]]], dtype=torch.double))


def test_a_resampler_of_heads_that_do_not_divide_the_features_is_refused():
    with pytest.raises(CrossdraftError, match="3 heads"):
        Resampler(8, 2, 3)


@torch.inference_mode()
def test_vispec_rows_stand_at_the_last_visual_positions():
    """Three of four queries are rows of the prefix; of two visual positions the first is shared."""
    head = some_head("vispec", num_q=4)
    batch = some_batch(head)
    ids = torch.zeros(1, VISUAL + 1, dtype=torch.long)
    assert head.prefix(batch.visual, ids).positions.tolist() == [2, 3, 4]
    two = {layer: rows[:, :2] for layer, rows in batch.visual.items()}
    assert head.prefix(two, ids[:, :3]).positions.tolist() == [0, 0, 1]
