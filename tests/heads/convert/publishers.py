"""Other projects' heads as their own code runs them, with the layers of `transformers`: each reads a file's config.

Logits [2 drafts, V or D] of a draft after `POSITION`, for the first text of a batch.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, Qwen3Config
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRMSNorm, LlamaRotaryEmbedding
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer, Qwen3RMSNorm, Qwen3RotaryEmbedding
from transformers.models.qwen3.modeling_qwen3 import apply_rotary_pos_emb as rotated

from crossdraft.heads.networks.train_batch import TrainBatch
from tests.heads.convert import by_hand
from tests.heads.convert.folders import DEEP, LEVELS, host

POSITION = 9
Config = Mapping[str, Any]


def levels(config: Config) -> list[int]:
    """vLLM's numbers, or ModelOpt's and AngelSlim's, which are outputs."""
    outputs = (config.get("eagle_config") or {}).get(LEVELS) or config.get("aux_hidden_states_layer_ids")
    return config.get(LEVELS) or [k + 1 for k in outputs or (1, DEEP // 2 - 1, DEEP - 4)]


def causal(length: int, config: Any) -> Tensor:
    """[1, 1, n, n] mask to add, with a window where the config has one."""
    places = torch.arange(length)
    distance = places[:, None] - places
    seen = distance >= 0
    slides = (getattr(config, "layer_types", None) or [""])[0] == "sliding_attention"
    if slides or getattr(config, "use_sliding_window", False):
        seen &= distance < 3
    return torch.zeros(1, 1, length, length).masked_fill(~seen, -torch.inf)


def llama_layer(config: Config, tensors: Mapping[str, Tensor], wide: bool) -> tuple[LlamaDecoderLayer, Any, Any]:
    """Llama's layer with those weights (what the file lacks stays random), its rotary table and config."""
    plain = {key: value for key, value in config.items() if key not in ("architectures", "rope_scaling")}
    settings = LlamaConfig(**plain, rope_scaling=config.get("rope_scaling"), attn_implementation="eager")
    layer = LlamaDecoderLayer(settings, 0)
    for name in ("q_proj", "k_proj", "v_proj") if wide else ():
        old = getattr(layer.self_attn, name)
        setattr(layer.self_attn, name, nn.Linear(2 * old.in_features, old.out_features, old.bias is not None))
    layer.load_state_dict(dict(tensors), strict=False)
    return layer.eval(), LlamaRotaryEmbedding(settings), settings


def eagle(config: Config, t: Mapping[str, Tensor], batch: TrainBatch) -> Tensor:
    """EAGLE-1: Llama's layer without its first norm."""
    parts = {name.removeprefix("layers.0."): value for name, value in t.items() if name.startswith("layers.0.")}
    layer, rotary, settings = llama_layer(config, parts, wide=False)
    layer.input_layernorm = nn.Identity()
    features, found = batch.hidden[DEEP][:1, : POSITION + 1], []
    for _ in range(2):
        n = features.shape[1]
        pair = torch.cat((host().shared.embeddings[batch.tokens[:1, 1 : n + 1]], features), -1)
        x = pair @ t["fc.weight"].T + t["fc.bias"]
        out = layer(x, causal(n, settings), position_embeddings=rotary(x, torch.arange(n)[None]))
        found.append(out[0, -1] @ host().shared.lm_head.T)
        features = torch.cat((features, out[:, -1:]), 1)
    return torch.stack(found)


def eagle3(config: Config, t: Mapping[str, Tensor], batch: TrainBatch) -> Tensor:
    """EAGLE-3 and 3.1, as vLLM and AngelSlim read their settings."""
    prefix = "midlayer." if "midlayer.hidden_norm.weight" in t else "layers.0."
    parts = {name.removeprefix(prefix): value for name, value in t.items() if name.startswith(prefix)}
    layer, rotary, settings = llama_layer(config, parts, wide=True)

    def norm(weight: Tensor, x: Tensor) -> Tensor:
        made = LlamaRMSNorm(len(weight), settings.rms_norm_eps)
        made.load_state_dict({"weight": weight})
        return made(x)

    captured = [batch.hidden[level][:1, : POSITION + 1] for level in levels(config)]
    if config.get("fc_norm"):
        captured = [norm(t[f"fc_norm.{level}.weight"], x) for level, x in enumerate(captured)]
    joined = torch.cat(captured, -1)
    joined = norm(t["input_norm.weight"], joined) if config.get("norm_before_fc") else joined
    features, found = joined @ t["fc.weight"].T, []
    for _ in range(2):
        n = features.shape[1]
        normed = norm(parts["hidden_norm.weight"], features)
        residual = normed if config.get("norm_before_residual") else features
        embeds = host().shared.embeddings[batch.tokens[:1, 1 : n + 1]]
        pair = torch.cat((layer.input_layernorm(embeds), normed), -1)
        places = rotary(pair, torch.arange(n)[None])
        x = residual + layer.self_attn(pair, places, causal(n, settings))[0]
        x = (x + layer.mlp(layer.post_attention_layernorm(x)))[:, -1:]
        found.append(norm(t["norm.weight"], x)[0, 0] @ t["lm_head.weight"].T)
        features = torch.cat((features, norm(t["norm.weight"], x) if config.get("norm_output") else x), 1)
    return torch.stack(found)


def peagle(config: Config, t: Mapping[str, Tensor], batch: TrainBatch) -> Tensor:
    """P-EAGLE, as vLLM runs it: the pairs of a text and one mask behind them, in one causal pass."""
    prefix = "midlayer." if "midlayer.hidden_norm.weight" in t else "layers.0."
    mask = next(config[key] for key in ("mask_token_id", "ptd_token_id", "pard_token") if key in config)
    ids = torch.cat((batch.tokens[:1, 1 : POSITION + 2], torch.tensor([[mask]])), 1)
    stream = t.get("embed_tokens.weight", host().shared.embeddings)[ids]
    captured = torch.cat([batch.hidden[level][:1, : POSITION + 1] for level in levels(config)], -1)
    captured, eps = torch.cat((captured, t["mask_hidden"].reshape(1, 1, -1)), 1), config["rms_norm_eps"]
    if config.get("fc_norm"):
        parts = captured.chunk(len(levels(config)), -1)
        captured = torch.cat([by_hand.rms(x, t[f"fc_norm.{k}.weight"], eps) for k, x in enumerate(parts)], -1)
    features = captured @ t["fc.weight"].T
    for index in range(config["num_hidden_layers"]):
        start = f"layers.{index}." if index else prefix
        parts = {name.removeprefix(start): value for name, value in t.items() if name.startswith(start)}
        layer, rotary, settings = llama_layer(config, parts, wide=index == 0)
        places = rotary(stream, torch.arange(ids.shape[1])[None])
        if index:
            features = layer(features, causal(ids.shape[1], settings), position_embeddings=places)
            continue
        normed = by_hand.rms(features, parts["hidden_norm.weight"], eps)
        residual = normed if config.get("norm_before_residual") else features
        pair = torch.cat((layer.input_layernorm(stream), normed), -1)
        x = residual + layer.self_attn(pair, places, causal(ids.shape[1], settings))[0]
        features = x + layer.mlp(layer.post_attention_layernorm(x))
    return by_hand.rms(features[0, -2:], t["norm.weight"], eps) @ t["lm_head.weight"].T


def speculators(config: Config, t: Mapping[str, Tensor], batch: TrainBatch) -> Tensor:
    """As vLLM reads the file: the layer's settings, and the head's over them."""
    outer = {key: value for key, value in config.items() if key != "transformer_layer_config"}
    both = {"norm_before_residual": True, **config["transformer_layer_config"], **outer, "model_type": "llama"}
    return eagle3(both, t, batch)


def dflash(config: Config, t: Mapping[str, Tensor], batch: TrainBatch) -> Tensor:
    """DFlash, as z-lab's model.py and vLLM read its config, with Qwen3's modules."""
    block = {**config, **(config.get("dflash_config") or {})}
    settings = Qwen3Config(
        **{key: value for key, value in config.items() if key != "architectures"}, attn_implementation="eager"
    )

    def norm(name: str, x: Tensor) -> Tensor:
        made = Qwen3RMSNorm(x.shape[-1], settings.rms_norm_eps)
        made.load_state_dict({"weight": t[f"{name}.weight"]})
        return made(x)

    front = batch.visual if block.get("whole_prompt", True) else {k: x[:, :0] for k, x in batch.visual.items()}
    states = [
        torch.cat((front[k + 1], batch.hidden[k + 1][:, : POSITION + 1]), 1)[:1] for k in block["target_layer_ids"]
    ]
    known = norm("hidden_norm", torch.cat(states, -1) @ t["fc.weight"].T)
    size = block.get("block_size", 16)
    ids = torch.tensor([[int(batch.tokens[0, POSITION + 1]), *[block["mask_token_id"]] * (size - 1)]])
    x, start = host().shared.embeddings[ids] * block.get("input_embedding_scale", 1), known.shape[1]
    cos, sin = Qwen3RotaryEmbedding(settings)(x, torch.arange(start + size)[None])
    for index in range(settings.num_hidden_layers):
        layer = Qwen3DecoderLayer(settings, index)
        prefix = f"layers.{index}."
        layer.load_state_dict({k.removeprefix(prefix): v for k, v in t.items() if k.startswith(prefix)}, strict=False)
        a, normed = layer.self_attn, layer.input_layernorm(x)
        both = torch.cat((known, normed), 1)
        q = a.q_norm(a.q_proj(normed).unflatten(-1, (-1, a.head_dim))).transpose(1, 2)
        k = a.k_norm(a.k_proj(both).unflatten(-1, (-1, a.head_dim))).transpose(1, 2)
        v = a.v_proj(both).unflatten(-1, (-1, a.head_dim)).transpose(1, 2)
        q, k = rotated(q, q, cos[:, start:], sin[:, start:])[0], rotated(k, k, cos, sin)[0]
        places = torch.arange(start + size)
        distance = places[start:, None] - places
        seen = torch.ones_like(distance, dtype=torch.bool)
        slides = settings.layer_types[index] == "sliding_attention"
        if slides:
            seen &= distance.abs() < settings.sliding_window
        if next((one for one in (block.get("is_causal"), block.get("causal")) if one is not None), slides):
            seen &= distance >= 0
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, seen[None, None], enable_gqa=True)
        x = x + a.o_proj(mixed.transpose(1, 2).flatten(2))
        x = x + layer.mlp(layer.post_attention_layernorm(x))
    first = 0 if block.get("sample_from_anchor", "DSpark" in (config.get("architectures") or [""])[0]) else 1
    rows = t.get("lm_head.weight", host().shared.lm_head[: config["vocab_size"]])
    logits = norm("norm", x)[0, first : first + 2] @ rows.T * block.get("output_multiplier", 1)
    if block.get("markov_rank"):  # slot by slot, as vLLM samples: the token before is the root, then the first draft
        for slot, before in enumerate(batch.tokens[0, POSITION + 1 : POSITION + 3]):
            logits[slot] += t["markov_head.markov_w2.weight"] @ t["markov_head.markov_w1.weight"][before]
    cap = block.get("final_logit_softcapping")
    return torch.tanh(logits / cap) * cap if cap else logits


def medusa(config: Config, t: Mapping[str, Tensor], batch: TrainBatch) -> Tensor:
    """Medusa's first two heads, of one ResBlock each."""
    x = batch.hidden[DEEP][0, POSITION]
    found = []
    for head in range(2):
        block = x + nn.functional.silu(x @ t[f"{head}.0.linear.weight"].T + t[f"{head}.0.linear.bias"])
        found.append(block @ t[f"{head}.1.weight"].T)
    return torch.stack(found)


PUBLISHERS = {
    "eagle1": eagle, "eagle": eagle3, "speculators": speculators, "dflash": dflash, "medusa": medusa,
    "dspark": dflash, "peagle": peagle,
}  # fmt: skip
