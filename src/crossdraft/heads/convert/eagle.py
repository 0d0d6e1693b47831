"""EAGLE checkpoints: those of the EAGLE repository, which SGLang and vLLM load too, and of `vllm-project/speculators`.

**EAGLE repository**: a flat Llama config, one layer, the token embeddings. EAGLE-1 (and -2, the same weights): `fc`,
`layers.0`. EAGLE-3: `fc`, `midlayer`, `norm`, `lm_head`, and the maps `d2t`, `t2d` of its draft vocabulary. SGLang
loads `midlayer` only and leaves a layer that it does not find random; vLLM and ModelOpt call it `layers.0`. So
`midlayer` is written, and both are read.

**speculators** (EAGLE-3): the layer's settings are nested, and the layer is `layers.0`. Hidden states are numbered by
the layer that they enter. With `norm_before_residual` the residual is the feature *after* `hidden_norm`; EAGLE's own
code takes the feature before it. A file without the key is refused: vLLM takes true for it.

**P-EAGLE** adds `mask_hidden` [1, 1, H · levels], further layers, and the id of a token as its mask. Its embeddings may
be its own.

**EAGLE-3.1** adds `fc_norm`, a norm of each level, and `norm_output`: the next feature is the normed output. AngelSlim
and SpecForge write both.

**Heads of VLMs** in EAGLE-1's layout, told by their tensors, MSD by its config alone:

    ViSpec    `imadpt.q` [M, heads, d], `imadpt.{k,v,o}_proj`: its resampler; `img_fc` [H, 2H] over [feature; global]
    HiViS     `residual` [steps, H]; `fc` [H, 3H] over [embedding; feature; residual]
    MSD       nothing: visual positions enter its layer as embeddings, past `fc`
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from crossdraft.config_keys import agreed, check, value_at
from crossdraft.errors import CrossdraftError
from crossdraft.heads.convert.converter import (
    ForeignHead,
    NativeHead,
    TargetInfo,
    decoder_settings,
    draft_ids_of,
    layer_numbers,
    layers_of,
    number,
    renamed,
    shared_ids,
    without_embeddings,
)
from crossdraft.heads.convert.dflash import read_block
from crossdraft.heads.convert.layouts import (
    EAGLE3_KEYS,
    EAGLE_KEYS,
    FLAGS,
    LEVELS,
    MASKS,
    MSD_TYPES,
    PEAGLE_KEYS,
    speculators_table,
)
from crossdraft.heads.networks.eagle import HiViSConfig
from crossdraft.heads.networks.eagle3 import Eagle3Config, levels_of
from crossdraft.heads.networks.eaglevlm import EagleVLMConfig
from crossdraft.heads.networks.layers import DecoderConfig
from crossdraft.heads.networks.peagle import PEagleConfig
from crossdraft.heads.networks.vispec import ViSpecConfig

STEPS, STEPS_3 = 1, 7  # training steps as in the papers, as the files do not state them
LAYER = (
    "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
    "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", "post_attention_layernorm",
)  # fmt: skip
EAGLE_NAMES = ("fc.weight", "fc.bias", *(f"layers.0.{part}.weight" for part in LAYER))
LAYER_3 = (*LAYER, "input_layernorm", "hidden_norm")
EAGLE3_NAMES = ("fc.weight", "norm.weight", "lm_head.weight", *(f"midlayer.{part}.weight" for part in LAYER_3))
LAYER_DEEP = (*LAYER, "input_layernorm")
MASK, OWN = "mask_hidden", "embed_tokens.weight"
MAPS = ("d2t", "t2d")
BIASES = tuple(f"self_attn.{name}_proj.bias" for name in "qkv")
IMAGES = ("img_fc.weight", "img_fc.bias", *(f"imadpt.{name}_proj.weight" for name in "kvo"), "imadpt.q")
IMAGE_BIASES = ("imadpt.k_proj.bias", "imadpt.v_proj.bias")


def read_eagle(foreign: ForeignHead, host: TargetInfo) -> NativeHead:
    """Convert EAGLE's files to our head.

    Raises:
        CrossdraftError: it has another architecture, is incomplete, or is another target's.
    """
    theirs = foreign.config
    if any(name.endswith("hidden_norm.weight") for name in foreign.tensors):
        check(theirs, PEAGLE_KEYS if MASK in foreign.tensors else EAGLE3_KEYS, host.sizes)
        return read_eagle3(theirs, foreign.tensors, host, number(theirs, "draft_vocab_size", theirs.get("vocab_size")))
    check(theirs, EAGLE_KEYS, host.sizes)
    tensors = without_embeddings(foreign.tensors, host)
    sees, hides = "imadpt.q" in tensors, "residual" in tensors
    for name in ("fc", *(["img_fc"] if sees else ())):
        if theirs.get("bias") is False and f"{name}.weight" in tensors and not hides:
            if f"{name}.bias" in tensors:
                raise CrossdraftError(f"The checkpoint has '{name}.bias', but bias = False in its config.json.")
            tensors[f"{name}.bias"] = torch.zeros_like(tensors[f"{name}.weight"][:, 0])
    biases = _biases(theirs, tensors, "layers.0")
    names = [*EAGLE_NAMES, *biases, *(IMAGES if sees else ()), *(IMAGE_BIASES if sees and biases else ())]
    weights = renamed(tensors, {name: name for name in (*names, *(["residual"] if hides else ()))})
    ids = tuple(range(shared_ids(theirs, host)))
    settings: dict[str, Any] = {**decoder_settings(theirs, host), "draft_ids": ids, "qkv_bias": bool(biases)}
    if hides:
        return _hivis(settings, weights)
    if sees or theirs["model_type"] in MSD_TYPES:
        if not host.visual_ids:
            raise CrossdraftError("The head reads what its target sees, and this target sees nothing; name its own.")
        settings |= {"steps": STEPS, "visual_ids": host.visual_ids}
        if sees:
            return _vispec(settings, weights)
        return NativeHead("eaglevlm", EagleVLMConfig(**settings), weights)
    return NativeHead("eagle", DecoderConfig(**settings, steps=STEPS), weights)


def _hivis(settings: Mapping[str, Any], weights: dict[str, Tensor]) -> NativeHead:
    """HiViS with the third part of `fc`, and its bias, in the residuals: r W3 + b."""
    fc, residual, bias = (weights.pop(name) for name in ("fc.weight", "residual", "fc.bias"))
    size = settings["hidden_size"]
    if fc.shape != (size, 3 * size) or residual.dim() != 2 or residual.shape[1] != size:
        raise CrossdraftError(
            f"HiViS has an 'fc.weight' [{size}, {3 * size}] and a 'residual' [steps, {size}]; here they are "
            f"{list(fc.shape)} and {list(residual.shape)}."
        )
    steps = residual.float() @ fc[:, 2 * size :].float().T + bias.float()
    weights |= {"fc.weight": fc[:, : 2 * size], "residuals": steps.to(fc.dtype)}
    return NativeHead("hivis", HiViSConfig(**settings, steps=len(residual), first_norm=False), weights)


def _vispec(settings: Mapping[str, Any], weights: dict[str, Tensor]) -> NativeHead:
    """ViSpec with its queries as rows, and `img_fc` as the two layers of its halves."""
    size, queries = settings["hidden_size"], weights.pop("imadpt.q")
    ours = {name.replace("imadpt.", "adaptor."): value for name, value in weights.items()}
    both = ours["img_fc.weight"]
    ours |= {"adaptor.queries": queries.flatten(1), "img_fc.weight": both[:, :size], "global_fc.weight": both[:, size:]}
    return NativeHead("vispec", ViSpecConfig(**settings, num_q=len(queries)), ours)


def _biases(theirs: Mapping[str, Any], tensors: Mapping[str, Tensor], layer: str) -> list[str]:
    """Names of the biases of queries, keys and values, as Qwen2's layers have them, if the head has them."""
    names = [f"{layer}.{bias}" for bias in BIASES]
    there = theirs.get("qkv_bias") is None and any(name in tensors for name in names)
    return names if _flag(theirs, "qkv_bias") or there else []


