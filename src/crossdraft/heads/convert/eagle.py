"""EAGLE checkpoints: those of the EAGLE repository, which SGLang and vLLM load too, and of `vllm-project/speculators`.

**EAGLE repository**: a flat Llama config, one layer, the token embeddings. EAGLE-1 (and -2, the same weights): `fc`,
`layers.0`. EAGLE-3: `fc`, `midlayer`, `norm`, `lm_head`, and the maps `d2t`, `t2d` of its draft vocabulary. SGLang
loads `midlayer` only and leaves a layer that it does not find random; vLLM and ModelOpt call it `layers.0`. So
`midlayer` is written, and both are read.

**speculators** (EAGLE-3): the layer's settings are nested, and the layer is `layers.0`. Hidden states are numbered by
the layer that they enter. `norm_before_residual` is written, though false is its default: with true the residual would
be the feature *after* `hidden_norm`, and ours is the feature as it came, as in EAGLE's own code.
"""

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor

from crossdraft.dtypes import dtype_name
from crossdraft.errors import CrossdraftError
from crossdraft.heads.convert.converter import (
    Converter,
    ForeignHead,
    NativeHead,
    TargetInfo,
    decoder_settings,
    draft_ids_of,
    draft_maps,
    layer_numbers,
    llama_config,
    number,
    renamed,
    require,
    without_embeddings,
)
from crossdraft.heads.networks.eagle3 import Eagle3Config, levels_of
from crossdraft.heads.networks.layers import DecoderConfig

ARCHITECTURES = ("LlamaForCausalLM", "LlamaForCausalLMEagle", "EagleLlamaForCausalLM")
ARCHITECTURES_3 = ("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM")
STEPS, STEPS_3 = 1, 7  # in training, as the papers have it; the files lack it
LAYER = (
    "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
    "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", "post_attention_layernorm",
)  # fmt: skip
EAGLE_NAMES = ("fc.weight", "fc.bias", *(f"layers.0.{part}.weight" for part in LAYER))
LAYER_3 = (*LAYER, "input_layernorm", "hidden_norm")
EAGLE3_NAMES = ("fc.weight", "norm.weight", "lm_head.weight", *(f"midlayer.{part}.weight" for part in LAYER_3))
MAPS = ("d2t", "t2d")
SPECULATORS_VERSION = "0.9.0"  # of the package whose files these are
# What speculators can switch on and our network does not do.
FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output", "embed_requires_grad")


def write_eagle(ours: NativeHead, host: TargetInfo) -> ForeignHead:
    """A head of ours as EAGLE's repository has it."""
    return _write_eagle3(ours, host) if ours.network == "eagle3" else _write_eagle1(ours, host)


def _write_eagle1(ours: NativeHead, host: TargetInfo) -> ForeignHead:
    config = cast("DecoderConfig", ours.config)
    theirs: dict[str, Any] = {
        "architectures": list(ARCHITECTURES[1:]),  # SGLang reads the first, vLLM the one it knows, EAGLE none
        "model_type": "llama",
        **llama_config(config),
        "torch_dtype": dtype_name(ours.dtype),
        # No "bias": EAGLE assumes that of `fc`, and vLLM would read the key as the attention's.
    }
    notes = ["vLLM's EAGLE-1 has no bias in `fc` and leaves this one's out; use EAGLE or SGLang."]
    if len(config.draft_ids) < config.vocab_size:
        notes.append(f"EAGLE-1 has no draft vocabulary: elsewhere all {config.vocab_size} ids are drafted.")
    tensors = {"embed_tokens.weight": host.shared.embeddings.to(ours.dtype), **ours.weights}
    return ForeignHead(theirs, tensors, tuple(notes))


def _write_eagle3(ours: NativeHead, host: TargetInfo) -> ForeignHead:
    config = cast("Eagle3Config", ours.config)
    levels = config.read
    theirs: dict[str, Any] = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        **llama_config(config),
        "draft_vocab_size": len(config.draft_ids),
        "norm_before_residual": False,  # the residual is the feature as it came
        "torch_dtype": dtype_name(ours.dtype),
        "eagle_aux_hidden_state_layer_ids": list(levels),  # vLLM's numbers
    }
    if min(levels) > 0:  # SGLang's; the embeddings have none
        outputs = layer_numbers(levels, "entering", "output")
        theirs["eagle_config"] = {"use_aux_hidden_state": True, "eagle_aux_hidden_state_layer_ids": outputs}
    maps = draft_maps(config.draft_ids, config.vocab_size)
    return ForeignHead(theirs, {**ours.weights, **maps}, level_notes(levels, config.num_layers))


def level_notes(levels: tuple[int, ...], depth: int) -> tuple[str, ...]:
    """Notes on levels that another program may not take from the files."""
    notes = []
    if levels != levels_of(depth):
        notes.append(
            f"It reads the hidden states that enter layers {levels}: vLLM, SGLang and speculators find that in its "
            f"config.json, EAGLE's own code always takes {levels_of(depth)}."
        )
    if len(set(levels)) < len(levels):
        notes.append(f"Two of its levels {levels} are one; other programs want three.")
    return tuple(notes)


