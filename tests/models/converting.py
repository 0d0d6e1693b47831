"""Official checkpoints to convert, whose tokenizer has as many tokens as the embedding has rows."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from crossdraft.models.eventgpt import EventGPTConversion, convert_eventgpt
from tests.models.official import byte_tokenizer, official_weights, write_official

ROWS = 270


def official_source(tmp_path: Path, weights: Mapping[str, Tensor] | None = None, **layout: Any) -> Path:
    """The folder `source` with these weights; `layout` as `write_official` takes it."""
    return write_official(tmp_path / "source", weights or official_weights(ROWS), byte_tokenizer(ROWS), **layout)


def convert(tmp_path: Path, weights: Mapping[str, Tensor] | None = None, **config: Any) -> EventGPTConversion:
    """Convert `official_source` into the folder `out`."""
    return convert_eventgpt(official_source(tmp_path, weights, **config), tmp_path / "out")