def read_eagle3(
    theirs: Mapping[str, Any], tensors: Mapping[str, Tensor], host: TargetInfo, drafted: int, steps: int = STEPS_3
) -> NativeHead:
    """Read EAGLE-3 or P-EAGLE from a checked flat config and tensors; `drafted` = D, by the config."""
    levels = _levels(theirs, host)
    spelled = {name.replace("layers.0.", "midlayer.", 1): value for name, value in tensors.items()}
    if len(spelled) != len(tensors):
        raise CrossdraftError("The checkpoint spells its layer both 'midlayer' and 'layers.0'; export it anew.")
    parallel = MASK in tensors
    rest = without_embeddings(spelled, host, trained=parallel)
    maps = {name: rest.pop(name) for name in MAPS if name in rest}
    flags = {flag: _flag(theirs, flag) for flag in FLAGS}
    count, over = divmod(rest["fc.weight"].shape[-1] if "fc.weight" in rest else 0, host.hidden_size)
    count = count if count and not over else 3  # an `fc` of another shape is refused below
    if count != len(levels or (1, 1, 1)):
        raise CrossdraftError(
            f"The checkpoint's 'fc.weight' reads {count} hidden states of the target, and {len(levels or ())} are "
            "named; set levels to as many, as 2,9,17,25."
        )
    deep = [f"layers.{layer}" for layer in range(1, number(theirs, "num_hidden_layers") if parallel else 1)]
    biases = [name for layer in ("midlayer", *deep) for name in _biases(theirs, rest, layer)]
    norms = [*biases, *(f"fc_norm.{level}.weight" for level in range(count if flags["fc_norm"] else 0))]
    if flags["norm_before_fc"]:
        norms.append(name := "input_norm.weight")
        if name not in rest:
            raise CrossdraftError(f"The checkpoint's config.json has norm_before_fc = True, but no '{name}' is there.")
    names = {name: name for name in (*EAGLE3_NAMES, *norms)}
    if parallel:
        names |= {f"{layer}.{part}.weight": f"{layer}.{part}.weight" for layer in deep for part in LAYER_DEEP}
        names |= {MASK: MASK} | ({OWN: "token_embeddings.weight"} if OWN in rest else {})
    weights = renamed(rest, names)
    rows, known = len(weights["lm_head.weight"]), shared_ids(theirs, host)
    if rows != drafted:
        raise CrossdraftError(f"The checkpoint's 'lm_head.weight' has {rows} rows, its config.json says {drafted}.")
    ids = draft_ids_of(maps, rows, number(theirs, "vocab_size"))
    kept = [row for row, token in enumerate(ids) if token < known]
    weights["lm_head.weight"] = weights["lm_head.weight"][kept]
    settings: dict[str, Any] = decoder_settings(theirs, host) | flags | {"qkv_bias": bool(biases)}
    settings |= {"draft_ids": tuple(ids[row] for row in kept), "level_scales": (1.0,) * count}
    if not parallel:
        return NativeHead("eagle3", Eagle3Config(**settings, steps=steps, levels=levels), weights)
    mask = agreed({key: theirs.get(key) for key in MASKS})
    if type(mask) is not int:
        raise CrossdraftError(f"The checkpoint's config.json names no mask: it has no id as one of {', '.join(MASKS)}.")
    weights[MASK] = weights[MASK].flatten()
    settings |= {"layers": 1 + len(deep), "mask_token": mask, "own_embeddings": OWN in rest}
    return NativeHead("peagle", PEagleConfig(**settings, steps=steps, levels=levels), weights)


