"""Other projects' files of heads, written: EAGLE's, those of `vllm-project/speculators`, Medusa's and DFlash's.

`crossdraft.heads.convert` describes the layouts, and reads them. Medusa's heads have the target's whole vocabulary,
ours a draft vocabulary: the rows that ours lack are the target's own, from which Medusa's heads are initialised.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from crossdraft.dtypes import dtype_name
from crossdraft.errors import CrossdraftError
from crossdraft.heads.convert.converter import ForeignHead, NativeHead, TargetInfo, layer_numbers
from crossdraft.heads.convert.layouts import FLAGS, FULL, LLAMA, SLIDING
from crossdraft.heads.convert.medusa import medusa_names
from crossdraft.heads.networks.dflash import DFlashConfig, spread
from crossdraft.heads.networks.eagle3 import Eagle3Config, levels_of
from crossdraft.heads.networks.layers import DecoderConfig
from crossdraft.heads.networks.recurrent import RecurrentConfig

MEDUSA_WEIGHTS = "medusa_lm_head.safetensors"
SPECULATORS_VERSION = "0.9.0"  # version of the package that writes such files
WHOLE_PROMPTS = (
    "The head was trained on the text behind what is seen; a server that feeds DFlash whole prompts, as vLLM does, "
    "accepts next to nothing of its drafts. Train it with whole_prompt to export it."
)


@dataclass(frozen=True)
class ForeignLayout:
    """One project's checkpoint layout, as it is written.

    Args:
        networks: our networks that it can hold.
        write: function that converts from our form.
        weights: name of the weights file.
    """

    networks: tuple[str, ...]
    write: Callable[[NativeHead, TargetInfo], ForeignHead]
    weights: str = "model.safetensors"


def write_eagle(ours: NativeHead, host: TargetInfo) -> ForeignHead:
    """Convert our head to the files of EAGLE's repository."""
    return _write_eagle3(ours, host) if ours.network == "eagle3" else _write_eagle1(ours, host)


def _write_eagle1(ours: NativeHead, host: TargetInfo) -> ForeignHead:
    config = cast("DecoderConfig", ours.config)
    theirs: dict[str, Any] = {
        "architectures": list(LLAMA[1:]),  # SGLang reads the first, vLLM the one it knows, EAGLE none
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
        **_flags_of(config),
        "torch_dtype": dtype_name(ours.dtype),
        "eagle_aux_hidden_state_layer_ids": list(levels),  # vLLM's numbers
    }
    if min(levels) > 0:  # SGLang's; the embeddings have none
        outputs = layer_numbers(levels, "entering", "output")
        theirs["eagle_config"] = {"use_aux_hidden_state": True, "eagle_aux_hidden_state_layer_ids": outputs}
    tensors = {**ours.weights, **draft_maps(config.draft_ids, config.vocab_size)}
    return ForeignHead(theirs, tensors, level_notes(levels, config.num_layers))


def _flags_of(config: Eagle3Config) -> dict[str, bool]:
    if config.norm_before_fc and not config.fc_norm and set(config.level_scales) != {1.0}:
        raise CrossdraftError(
            f"The head scales its levels by {config.level_scales} before norm_before_fc, which no other project's "
            "files hold; train it with level_scales of 1 to export it."
        )
    return {flag: getattr(config, flag) for flag in FLAGS}


def level_notes(levels: tuple[int, ...], depth: int) -> tuple[str, ...]:
    """Notes on levels that another program may not read from the files."""
    notes = []
    if levels != levels_of(depth):
        notes.append(
            f"It reads the hidden states that enter layers {levels}: vLLM, SGLang and speculators find that in its "
            f"config.json, EAGLE's own code always takes {levels_of(depth)}."
        )
    if len(set(levels)) < len(levels):
        notes.append(f"Two of its levels {levels} are one; other programs want three.")
    return tuple(notes)


def write_speculators(ours: NativeHead, host: TargetInfo) -> ForeignHead:
    """Convert our EAGLE-3 to speculators' files, which include the target's embeddings and so load by themselves."""
    config = cast("Eagle3Config", ours.config)
    levels = config.read
    theirs = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_version": SPECULATORS_VERSION,
        "draft_vocab_size": len(config.draft_ids),
        "target_hidden_size": config.hidden_size,
        **_flags_of(config),
        "embed_requires_grad": False,
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
    method = {"proposal_type": "greedy", "verifier_accept_k": 1, "accept_tolerance": 0.0}
    return {
        "algorithm": "eagle3",
        "default_proposal_method": "greedy",
        "proposal_methods": [{**method, "speculative_tokens": config.steps}],
        "verifier": {"name_or_path": host.name, "architectures": list(host.architectures)},
    }


def write_medusa(ours: NativeHead, host: TargetInfo) -> ForeignHead:
    """Convert our Medusa head to the files of FasterDecoding/Medusa."""
    config = cast("RecurrentConfig", ours.config)
    theirs = {
        "model_type": "medusa",
        "medusa_num_heads": config.steps,
        "medusa_num_layers": config.layers,
        "base_model_name_or_path": host.name,
        "hidden_size": config.hidden_size,
        "vocab_size": config.vocab_size,
        "torch_dtype": dtype_name(ours.dtype),
    }
    tensors = {theirs: ours.weights[name] for theirs, name in medusa_names(config.steps, config.layers).items()}
    for head in range(config.steps):
        tensors[f"{head}.{config.layers}.weight"] = _whole(tensors[f"{head}.{config.layers}.weight"], config, host)
    return ForeignHead(theirs, tensors, tuple(_medusa_notes(config)))


