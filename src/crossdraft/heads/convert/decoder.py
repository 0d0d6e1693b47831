"""Decoder layers in the words of a Llama-like `config.json`, both ways. Shared by the layouts of EAGLE and DFlash."""

from collections.abc import Mapping
from typing import Any

from crossdraft.errors import CrossdraftError
from crossdraft.heads.convert.converter import TargetInfo, demand
from crossdraft.heads.networks.layers import DecoderConfig

FOLLOWED = {
    "hidden_act": ("silu",),
    "attention_bias": (False, None),
    "mlp_bias": (False, None),
    "qkv_bias": (False, None),
    "rope_scaling": (None,),
    "partial_rotary_factor": (1, None),
    "pretraining_tp": (1, None),
}


def llama_config(config: DecoderConfig, layers: int = 1) -> dict[str, Any]:
    """The settings of our decoder layers in `LlamaConfig`'s words, the rotary ones in both transformers 4's and 5's."""
    return {
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.max_positions,
        "rms_norm_eps": config.eps,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        "rope_theta": config.rope_theta,
        "rope_scaling": None,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "attention_dropout": 0.0,
        "tie_word_embeddings": False,
        "pad_token_id": None,
    }


def decoder_settings(config: Mapping[str, Any], host: TargetInfo) -> dict[str, Any]:
    """The settings of their layers as `DecoderConfig` has them, and what it says of the target.

    Raises:
        CrossdraftError: one is missing, asks for something that our layers do not do, or fits another target.
    """
    demand(config, FOLLOWED)
    demand(config, {"target_hidden_size": (config.get("hidden_size"), None)})
    for key, size in (("hidden_size", host.hidden_size), ("vocab_size", host.vocab_size)):
        found = number(config, key)
        if found != size:
            raise CrossdraftError(
                f"The checkpoint was made for a target whose {key} is {found}; this one's is {size}. Name its own."
            )
    rope = config.get("rope_parameters") or {}
    demand(rope, {"rope_type": ("default",)})
    heads = number(config, "num_attention_heads")
    return {
        **host.sizes,
        "heads": heads,
        "kv_heads": number(config, "num_key_value_heads", heads),
        "head_dim": number(config, "head_dim", host.hidden_size // heads),
        "intermediate_size": number(config, "intermediate_size"),
        "rope_theta": float(rope.get("rope_theta", config.get("rope_theta") or 10000.0)),
        "max_positions": number(config, "max_position_embeddings", 2048),
        "eps": float(config.get("rms_norm_eps", 1e-6)),
    }


def number(config: Mapping[str, Any], key: str, default: int | None = None) -> int:
    """A positive whole number of a config; absent or null, its default.

    Raises:
        CrossdraftError: it is neither there nor has it a default, or it is no such number.
    """
    value = config.get(key)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        fault = "lacks" if value is None else f"has {value!r} as"
        raise CrossdraftError(f"The checkpoint's config.json {fault} '{key}', which must be a positive whole number.")
    return value


def dtype_name(dtype: object) -> str:
    """A dtype as configs spell it."""
    return str(dtype).removeprefix("torch.")