def _flag(theirs: Mapping[str, Any], key: str) -> bool:
    if (value := theirs.get(key)) not in (True, False, None):
        raise CrossdraftError(f"The checkpoint's config.json has {value!r} as '{key}', which must be true or false.")
    return bool(value)


def _levels(theirs: Mapping[str, Any], host: TargetInfo) -> tuple[int, ...] | None:
    """Hidden states that the head reads, from keys of either convention; `None` = the usual ones."""
    entering = {LEVELS: layers_of(theirs.get(LEVELS), LEVELS)}
    for path in (f"eagle_config.{LEVELS}", "aux_hidden_states_layer_ids"):
        entering[path] = layer_numbers(layers_of(value_at(theirs, path), path), "output", "entering")
    found = agreed({path: layers or None for path, layers in entering.items()})
    return None if found is None or tuple(found) == levels_of(host.num_layers) else tuple(found)


def read_speculators(foreign: ForeignHead, host: TargetInfo) -> NativeHead:
    """Convert speculators' EAGLE-3, P-EAGLE, DFlash or DSpark to our head.

    Raises:
        CrossdraftError: it is of another algorithm, incomplete, or another target's.
    """
    theirs = foreign.config
    check(theirs, speculators_table(theirs), host.sizes)
    layer = theirs.get("transformer_layer_config")
    if not isinstance(layer, Mapping):
        raise CrossdraftError("The checkpoint's config.json lacks 'transformer_layer_config'; is it whole?")
    if "block_size" in theirs:
        read = layers_of(theirs.get("aux_hidden_state_layer_ids"), "aux_hidden_state_layer_ids")
        return read_block(layer, theirs, foreign.tensors, host, read)
    flat = {**layer, **{key: theirs.get(key) for key in (LEVELS, *FLAGS, *MASKS)}}
    return read_eagle3(flat, foreign.tensors, host, number(theirs, "draft_vocab_size"), _steps(theirs))


def _steps(theirs: Mapping[str, Any]) -> int:
    methods = (theirs.get("speculators_config") or {}).get("proposal_methods") or [{}]
    return number(methods[0], "speculative_tokens", STEPS_3)
