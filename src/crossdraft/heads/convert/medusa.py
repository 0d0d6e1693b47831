"""Medusa checkpoints: a short config, and each head's ResBlocks and LM head under its number.

Medusa's heads have the target's whole vocabulary, ours a draft vocabulary. The rows that ours lack are the target's
own, which is what Medusa's heads are initialised from: valid, and not trained.
"""

from typing import cast

import torch
from torch import Tensor

from crossdraft.config_keys import check
from crossdraft.dtypes import dtype_name
from crossdraft.errors import CrossdraftError
from crossdraft.heads.convert.converter import (
    Converter,
    ForeignHead,
    NativeHead,
    TargetInfo,
    number,
    renamed,
    shared_ids,
)
from crossdraft.heads.convert.layouts import MEDUSA_KEYS
from crossdraft.heads.networks.recurrent import RecurrentConfig

WEIGHTS = "medusa_lm_head.safetensors"


def write(ours: NativeHead, host: TargetInfo) -> ForeignHead:
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
    tensors = {theirs: ours.weights[name] for theirs, name in _names(config.steps, config.layers).items()}
    for head in range(config.steps):
        tensors[f"{head}.{config.layers}.weight"] = _whole(tensors[f"{head}.{config.layers}.weight"], config, host)
    return ForeignHead(theirs, tensors, tuple(_notes(config)))


def _whole(rows: Tensor, config: RecurrentConfig, host: TargetInfo) -> Tensor:
    """[D, H] rows of the draft vocabulary -> [V, H], the other rows being the target's own."""
    every = host.shared.lm_head.detach().to("cpu", rows.dtype).clone()
    every[torch.tensor(config.draft_ids)] = rows
    return every


def _notes(config: RecurrentConfig) -> list[str]:
    notes = [f"Medusa's own code reads 'medusa_lm_head.pt': torch.save what {WEIGHTS} holds under that name."]
    if absent := config.vocab_size - len(config.draft_ids):
        notes.append(
            f"The heads were trained for {len(config.draft_ids)} ids; the rows of the other {absent} are the target's "
            "own, Medusa's initialisation."
        )
    if config.layers > 1:
        notes.append("Medusa's own code shares one ResBlock among a head's layers; these have one each.")
    return notes


def read(foreign: ForeignHead, host: TargetInfo) -> NativeHead:
    """Convert Medusa's heads to ours, over all ids that they share with the target.

    Raises:
        CrossdraftError: they are incomplete, or another target's.
    """
    theirs = foreign.config
    check(theirs, MEDUSA_KEYS, host.sizes)
    heads, layers = number(theirs, "medusa_num_heads"), number(theirs, "medusa_num_layers", 1)
    tensors = {name.removeprefix("medusa_head."): value for name, value in foreign.tensors.items()}
    for head in range(heads):
        rows = tensors.get(f"{head}.{layers}.weight")
        if rows is not None and (rows.dim() != 2 or rows.shape[1] != host.hidden_size):
            raise CrossdraftError(
                f"Medusa's head {head} has {tuple(rows.shape)} output rows, the target "
                f"{tuple(host.shared.lm_head.shape)}; name the target it was made for."
            )
        if rows is not None:  # its vocabulary may be padded otherwise than the target's
            tensors[f"{head}.{layers}.weight"] = rows[: shared_ids({"vocab_size": len(rows)}, host)]
    weights = renamed(tensors, _names(heads, layers))
    known = tuple(range(len(weights[f"heads.0.{layers}.weight"])))
    config = RecurrentConfig(**host.sizes, draft_ids=known, steps=heads, layers=layers)
    return NativeHead("medusa", config, weights)


def _names(heads: int, layers: int) -> dict[str, str]:
    """Medusa's name of each tensor -> our name."""
    parts = [f"{layer}.linear.{kind}" for layer in range(layers) for kind in ("weight", "bias")]
    theirs = [f"{head}.{part}" for head in range(heads) for part in (*parts, f"{layers}.weight")]
    return {name: f"heads.{name}" for name in theirs}


MEDUSA = Converter(("medusa",), write, read, WEIGHTS)
