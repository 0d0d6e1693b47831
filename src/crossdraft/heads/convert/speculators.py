"""The files of `vllm-project/speculators`: EAGLE-3 with the layer's settings nested, and the layer called `layers.0`.

Layers are numbered by what enters them. `norm_before_residual` is written, though false is its default: with true the
residual would be the feature *behind* `hidden_norm`, and ours is the feature as it came, as in EAGLE's own code.
"""

from collections.abc import Mapping
from typing import Any, cast

from crossdraft.dtypes import dtype_name
from crossdraft.errors import CrossdraftError
from crossdraft.heads.convert.converter import (
    Converter,
    ForeignHead,
    NativeHead,
    TargetInfo,
    llama_config,
    number,
    require,
)
from crossdraft.heads.convert.eagle import level_notes, read_eagle3
from crossdraft.heads.convert.id_mapping import draft_maps
from crossdraft.heads.networks.eagle3 import Eagle3Config
from crossdraft.heads.networks.layers import DecoderConfig

VERSION = "0.9.0"  # of the package whose files these are
# What the package can switch on and our network does not do.
FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output", "embed_requires_grad")


def write(ours: NativeHead, host: TargetInfo) -> ForeignHead:
    """An EAGLE-3 of ours as speculators has it. Its embeddings are the target's, so that it is whole by itself."""
    config = cast("Eagle3Config", ours.config)
    levels = config.read
    words = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_version": VERSION,
        "draft_vocab_size": len(config.draft_ids),
        "target_hidden_size": config.hidden_size,
        **dict.fromkeys(FLAGS, False),
        "eagle_aux_hidden_state_layer_ids": list(levels),
        "tie_word_embeddings": False,
        "torch_dtype": dtype_name(ours.dtype),
        "transformer_layer_config": {"model_type": "llama", **llama_config(config)},
        "speculators_config": _proposals(config, host),
    }
    tensors = {name.replace("midlayer.", "layers.0.", 1): value for name, value in ours.weights.items()}
    tensors["embed_tokens.weight"] = host.shared.embeddings.to(ours.dtype)
    if len(config.draft_ids) < config.vocab_size:
        tensors |= draft_maps(config.draft_ids, config.vocab_size)
    return ForeignHead(words, tensors, level_notes(levels, config.num_layers))


def _proposals(config: DecoderConfig, host: TargetInfo) -> dict[str, Any]:
    method = {
        "proposal_type": "greedy",
        "speculative_tokens": config.steps,
        "verifier_accept_k": 1,
        "accept_tolerance": 0.0,
    }
    return {
        "algorithm": "eagle3",
        "default_proposal_method": "greedy",
        "proposal_methods": [method],
        "verifier": {"name_or_path": host.name, "architectures": list(host.architectures)},
    }


def read(foreign: ForeignHead, host: TargetInfo) -> NativeHead:
    """An EAGLE-3 of speculators' as ours.

    Raises:
        CrossdraftError: it is of another algorithm, not whole, or another target's.
    """
    words = foreign.config
    require(words, {"speculators_model_type": ("eagle3",), **dict.fromkeys(FLAGS[:-1], (False, None))})
    layer = words.get("transformer_layer_config")
    if not isinstance(layer, Mapping):
        raise CrossdraftError("The checkpoint's config.json lacks 'transformer_layer_config'; is it whole?")
    require(layer, {"model_type": ("llama",), "num_hidden_layers": (1,)})
    outer = ("eagle_aux_hidden_state_layer_ids", "target_hidden_size", *FLAGS)
    flat = {**layer, **{key: words[key] for key in outer if words.get(key) is not None}}
    return read_eagle3(flat, foreign.tensors, host, number(words, "draft_vocab_size"), _steps(words))


def _steps(words: Mapping[str, Any]) -> int:
    methods = (words.get("speculators_config") or {}).get("proposal_methods") or [{}]
    return number(methods[0], "speculative_tokens", 7)


def owns(words: Mapping[str, Any]) -> bool:
    """Whether a config is one of speculators'."""
    return "speculators_model_type" in words


SPECULATORS = Converter(("eagle3",), owns, write, read, "vllm-project/speculators; vLLM")