def read_eagle(foreign: ForeignHead, host: TargetInfo) -> NativeHead:
    """A head of EAGLE's files as ours.

    Raises:
        CrossdraftError: it is of another architecture, not whole, or another target's.
    """
    theirs = foreign.config
    require(theirs, {"num_hidden_layers": (1,), "model_type": ("llama",)})
    if any(name.endswith("hidden_norm.weight") for name in foreign.tensors):
        require(theirs, {"architectures": tuple([name] for name in (*ARCHITECTURES, *ARCHITECTURES_3))})
        return read_eagle3(theirs, foreign.tensors, host, number(theirs, "draft_vocab_size", host.vocab_size))
    require(theirs, {"architectures": (*([name] for name in ARCHITECTURES), list(ARCHITECTURES[1:]))})
    tensors = without_embeddings(foreign.tensors, host)
    if theirs.get("bias") is False and "fc.weight" in tensors:
        tensors.setdefault("fc.bias", torch.zeros_like(tensors["fc.weight"][:, 0]))
    weights = renamed(tensors, {name: name for name in EAGLE_NAMES})
    every = tuple(range(host.vocab_size))
    return NativeHead("eagle", DecoderConfig(**decoder_settings(theirs, host), draft_ids=every, steps=STEPS), weights)


def read_eagle3(
    theirs: Mapping[str, Any], tensors: Mapping[str, Tensor], host: TargetInfo, drafted: int, steps: int = STEPS_3
) -> NativeHead:
    """EAGLE-3 from a flat config and tensors in either spelling; `drafted` = D, as the config has it."""
    only = (False, None)  # EAGLE-3.1's norms, and a residual after the norm, are other networks
    require(theirs, {"norm_before_residual": only, "fc_norm": only, "norm_before_fc": only})
    levels = _levels(theirs, host)
    spelled = {name.replace("layers.0.", "midlayer.", 1): value for name, value in tensors.items()}
    if len(spelled) != len(tensors):
        raise CrossdraftError("The checkpoint spells its layer both 'midlayer' and 'layers.0'; export it anew.")
    rest = without_embeddings(spelled, host)
    maps = {name: rest.pop(name) for name in MAPS if name in rest}
    weights = renamed(rest, {name: name for name in EAGLE3_NAMES})
    rows = len(weights["lm_head.weight"])
    if rows != drafted:
        raise CrossdraftError(f"The checkpoint's 'lm_head.weight' has {rows} rows, its config.json says {drafted}.")
    ids = draft_ids_of(maps, rows, host.vocab_size)
    return NativeHead(
        "eagle3", Eagle3Config(**decoder_settings(theirs, host), draft_ids=ids, steps=steps, levels=levels), weights
    )


def _levels(theirs: Mapping[str, Any], host: TargetInfo) -> tuple[int, ...] | None:
    """The hidden states that it reads, in either convention; `None` = the usual ones."""
    key = "eagle_aux_hidden_state_layer_ids"
    entering = theirs.get(key)
    outputs = (theirs.get("eagle_config") or {}).get(key)
    if entering is None and outputs is not None:
        entering = layer_numbers(outputs, "output", "entering")
    if entering is None or tuple(entering) == levels_of(host.num_layers):
        return None
    return tuple(entering)


def write_speculators(ours: NativeHead, host: TargetInfo) -> ForeignHead:
    """An EAGLE-3 of ours as speculators has it. Its embeddings are the target's, so that it is whole by itself."""
    config = cast("Eagle3Config", ours.config)
    levels = config.read
    theirs = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_version": SPECULATORS_VERSION,
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
    return ForeignHead(theirs, tensors, level_notes(levels, config.num_layers))


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


def read_speculators(foreign: ForeignHead, host: TargetInfo) -> NativeHead:
    """An EAGLE-3 of speculators' as ours.

    Raises:
        CrossdraftError: it is of another algorithm, not whole, or another target's.
    """
    theirs = foreign.config
    require(theirs, {"speculators_model_type": ("eagle3",), **dict.fromkeys(FLAGS[:-1], (False, None))})
    layer = theirs.get("transformer_layer_config")
    if not isinstance(layer, Mapping):
        raise CrossdraftError("The checkpoint's config.json lacks 'transformer_layer_config'; is it whole?")
    require(layer, {"model_type": ("llama",), "num_hidden_layers": (1,)})
    outer = ("eagle_aux_hidden_state_layer_ids", "target_hidden_size", *FLAGS)
    flat = {**layer, **{key: theirs[key] for key in outer if theirs.get(key) is not None}}
    return read_eagle3(flat, foreign.tensors, host, number(theirs, "draft_vocab_size"), _steps(theirs))


def _steps(theirs: Mapping[str, Any]) -> int:
    methods = (theirs.get("speculators_config") or {}).get("proposal_methods") or [{}]
    return number(methods[0], "speculative_tokens", 7)


EAGLE = Converter(
    ("eagle", "eagle3"),
    lambda config: (
        config.get("model_type") == "llama"
        and (config.get("architectures") or [""])[0] in (*ARCHITECTURES, *ARCHITECTURES_3)
    ),
    write_eagle,
    read_eagle,
)
SPECULATORS = Converter(
    ("eagle3",), lambda config: "speculators_model_type" in config, write_speculators, read_speculators
)
