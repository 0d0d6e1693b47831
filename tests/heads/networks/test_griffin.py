"""GRIFFIN's network, by the formulas of the authors' code, and what of its output goes where."""

import pytest
import torch
from torch.nn import functional as F

from crossdraft.heads.networks.layers import TTTAttention
from tests.heads.consistency import HIDDEN, LAYERS, some_batch, some_head


def norm(rows, weight, eps=1e-6):
    return rows / (rows.square().mean(-1, keepdim=True) + eps).sqrt() * weight


def by_definition(weights, embeds, features, steps):
    """`Efc`, `EMLP` and `LlamaDecoderLayer` of model/cnets_griffin_1.py, with the attention of the text given."""
    z = F.linear(torch.cat((embeds, features), -1), weights["fc.fc.weight"], weights["fc.fc.bias"])
    inner = norm(z, weights["fc.post_attention_layernorm.weight"])
    both = torch.cat([norm(part, weights["fc.mlp.input_layernorm.weight"]) for part in (inner, embeds)], -1)
    z = z + F.linear(F.silu(F.linear(both, weights["fc.mlp.up_proj.weight"])), weights["fc.mlp.down_proj.weight"])
    s = z + steps(z)
    x = norm(s, weights["layers.0.post_attention_layernorm.weight"])
    gate, up, down = (weights[f"layers.0.mlp.{name}_proj.weight"] for name in ("gate", "up", "down"))
    out = torch.cat((s, s), -1) + F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)
    return out[..., :HIDDEN], out[..., HIDDEN:]


@torch.inference_mode()
def test_both_outputs_are_those_of_the_authors_formulas():
    head = some_head("griffin")
    batch = some_batch(head, 2)
    embeds = F.pad(head.embed(batch.tokens)[:, 1:], (0, 0, 0, 1))
    attention = head.layers[0].self_attn
    predict, regress = by_definition(
        head.state_dict(), embeds, batch.hidden[LAYERS], lambda z: attention(z, TTTAttention(head.rotary))
    )
    first = head(batch)[0]
    assert torch.allclose(first.logits, head.lm_head(predict), atol=1e-9)
    assert torch.allclose(first.features, regress, atol=1e-9)


@torch.inference_mode()
def test_the_second_half_alone_is_fed_back(monkeypatch):
    """Other logits change nothing of the next step; the planted bug, the first half fed back, does."""
    head = some_head("griffin")
    batch = some_batch(head)
    second = head(batch)[1].logits
    monkeypatch.setattr(head, "logits", lambda outputs: head.lm_head(2 * outputs[..., :HIDDEN]))
    assert torch.allclose(head(batch)[1].logits, 2 * second)
    monkeypatch.setattr(head, "fed_back", lambda outputs: outputs[..., :HIDDEN])
    assert not torch.allclose(head(batch)[1].logits, 2 * second)


def test_every_weight_learns_by_its_recipes_losses():
    head = some_head("griffin")
    predictions = head(some_batch(head, 2))
    loss = sum(p.logits.logsumexp(-1).mean() + p.features.square().mean() for p in predictions)
    loss.backward()
    learning = {name: weight.grad for name, weight in head.named_parameters() if weight.requires_grad}
    assert "lm_head.weight" not in learning
    assert all(float(grad.abs().sum()) > 0 for grad in learning.values())
    assert sum(weight.numel() for weight in head.stored().values()) == pytest.approx(
        sum(grad.numel() for grad in learning.values())
    )
