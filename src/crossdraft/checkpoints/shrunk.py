"""A small random model of a checkpoint's class and configuration, on which an adapter is tried in seconds.

Kept are every kind of layer, the heads' dimensions and their sharing of keys, the rotation of positions, and the
geometry of images (patches, merging, positions), so that what the checkpoint's processor writes can be read. Widths,
experts, the vocabulary and the number of layers shrink; a window becomes shorter than a prompt, so that it acts.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel

from crossdraft.engine.traits import embedded_ids

ORDINARY = 128  # ids of a small vocabulary that no key of the configuration names
NOTHING = 1e-6  # some encoders begin with weights of 1e-10
WINDOW, WIDTH, EXPERTS, RANK = 8, 64, 4, 32
LEFT_OUT = ("transformers_version", "dtype", "_name_or_path", "quantization_config", "id2label", "label2id")
WIDTHS = re.compile(r"hidden|embed|proj|intermediate|ffn|mlp|d_model|n_inner|(out|output|in)_dim$|adapter")
KEPT = re.compile(r"layers?$|^num_|position|_act|head_(dim|size)|factor|token|std|dropout|_type|bias|ratio|scale|group")
OWN_WIDTH = ("embed_dim", "hidden_size", "d_model", "n_embd", "hidden_dim")
HEADS = ("num_attention_heads", "num_heads", "n_head", "encoder_attention_heads", "attention_heads")
DEPTHS = ("num_hidden_layers", "depth", "n_layer", "n_layers", "num_layers", "layers", "encoder_layers", "num_blocks")
WINDOWS = ("sliding_window", "sliding_window_size", "attention_chunk_size")
EVERY = re.compile(r"_(step|interval|period|freq|pattern|every_n)$")  # a kind of layer comes every so many layers
RATES = ("A_log", "dt_bias")  # of a state's decay: three times as large, nothing is remembered
IDS = re.compile(r"(_ids?|token_index|padding_idx)$")


@dataclass(frozen=True)
class _Part:
    """A decoder or an encoder in a configuration: its width, and the width that it gets."""

    values: dict[str, Any]
    width: int
    small: int


def shrunk(config: PretrainedConfig) -> PretrainedConfig:
    """Shrink a configuration; the class is the same, and a model of it has some million weights at most.

    Raises:
        ValueError: and whatever else the configuration's class raises of values that exclude each other.
    """
    values, text = config.to_dict(), config.get_text_config()
    for one in list(_dicts(values)):
        for name in LEFT_OUT:
            one.pop(name, None)
    ids = _small_ids(values, embedded_ids(config))
    decoder = _part_of(values, config)
    if not _depth(decoder)[1]:  # Nemotron-H counts its layers by their types
        decoder["num_hidden_layers"] = text.num_hidden_layers
    if "n_groups" in decoder:  # of Mamba-2's heads, of which few are left
        decoder["n_groups"] = min(decoder["n_groups"], 2)
    parts = [_Part(one, *widths) for one in _parts(values) if (widths := _widths(one, one is decoder))]
    parts.sort(key=lambda part: part.values is not decoder)
    for part in parts:
        _shrink_layers(part.values, least=2 if part.values is decoder else 3)
    for one in _dicts(values):
        if "architecture" in one:  # a tower of timm has the sizes of its name
            continue
        own = next((part for part in parts if part.values is one), None)
        _shrink_sizes(one, own, parts)
        _rename_ids(one, ids, text.vocab_size)
        for name in ("vision_feature_layer", "vision_feature_layers"):
            if len(parts) > 1 and one.get(name) is not None:
                one[name] = _nearest(one[name], min(_depth(part.values)[1] for part in parts[1:]))
    return type(config).from_dict(values)


def shrunk_ids(config: PretrainedConfig, ids: Tensor) -> Tensor:
    """Ids [L] of a checkpoint's vocabulary as ids of the shrunk one: what a configuration names keeps its meaning."""
    named = _small_ids(config.to_dict(), embedded_ids(config))
    return torch.tensor([named.get(one, one % ORDINARY) for one in ids.tolist()], dtype=ids.dtype)


def built(kind: Any, config: PretrainedConfig) -> PreTrainedModel:
    """Make a model of a class, or of an auto class, with sdpa attention, or eager where its class has no other."""
    make = kind.from_config if hasattr(kind, "from_config") else kind._from_config  # noqa: SLF001 - of every class
    try:
        return make(config, attn_implementation="sdpa")
    except ValueError as error:
        if "scaled_dot_product_attention" not in str(error):
            raise
        return make(config, attn_implementation="eager")


