"""A glance: nothing at first, then what it sees, each frame's features in their position."""

import pytest
import torch
from torch.nn import functional as F

from crossdraft.errors import CrossdraftError
from crossdraft.heads.glance.network import Glance, GlanceConfig
from crossdraft.heads.networks.base import SharedWeights
from crossdraft.heads.networks.train_batch import TrainBatch

H, E, V, IDS = 8, 6, 20, (3, 5, 11)
TABLES = SharedWeights(torch.randn(V, H), torch.randn(V, H))


def glance(**changes) -> Glance:
    known = {"hidden_size": H, "vocab_size": V, "num_layers": 2, "draft_ids": IDS, "visual_size": E, "tower": "x"}
    torch.manual_seed(0)
    return Glance(GlanceConfig(**known | {"patches": 4, "heads": 2, "frames": 2} | changes), TABLES)


def random_glance(**changes) -> Glance:
    """One with random weights, so that its layers are not the identity."""
    made = glance(**changes)
    with torch.no_grad():
        for weight in made.parameters():
            weight.add_(torch.randn_like(weight), alpha=0.3)
    return made


def test_it_is_initialised_as_the_models_own_output():
    features, visual = torch.randn(3, 5, H), glance().keys_values(torch.randn(3, 8, E))
    assert torch.equal(glance().logits(features, visual), features @ TABLES.lm_head[list(IDS)].T)


@torch.no_grad()
def test_one_layer_by_hand():
    made, feature, visual = random_glance(heads=1), torch.randn(H), torch.randn(8, E)
    layer = made.layers[0]
    norm = lambda x, weight: x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight  # noqa: E731
    rows = norm(visual, layer.see_norm.weight) + layer.places
    keys, values = rows @ layer.k_proj.weight.T, rows @ layer.v_proj.weight.T
    query = norm(feature, layer.ask_norm.weight) @ layer.ask_proj.weight.T
    attention = ((keys @ query) / H**0.5).softmax(0) @ values
    state = feature + attention @ layer.o_proj.weight.T
    inner = norm(state, layer.mlp_norm.weight)
    mlp = layer.mlp
    gated = F.silu(inner @ mlp.gate_proj.weight.T) * (inner @ mlp.up_proj.weight.T)
    expected = made.lm_head(state + gated @ mlp.down_proj.weight.T)
    logits = made.logits(feature[None, None], made.keys_values(visual[None]))[0, 0]
    assert torch.allclose(logits, expected, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("layers", [1, 2])
def test_training_logits_are_those_of_each_position(layers):
    made = random_glance(layers=layers)
    hidden, visual = torch.randn(2, 7, H), torch.randn(2, 8, E)
    batch = TrainBatch(
        torch.zeros(2, 7, dtype=torch.long), {2: hidden}, torch.tensor([3, 3]), torch.tensor([7, 6]), {0: visual}
    )
    (prediction,) = made(batch)
    assert prediction.offset == 0
    for row in range(2):
        for position in range(7):
            alone = made.logits(hidden[row : row + 1, position : position + 1], made.keys_values(visual[row : row + 1]))
            assert torch.allclose(prediction.logits[row, position], alone[0, 0], atol=1e-5)


@torch.no_grad()
def test_the_position_of_a_feature_matters():
    made, feature, visual = random_glance(), torch.randn(1, 1, H), torch.randn(1, 8, E)
    rotate = made.logits(feature, made.keys_values(visual.flip(1)))
    assert not torch.allclose(made.logits(feature, made.keys_values(visual)), rotate, atol=1e-3)


@pytest.mark.parametrize("shape", [(1, 7, E), (1, 8, E + 1)])
def test_another_number_of_features_is_refused(shape):
    with pytest.raises(CrossdraftError, match="2 frames of 4 features, 8 x 6 in all; got"):
        glance().keys_values(torch.zeros(shape))


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"frames": 0}, "frames is 0; it must be at least 1"), ({"heads": 3}, "cannot be shared by 3 heads")],
)
def test_impossible_settings_are_refused(changes, message):
    with pytest.raises(CrossdraftError, match=message):
        glance(**changes)