def _whole(rows: Tensor, config: RecurrentConfig, host: TargetInfo) -> Tensor:
    """[D, H] rows of the draft vocabulary -> [V, H], the other rows being the target's own."""
    every = host.shared.lm_head.detach().to("cpu", rows.dtype).clone()
    every[torch.tensor(config.draft_ids)] = rows
    return every


def _medusa_notes(config: RecurrentConfig) -> list[str]:
    notes = [f"Medusa's own code reads 'medusa_lm_head.pt': torch.save what {MEDUSA_WEIGHTS} holds under that name."]
    if absent := config.vocab_size - len(config.draft_ids):
        notes.append(
            f"The heads were trained for {len(config.draft_ids)} ids; the rows of the other {absent} are the target's "
            "own, Medusa's initialisation."
        )
    if config.layers > 1:
        notes.append("Medusa's own code shares one ResBlock among a head's layers; these have one each.")
    return notes


def write_dflash(ours: NativeHead, host: TargetInfo) -> ForeignHead:
    """Convert our DFlash head to z-lab's files.

    Raises:
        CrossdraftError: its mask is a learned embedding, it reads the embeddings, its layers' windows differ, or others
            of them are causal than all, none or those that slide: DFlash's files hold none of these.
    """
    config = cast("DFlashConfig", ours.config)
    if config.mask_token is None:
        raise CrossdraftError(
            "The head learnt its mask's row, which DFlash's files cannot hold: train it with a mask_token to export it."
        )
    windows, every = config.windows or (0,) * config.layers, tuple(range(config.layers))
    sliding = tuple(layer for layer in every if windows[layer])
    if len({*windows} - {0}) > 1 or config.causal_layers not in ((), every, sliding):
        raise CrossdraftError(
            f"DFlash's files hold one window, and causal are none of the layers, all, or those that slide; the head's "
            f"windows are {windows}, its causal layers {config.causal_layers}."
        )
    block = {
        "whole_prompt": config.whole_prompt,
        "mask_token_id": config.mask_token,
        "target_layer_ids": layer_numbers(config.read_layers or spread(config.num_layers), "entering", "output"),
    }
    theirs = {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        **llama_config(config, config.layers),
        "layer_types": [SLIDING if window else FULL for window in windows],
        "sliding_window": max(windows) or None,
        "use_sliding_window": bool(sliding),
        "block_size": config.steps + 1,  # their block includes the root
        "num_target_layers": config.num_layers,
        "dflash_config": block,
        "torch_dtype": dtype_name(ours.dtype),
        **({} if config.causal_layers == sliding else {"is_causal": bool(config.causal_layers)}),
    }
    notes = [] if config.whole_prompt else [WHOLE_PROMPTS]
    if len(config.draft_ids) < config.vocab_size:
        notes.append(f"DFlash has no draft vocabulary: elsewhere all {config.vocab_size} ids are drafted.")
    return ForeignHead(theirs, ours.weights, tuple(notes))


def llama_config(config: DecoderConfig, layers: int = 1) -> dict[str, Any]:
    """Settings of our decoder layers under `LlamaConfig`'s names; rotary ones as in transformers 4 and 5."""
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
        **({"qkv_bias": True} if config.qkv_bias else {}),
        "attention_dropout": 0.0,
        "tie_word_embeddings": False,
        "pad_token_id": None,
    }


def draft_maps(draft_ids: Sequence[int], vocab_size: int) -> dict[str, Tensor]:
    """A draft vocabulary as EAGLE-3 stores it.

    Returns:
        `d2t` [D] int64, *offsets*: draft token i is the target's i + d2t[i]; `t2d` [V] bool, true for draft ids.
    """
    ids = torch.tensor(draft_ids)
    drafted = torch.zeros(vocab_size, dtype=torch.bool)
    drafted[ids] = True
    return {"d2t": ids - torch.arange(len(ids)), "t2d": drafted}


LAYOUTS: Mapping[str, ForeignLayout] = {
    "eagle": ForeignLayout(("eagle", "eagle3"), write_eagle),
    "speculators": ForeignLayout(("eagle3",), write_speculators),
    "medusa": ForeignLayout(("medusa",), write_medusa, MEDUSA_WEIGHTS),
    "dflash": ForeignLayout(("dflash",), write_dflash),
}


def foreign_layout(name: str, network: str) -> ForeignLayout:
    """Return the layout called `name`, for a head of that network.

    Raises:
        CrossdraftError: there is no such layout, or it cannot hold such a head.
    """
    if name not in LAYOUTS:
        raise CrossdraftError(f"There is no layout '{name}'; there are {', '.join(LAYOUTS)}.")
    layout = LAYOUTS[name]
    if network not in layout.networks:
        fitting = [other for other, known in LAYOUTS.items() if network in known.networks]
        hint = f"it fits into {' and '.join(fitting)}" if fitting else "no layout for such a head is written"
        raise CrossdraftError(
            f"The layout '{name}' holds {' and '.join(layout.networks)}, this head is a '{network}'; {hint}."
        )
    return layout
