"""A target's input and output embeddings, loaded without its other weights."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from torch import Tensor
from transformers import PreTrainedModel

from crossdraft.checkpoints.locate import TARGETS
from crossdraft.checkpoints.weights import load_weights
from crossdraft.dtypes import DTYPES
from crossdraft.engine.devices import usable_device
from crossdraft.load import checked_folder, class_of, load_tokenizer, reserved_of, usual_dtype


def load_embeddings(
    source: str = "reference", device: str | None = None, dtype: str | None = None
) -> tuple[Tensor, Tensor]:
    """Load a target's input and output embeddings [V, H]; no other weights are read.

    Args:
        source, device, dtype: as in `load_target`.

    Raises:
        CrossdraftError: as `load_target`.
    """
    model, _ = _with_embeddings(source, device, dtype)
    layers = model.get_input_embeddings(), model.get_output_embeddings()
    return layers[0].weight.detach(), layers[1].weight.detach()


@dataclass(frozen=True)
class OutputHead:
    """A target's output head: its output embeddings [V, H], and the ids among them that are no text."""

    weight: Tensor
    reserved: frozenset[int]


def load_output_head(source: str = "reference", device: str | None = None, dtype: str | None = None) -> OutputHead:
    """Load a target's output head and little else; arguments and errors as in `load_embeddings`."""
    model, folder = _with_embeddings(source, device, dtype)
    return OutputHead(
        model.get_output_embeddings().weight.detach(), frozenset(reserved_of(model, load_tokenizer(folder)))
    )


def _with_embeddings(source: str, device: str | None, dtype: str | None) -> tuple[Any, Path]:
    """Load a target with its embeddings alone; also return its folder."""
    folder = checked_folder(source, TARGETS)
    where, kind = usable_device(device or None, "device"), class_of(folder)
    loaded, fill = load_weights(kind, folder, DTYPES[usual_dtype(dtype)], where, _all_but_embeddings)
    model: Any = loaded
    for layer in (model.get_input_embeddings(), model.get_output_embeddings()):
        fill(layer)
        layer.to(where)
    return model, folder


def _all_but_embeddings(model: PreTrainedModel) -> int:
    """Bytes of a model's weights other than its embeddings."""
    kept = {id(cast("Any", layer).weight) for layer in (model.get_input_embeddings(), model.get_output_embeddings())}
    return sum(weight.numel() * weight.element_size() for weight in model.parameters() if id(weight) not in kept)
