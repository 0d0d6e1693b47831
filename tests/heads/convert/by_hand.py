"""Other projects' heads as their papers write them, in plain torch on the tensors of a file: none of our modules."""

import torch
from torch import Tensor


def rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * weight


def rotate(x: Tensor, positions: Tensor, theta: float) -> Tensor:
    """Rotary positions, pair by pair: channel i turns with channel i + d/2."""
    half = x.shape[-1] // 2
    angle = positions[:, None, None] / theta ** (torch.arange(half) * 2 / x.shape[-1])
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()), -1)


def attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    """[n, heads, d] over [m, kv_heads, d], [n, m] who sees whom -> [n, heads · d]; head by head."""
    groups, mixed = query.shape[1] // key.shape[1], []
    for head in range(query.shape[1]):
        scores = query[:, head] @ key[:, head // groups].T / query.shape[-1] ** 0.5
        mixed.append(scores.masked_fill(~mask, -torch.inf).softmax(-1) @ value[:, head // groups])
    return torch.cat(mixed, -1)


def parted(x: Tensor, config: dict) -> Tensor:
    return x.reshape(len(x), -1, config["head_dim"])


def mlp(x: Tensor, t: dict[str, Tensor], layer: str) -> Tensor:
    gate = x @ t[f"{layer}.mlp.gate_proj.weight"].T
    return (gate * torch.sigmoid(gate) * (x @ t[f"{layer}.mlp.up_proj.weight"].T)) @ t[
        f"{layer}.mlp.down_proj.weight"
    ].T


def layered(
    x: Tensor, into: Tensor, t: dict[str, Tensor], layer: str, config: dict, positions: Tensor | None = None
) -> Tensor:
    """A causal decoder layer: the stream x [n, H], its attention fed with `into`; biases where the file has some."""
    positions = torch.arange(len(x)) if positions is None else positions
    theta = config["rope_parameters"]["rope_theta"] if "rope_parameters" in config else config["rope_theta"]
    q, k, v = (
        parted(
            into @ t[f"{layer}.self_attn.{name}_proj.weight"].T + t.get(f"{layer}.self_attn.{name}_proj.bias", 0),
            config,
        )
        for name in "qkv"
    )
    mask = torch.ones(len(x), len(x)).tril().bool()
    mixed = attention(rotate(q, positions, theta), rotate(k, positions, theta), v, mask)
    x = x + mixed @ t[f"{layer}.self_attn.o_proj.weight"].T
    return x + mlp(rms(x, t[f"{layer}.post_attention_layernorm.weight"], config["rms_norm_eps"]), t, layer)


def eagle(embeds: Tensor, features: Tensor, t: dict[str, Tensor], config: dict) -> Tensor:
    """EAGLE-1: pairs [n, H] -> the next feature after each, [n, H]."""
    x = torch.cat((embeds, features), -1) @ t["fc.weight"].T + t["fc.bias"]
    return layered(x, x, t, "layers.0", config)


def eagle3(embeds: Tensor, features: Tensor, t: dict[str, Tensor], config: dict, layer: str = "midlayer") -> Tensor:
    """EAGLE-3: pairs of embeddings and g [n, H] -> a [n, H], which is the next g."""
    eps = config["rms_norm_eps"]
    into = torch.cat(
        (rms(embeds, t[f"{layer}.input_layernorm.weight"], eps), rms(features, t[f"{layer}.hidden_norm.weight"], eps)),
        -1,
    )
    return layered(features, into, t, layer, config)


def dflash(rows: Tensor, target: Tensor, t: dict[str, Tensor], config: dict) -> Tensor:
    """DFlash: a block [b, H] after the target's features [n, k·H] -> [b, H] for the target's output layer."""
    eps, theta = config["rms_norm_eps"], config["rope_parameters"]["rope_theta"]
    known = rms(target @ t["fc.weight"].T, t["hidden_norm.weight"], eps)
    positions = torch.arange(len(known) + len(rows))
    for index in range(config["num_hidden_layers"]):
        layer = f"layers.{index}"
        normed = rms(rows, t[f"{layer}.input_layernorm.weight"], eps)
        both = torch.cat((known, normed))
        q, k, v = (
            parted(x @ t[f"{layer}.self_attn.{name}_proj.weight"].T, config)
            for name, x in (("q", normed), ("k", both), ("v", both))
        )
        q = rotate(rms(q, t[f"{layer}.self_attn.q_norm.weight"], eps), positions[len(known) :], theta)
        k = rotate(rms(k, t[f"{layer}.self_attn.k_norm.weight"], eps), positions, theta)
        mixed = attention(q, k, v, torch.ones(len(rows), len(both)).bool())
        rows = rows + mixed @ t[f"{layer}.self_attn.o_proj.weight"].T
        rows = rows + mlp(rms(rows, t[f"{layer}.post_attention_layernorm.weight"], eps), t, layer)
    return rms(rows, t["norm.weight"], eps)
