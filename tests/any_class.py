"""Small configurations of classes that are not in the table of families: the class's own, with little pictures."""

from collections.abc import Mapping
from typing import Any

from transformers import PretrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from crossdraft.checkpoints.shrunk import shrunk

LITTLE = {"image_size": 16, "patch_size": 4, "num_position_embeddings": 16}


def merged(values: dict[str, Any], edits: Mapping[str, Any]) -> dict[str, Any]:
    """Values with others in their place, part by part."""
    for name, value in edits.items():
        inner = isinstance(value, dict) and isinstance(values.get(name), dict) and not name.startswith("rope")
        values[name] = merged(values[name], value) if inner else value
    return values


def little(kind: str, edits: Mapping[str, Any]) -> dict[str, Any]:
    """A class's own configuration, with little pictures; the encoder hands over what the decoder is wide."""
    values = CONFIG_MAPPING[kind]().to_dict()
    vision = values.get("vision_config") or {}
    vision |= {name: value for name, value in LITTLE.items() if isinstance(vision.get(name), int)}
    values = merged(values, edits)
    width = (values.get("text_config") or values).get("hidden_size")
    values |= {"hidden_size": width} if "hidden_size" in values else {}
    vision |= {"out_hidden_size": width} if "out_hidden_size" in vision else {}  # the defaults of some do not fit
    return values


def with_ids(values: dict[str, Any], ids: Mapping[str, Any], vocabulary: int) -> dict[str, Any]:
    """Values with the ids of special tokens, as `{"image_token": 7}`, and the size of the vocabulary."""
    named = {f"{name}_{end}": one for name, one in ids.items() for end in ("id", "index", "ids")}
    for part in (values, values.get("text_config") or {}):
        written = vocabulary - part.get("additional_vocab_size", 0)  # the others are only read
        named |= {"vocab_size": written, "vocab_size_per_layer_input": written}
        part |= {name: one for name, one in named.items() if name in part}
    return values


def config_of(kind: str, edits: Mapping[str, Any], ids: Mapping[str, Any], vocabulary: int) -> PretrainedConfig:
    """A class's own configuration, with little pictures, shrunk; its ids and vocabulary are a tokenizer's."""
    config = CONFIG_MAPPING[kind]
    small = shrunk(config.from_dict(little(kind, edits))).to_dict()
    return config.from_dict(with_ids(small, ids, vocabulary))
