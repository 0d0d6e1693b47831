"""Outputs of vision encoders, item by item: joined as a model's forward takes them, and split again."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.modeling_outputs import BaseModelOutputWithPooling
from transformers.utils import ModelOutput

LAST = "last_hidden_state"  # read by models whose encoders have no `pooler_output` (Llama 4)
UNREAD = (LAST, "hidden_states", "attentions")  # fields of an encoder's output that no model reads


def without_unread(features: Any) -> Any:
    """Drop the fields of an encoder's output that only fill memory."""
    if not isinstance(features, ModelOutput):
        return features
    return _with(features, {name: value for name, value in features.items() if name not in UNREAD})


def joined(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Features of items that were encoded one by one, as if they had been encoded together.

    Args:
        parts: for each item, the output of the model's feature function by kind.

    Returns:
        one output for each kind, whose `pooler_output` holds all items in their order: [1, N, h], or a tuple of [n, h]
        if the function returns tuples.
    """
    kinds = dict.fromkeys(kind for part in parts for kind in part)
    return {kind: _joined([part[kind] for part in parts if kind in part]) for kind in kinds}


def _joined(outputs: Sequence[Any]) -> Any:
    if len(outputs) == 1:
        return outputs[0]
    if outputs[0].pooler_output is None:
        return _with(outputs[0], {LAST: torch.cat([output[LAST] for output in outputs])})
    found = [without_unread(output) for output in outputs]
    first: Any = found[0].pooler_output
    pooled: Any = tuple(row for output in found for row in output.pooler_output)
    if isinstance(first, Tensor):  # items may be of several lengths
        pooled = torch.cat([output.pooler_output.reshape(-1, first.shape[-1]) for output in found])[None]
    names = [name for name in found[0] if name != "pooler_output"]  # features of deeper layers, [n, h] of each
    further = {
        name: [
            tuple(row for rows in layer for row in rows) for layer in zip(*(one[name] for one in found), strict=True)
        ]
        for name in names
    }
    return _with(found[0], {**further, "pooler_output": pooled})


def _with(output: Any, values: Mapping[str, Any]) -> Any:
    kind = type(output) if isinstance(output, ModelOutput) else BaseModelOutputWithPooling
    return kind(**{LAST: None, **values})  # which some kinds must be given


def last_features(encoded: Mapping[str, Any], counts: Mapping[str, int]) -> dict[str, Any]:
    """The features of the last rows only, `counts` of each kind; kinds without rows are left out."""
    return {kind: _rows(encoded[kind], -count, None) for kind, count in counts.items() if count and kind in encoded}


def first_features(encoded: Mapping[str, Any], counts: Mapping[str, int]) -> dict[str, Any]:
    """The features of the first rows only, `counts` of each kind; kinds without rows are left out."""
    return {kind: _rows(encoded[kind], 0, count) for kind, count in counts.items() if count and kind in encoded}


def _rows(output: Any, start: int, stop: int | None) -> Any:
    pooled: Any = output.pooler_output
    if pooled is None:
        flat = output[LAST].flatten(0, -2)
        return _with(output, {LAST: flat[start:stop][None]})
    parts: list[Tensor] = [pooled] if isinstance(pooled, Tensor) else list(pooled)
    found = torch.cat([part.reshape(-1, part.shape[-1]) for part in parts])
    rows: Any = found[start:stop]
    if len(rows) == len(found):
        return output
    further = {
        name: [(torch.cat(tuple(layer))[start:stop],) for layer in value]
        for name, value in output.items()
        if name != "pooler_output" and name not in UNREAD
    }
    return _with(output, {**further, "pooler_output": rows[None] if isinstance(pooled, Tensor) else (rows,)})


def visual_rows(features: Any) -> Tensor:
    """[n, h] visual features, in the order of their placeholders."""
    pooled = features[LAST] if features.pooler_output is None else features.pooler_output
    parts = [pooled] if isinstance(pooled, Tensor) else list(pooled)
    return torch.cat([part.reshape(-1, part.shape[-1]) for part in parts])