def shrunk_model(kind: Any, config: PretrainedConfig, dtype: torch.dtype) -> PreTrainedModel:
    """Make a random model of a class, or of an auto class, and of the shrunk configuration; see `random_model`."""
    return random_model(kind, shrunk(config), dtype)


def random_model(kind: Any, config: PretrainedConfig, dtype: torch.dtype) -> PreTrainedModel:
    """Make a random model of a class, or of an auto class.

    Its weights, other than rates of decay, are three times as large as usual, and none is next to zero, so that what it
    reads decides what it says.
    The seed is fixed, and the caller's random numbers stay as they are.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model: Any = built(kind, config).eval()
        model.to(dtype)
        model.set_experts_implementation("eager")  # the others have no kernels for doubles
        with torch.no_grad():
            for name, weight in model.named_parameters():
                weight.mul_(1 if name.endswith(RATES) else 3)
                if weight.abs().max() < NOTHING:
                    weight.normal_(0, 0.1)
        for module in model.modules():
            if hasattr(module, "time_step_limit"):  # transformers 5.23 clamps a prompt's steps and not those of answers
                module.time_step_limit = (0.0, math.inf)
    return model


def _dicts(values: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a configuration's values, and those of its parts, of any depth."""
    yield values
    for name, value in values.items():
        numbered = isinstance(value, dict) and not all(isinstance(key, str) for key in value)
        if isinstance(value, dict) and not numbered and not re.search(r"rope|per_layer|model_args", name):
            yield from _dicts(value)


def _parts(values: dict[str, Any]) -> list[dict[str, Any]]:
    return [one for one in _dicts(values) if any(isinstance(one.get(name), int) for name in DEPTHS)]


def _part_of(values: dict[str, Any], config: PretrainedConfig) -> dict[str, Any]:
    """The values of the decoder."""
    kind = config.get_text_config().model_type
    return next((one for one in _dicts(values) if one.get("model_type") == kind), values)


def _first(values: Mapping[str, Any], names: Sequence[str]) -> tuple[str, int]:
    """The first of some keys that has a number, and the number; an empty key and 0 if none has one."""
    return next(((name, values[name]) for name in names if isinstance(values.get(name), int)), ("", 0))


def _depth(values: Mapping[str, Any]) -> tuple[str, int]:
    return _first(values, DEPTHS)


