"""The EAGLE repository's files, which SGLang and vLLM load too: a flat Llama config, one layer, the token embeddings.

EAGLE-1 (and -2, the same weights): `fc`, `layers.0`. EAGLE-3: `fc`, `midlayer`, `norm`, `lm_head`, the maps of its
short vocabulary. SGLang fills `midlayer` only and leaves what it does not find random; vLLM and ModelOpt spell it
`layers.0`. So `midlayer` is written, and both are read.
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
    llama_config,
    number,
    renamed,
    require,
    without_embeddings,
)
from crossdraft.heads.convert.id_mapping import draft_ids_of, draft_maps, layer_numbers
from crossdraft.heads.networks.eagle3 import Eagle3Config, levels_of
from crossdraft.heads.networks.layers import DecoderConfig

ARCHITECTURES = ("LlamaForCausalLM", "LlamaForCausalLMEagle", "EagleLlamaForCausalLM")
ARCHITECTURES_3 = ("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM")
STEPS, STEPS_3 = 1, 7  # in training, as the papers have it; their files do not say
LAYER = (
    "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
    "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", "post_attention_layernorm",
)  # fmt: skip
EAGLE_NAMES = ("fc.weight", "fc.bias", *(f"layers.0.{part}.weight" for part in LAYER))
LAYER_3 = (*LAYER, "input_layernorm", "hidden_norm")
EAGLE3_NAMES = ("fc.weight", "norm.weight", "lm_head.weight", *(f"midlayer.{part}.weight" for part in LAYER_3))
MAPS = ("d2t", "t2d")


def write(ours: NativeHead, host: TargetInfo) -> ForeignHead:
    """A head of ours as EAGLE's repository has it."""
    return _write_eagle3(ours, host) if ours.network == "eagle3" else _write_eagle(ours, host)


def _write_eagle(ours: NativeHead, host: TargetInfo) -> ForeignHead:
    config = cast("DecoderConfig", ours.config)
    words: dict[str, Any] = {
        "architectures": ["LlamaForCausalLMEagle"],  # SGLang goes by it; EAGLE does not look
        "model_type": "llama",
        **llama_config(config),
        "torch_dtype": dtype_name(ours.dtype),
        # No "bias": EAGLE takes that of `fc` for granted, and vLLM would take the word for the attention's.
    }
    notes = ["vLLM's EAGLE-1 has no bias in `fc` and leaves this one's out; use EAGLE or SGLang."]
    if len(config.draft_ids) < config.vocab_size:
        notes.append(f"EAGLE-1 has no draft vocabulary: elsewhere all {config.vocab_size} ids are drafted.")
    tensors = {"embed_tokens.weight": host.shared.embeddings.to(ours.dtype), **ours.weights}
    return ForeignHead(words, tensors, tuple(notes))


def _write_eagle3(ours: NativeHead, host: TargetInfo) -> ForeignHead:
    config = cast("Eagle3Config", ours.config)
    levels = config.read
    words: dict[str, Any] = {
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
        words["eagle_config"] = {"use_aux_hidden_state": True, "eagle_aux_hidden_state_layer_ids": outputs}
    maps = draft_maps(config.draft_ids, config.vocab_size)
    return ForeignHead(words, {**ours.weights, **maps}, level_notes(levels, config.num_layers))


def level_notes(levels: tuple[int, ...], depth: int) -> tuple[str, ...]:
    """What to say of levels that another program may not take from the files."""
    notes = []
    if levels != levels_of(depth):
        notes.append(
            f"It reads the hidden states that enter layers {levels}: vLLM, SGLang and speculators find that in its "
            f"config.json, EAGLE's own code always takes {levels_of(depth)}."
        )
    if len(set(levels)) < len(levels):
        notes.append(f"Two of its levels {levels} are one; other programs want three.")
    return tuple(notes)


def read(foreign: ForeignHead, host: TargetInfo) -> NativeHead:
    """A head of EAGLE's files as ours.

    Raises:
        CrossdraftError: it is of another architecture, not whole, or another target's.
    """
    words = foreign.config
    require(words, {"num_hidden_layers": (1,), "model_type": ("llama",)})
    if any(name.endswith("hidden_norm.weight") for name in foreign.tensors):
        require(words, {"architectures": tuple([name] for name in (*ARCHITECTURES, *ARCHITECTURES_3))})
        return read_eagle3(words, foreign.tensors, host, number(words, "draft_vocab_size", host.vocab_size))
    require(words, {"architectures": tuple([name] for name in ARCHITECTURES)})
    tensors = without_embeddings(foreign.tensors, host)
    if words.get("bias") is False and "fc.weight" in tensors:
        tensors.setdefault("fc.bias", torch.zeros_like(tensors["fc.weight"][:, 0]))
    weights = renamed(tensors, {name: name for name in EAGLE_NAMES})
    every = tuple(range(host.vocab_size))
    return NativeHead("eagle", DecoderConfig(**decoder_settings(words, host), draft_ids=every, steps=STEPS), weights)


def read_eagle3(
    words: Mapping[str, Any], tensors: Mapping[str, Tensor], host: TargetInfo, drafted: int, steps: int = STEPS_3
) -> NativeHead:
    """EAGLE-3 from a flat config and tensors in either spelling; `drafted` = D, as the config has it."""
    only = (False, None)  # EAGLE-3.1's norms, and a residual behind the norm, are other networks
    require(words, {"norm_before_residual": only, "fc_norm": only, "norm_before_fc": only})
    levels = _levels(words, host)
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
        "eagle3", Eagle3Config(**decoder_settings(words, host), draft_ids=ids, steps=steps, levels=levels), weights
    )


def _levels(words: Mapping[str, Any], host: TargetInfo) -> tuple[int, ...] | None:
    """The hidden states that it reads, in whichever numbers they are told; `None` = the usual ones."""
    key = "eagle_aux_hidden_state_layer_ids"
    entering = words.get(key)
    outputs = (words.get("eagle_config") or {}).get(key)
    if entering is None and outputs is not None:
        entering = layer_numbers(outputs, "output", "entering")
    if entering is None or tuple(entering) == levels_of(host.num_layers):
        return None
    return tuple(entering)


def owns(words: Mapping[str, Any]) -> bool:
    """Whether a config is one of EAGLE's."""
    named = words.get("architectures") or [""]
    return words.get("model_type") == "llama" and named[0] in (*ARCHITECTURES, *ARCHITECTURES_3)


EAGLE = Converter(("eagle", "eagle3"), owns, write, read, "the EAGLE repository; SGLang, vLLM")
