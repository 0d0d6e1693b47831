"""MTP layers without a cache of ours: transformers' own where it has them, and Qwen3.5's written from its layout."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedModel
from transformers.cache_utils import MtpCache
from transformers.modeling_layers import MtpModel

Layer = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""Layer number, embeddings and features [1, n, H], and positions [axes, n] -> outputs [1, n, H]."""


def of_transformers(model: PreTrainedModel, folder: Path) -> Layer:
    """transformers' MTP layers, read by its own loader."""
    text, path = model.config.get_text_config(), folder / "model.safetensors"
    stored = {name.removeprefix("language_model."): x for name, x in load_file(path).items()}
    save_file(stored, path, {"format": "pt"})  # theirs does not find the names that Kimi K2.5 has
    model.config.name_or_path, model.config.dtype = str(folder), model.dtype
    last = rf"layers\.({'|'.join(str(text.num_hidden_layers + k) for k in range(text.num_mtp_layers))})\."
    model._keys_to_ignore_on_load_unexpected = [r"^mtp\.", last]  # upstream's number is the real checkpoint's
    theirs = MtpModel.from_pretrained(model).to(model.dtype).eval()
    theirs.set_experts_implementation("eager")

    def layer(number: int, embeds: Tensor, features: Tensor, positions: Tensor) -> Tensor:
        cache = MtpCache(config=model.config.get_mtp_config())
        return theirs.forward_layer(number, features, positions, cache, inputs_embeds=embeds)

    return layer


def of_qwen3_5(weights: Mapping[str, Tensor], heads: int, size: int, turned: int, section: tuple[int, ...]) -> Layer:
    """Qwen3.5's layer: gated attention with norms of heads, a part of each turned by interleaved M-RoPE, a gated MLP.

    Args:
        weights: those named `mtp.*`.
        heads, size: attention heads, and the width of each.
        turned: numbers of each head that are turned.
        section: frequencies of each axis.
    """
    inner = {name.removeprefix("mtp.layers.0."): value for name, value in weights.items()}

    def norm(rows: Tensor, name: str) -> Tensor:
        return rows * (rows.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * (1 + inner[f"{name}.weight"])

    def linear(rows: Tensor, name: str) -> Tensor:
        return rows @ inner[f"{name}.weight"].T

    def turn(rows: Tensor, positions: Tensor) -> Tensor:
        half = turned // 2
        angles = torch.empty(rows.shape[1], half, dtype=rows.dtype)
        for index in range(half):
            axis = index % 3 if index % 3 and index < 3 * section[index % 3] else 0
            angles[:, index] = positions[axis] * 1e4 ** (-2 * index / turned)
        a, b, rest = rows[..., :half], rows[..., half:turned], rows[..., turned:]
        return torch.cat((a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin(), rest), -1)

    def layer(number: int, embeds: Tensor, features: Tensor, positions: Tensor) -> Tensor:
        pair = norm(embeds[0], "mtp.pre_fc_norm_embedding"), norm(features[0], "mtp.pre_fc_norm_hidden")
        stream = linear(torch.cat(pair, -1), "mtp.fc")
        normed = norm(stream, "input_layernorm")
        query, gate = linear(normed, "self_attn.q_proj").view(-1, heads, 2 * size).chunk(2, -1)
        key, value = (linear(normed, f"self_attn.{name}_proj").view(len(normed), -1, size) for name in "kv")
        query = turn(norm(query, "self_attn.q_norm").transpose(0, 1), positions)
        key = turn(norm(key, "self_attn.k_norm").transpose(0, 1), positions).repeat_interleave(heads // key.shape[1], 0)
        value = value.transpose(0, 1).repeat_interleave(heads // value.shape[1], 0)
        scores = query @ key.transpose(1, 2) / size**0.5
        seen = torch.ones(scores.shape[1:], dtype=torch.bool).tril()
        mixed = scores.masked_fill(~seen, -torch.inf).softmax(-1) @ value
        stream = stream + linear((mixed.transpose(0, 1) * gate.sigmoid()).flatten(1), "self_attn.o_proj")
        normed = norm(stream, "post_attention_layernorm")
        stream = stream + linear(
            F.silu(linear(normed, "mlp.gate_proj")) * linear(normed, "mlp.up_proj"), "mlp.down_proj"
        )
        return norm(stream, "mtp.norm")[None]

    return layer


def stored_mtp(folder: Path) -> dict[str, Tensor]:
    return {name: x.double() for name, x in load_file(folder / "model.safetensors").items() if re.match("mtp", name)}