def _widths(values: dict[str, Any], decodes: bool) -> tuple[int, int] | None:
    """A part's width and the one that it gets; its heads are changed. `None` if it does not say its width."""
    width, heads = _first(values, OWN_WIDTH)[1], _first(values, HEADS)[1]
    if not width:
        return None
    if not heads:
        return width, min(width, WIDTH)
    keys = values.get("num_key_value_heads")
    shared = isinstance(keys, int) and 1 < keys < heads
    few = min(heads, 4 if shared else 2)
    for key, value in values.items():
        if re.search(r"heads$|^n_head$", key) and isinstance(value, int):
            values[key] = few if value == heads else min(value, 2) if "key" in key or not decodes else min(value, 4)
    size = values.get("head_dim")
    if isinstance(size, int) and size != width // heads:
        return width, WIDTH * few
    return width, few * (width // heads)


def _shrink_layers(values: dict[str, Any], least: int) -> None:
    """Keep the first layer of each kind, and the last; every list with an entry for each layer is cut with them."""
    name, depth = _depth(values)
    whole = {key: value for key, value in values.items() if isinstance(value, list) and len(value) == depth > 1}
    chosen = {key: value for key, value in values.items() if _names_layers(key, value, depth)}
    whole = {key: value for key, value in whole.items() if key not in chosen}
    shares, dense = values.get("num_kv_shared_layers") or 0, values.get("first_k_dense_replace") or 0
    kinds: dict[str, int] = {}
    for layer in range(depth):
        flags = [layer in value for value in chosen.values()]
        flags += [layer >= depth - shares, layer < dense, str(layer) in map(str, values.get("per_layer_config") or ())]
        kind = repr([*(value[layer] for value in whole.values()), *flags])
        kinds.setdefault(kind, layer)
    step = max((value for key, value in values.items() if EVERY.search(key) and type(value) is int), default=1)
    kept = sorted({*kinds.values(), *range(min(depth, least - 1, 4)), depth - 1})
    if 1 < step <= 8 and not whole:
        kept = list(range(min(depth, 2 * step)))
    for key, value in whole.items():
        values[key] = [value[layer] for layer in kept]
    for key, value in chosen.items():
        values[key] = [kept.index(layer) for layer in value if layer in kept]
    if own := values.get("per_layer_config"):
        values["per_layer_config"] = {kept.index(int(layer)): own[layer] for layer in own if int(layer) in kept}
    values[name] = len(kept)
    if shares:
        values["num_kv_shared_layers"] = sum(layer >= depth - shares for layer in kept)
    if dense:
        values["first_k_dense_replace"] = sum(layer < dense for layer in kept)


def _names_layers(key: str, value: object, depth: int) -> bool:
    """True if a value is a list of layers' numbers."""
    listed = value if isinstance(value, list) and re.search(r"layer|idx|index", key) else []
    numbers = [one for one in listed if type(one) is int and 0 <= one < depth]
    return bool(numbers) and numbers == sorted(set(listed))


def _nearest(layers: Any, depth: int) -> Any:
    """Numbers of layers, counted from the end, within the layers that there are."""
    if isinstance(layers, list):
        return [_nearest(layer, depth) for layer in layers]
    return max(layers, -depth) if layers < 0 else min(layers, depth - 1)


def _shrink_sizes(values: dict[str, Any], own: _Part | None, parts: Sequence[_Part]) -> None:
    """Shrink widths, ranks, experts and windows; what equals a part's width, or some of them, still does."""
    for key, value in values.items():
        if isinstance(value, list) and value and "intermediate" in key and all(type(one) is int for one in value):
            values[key] = [min(one, WIDTH) for one in value]
        if isinstance(value, list) and key.endswith("channels"):  # the last is as wide as the next encoder
            values[key] = [next((part.small for part in parts if part.width == one), one) for one in value]
        if type(value) is not int:
            continue
        if key in WINDOWS:
            values[key] = min(value, WINDOW)
        elif "expert" in key or key in ("n_group", "topk_group", "moe_k", "moe_topk"):
            values[key] = _experts(key, value)
        elif key.endswith("_rank"):
            values[key] = min(value, RANK)
        elif WIDTHS.search(key) and not KEPT.search(key):
            values[key] = _width(key, value, own, parts)


def _experts(key: str, value: int) -> int:
    if re.search(r"size|dim", key):
        return min(value, WIDTH)
    if "shared" in key or key == "topk_group":
        return min(value, 1)
    return min(value, 2 if re.search(r"per_tok|topk|top_k|moe_k|n_group", key) else EXPERTS)


def _width(key: str, value: int, own: _Part | None, parts: Sequence[_Part]) -> int:
    """The small width in place of another: a multiple of the part's own, of the decoder's, or of another part's."""
    decoder = parts[0]
    given = value == decoder.width and re.search("out|text|proj", key)  # what an encoder hands to the decoder
    if own is not None and value == own.width and not given:
        return own.small
    if own is decoder and "intermediate" in key:
        return min(value, WIDTH)
    for part in (decoder, *([own] if own else []), *parts):
        if value == part.width:
            return part.small
    for part in [own] if own else parts[::-1]:
        if value % part.width == 0:
            return part.small * (value // part.width)
    return min(value, WIDTH)


def _small_ids(values: dict[str, Any], vocabulary: int) -> dict[int, int]:
    """Small ids of those that a configuration names, behind the ordinary ones."""
    named = sorted({one for part in _dicts(values) for key in part for one in _ids_at(part, key, vocabulary)})
    return {one: ORDINARY + number for number, one in enumerate(named)}


def _ids_at(values: Mapping[str, Any], key: str, vocabulary: int) -> list[int]:
    """The ids that a key holds, which may be one or a list."""
    found = values[key] if IDS.search(key) and not re.search(r"layer|group", key) else None
    listed = found if isinstance(found, list) else [found]
    return [one for one in listed if type(one) is int and 0 <= one < vocabulary]


def _rename_ids(values: dict[str, Any], ids: Mapping[int, int], vocabulary: int) -> None:
    small = -(-(ORDINARY + len(ids)) // 8) * 8
    for key, value in values.items():
        if found := [ids[one] for one in _ids_at(values, key, 1 + max(ids, default=0))]:
            values[key] = found if isinstance(value, list) else found[0]
        elif "vocab_size" in key and type(value) is int:
            values[key] = small if value >= vocabulary else min(value, 2 * ORDINARY)
