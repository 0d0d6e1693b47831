"""A small random adapter of any network for a pair of models, in double precision, whose every weight matters."""

from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import cast

import torch

from crossdraft.engine.target import Target
from crossdraft.heads.files import make
from crossdraft.heads.networks.base import SharedWeights
from crossdraft.heads.registry import NETWORKS
from crossdraft.load import event_fingerprint
from crossdraft_lab.align.embeddings import load_embeddings
from crossdraft_lab.align.networks.base import Adapter

IDS = tuple(range(30, 300))


@cache
def embeddings_of(target: Path) -> SharedWeights:
    return SharedWeights(*(rows.double() for rows in load_embeddings(str(target), "cpu", "float32")))


def some_adapter(network: str, target: Path, event: Path, model: Target, **more: object) -> Adapter:
    """For the target in that folder and the event model, which is loaded as `model`."""
    shared = embeddings_of(target)
    vocabulary, size = shared.lm_head.shape
    values = {
        "hidden_size": size, "vocab_size": vocabulary, "num_layers": 2, "draft_ids": IDS, "heads": 4, "kv_heads": 2,
        "head_dim": 8, "intermediate_size": 48, "steps": 4, "width": 24, "positions": 64,
        "visual_size": 12, "patches": 5, "frames": 2,
        "drafter": event_fingerprint(str(event)), "source_size": model.text_config.hidden_size,
        "source_layers": (0, 1, 2) if network == "levels" else (model.text_config.num_hidden_layers,),
    } | more  # fmt: skip
    kind = NETWORKS[network].config_class
    names = {field.name for field in fields(kind)}
    torch.manual_seed(0)
    adapter = make(network, kind(**{name: value for name, value in values.items() if name in names}), shared).double()
    with torch.no_grad():
        for weight in adapter.parameters():
            weight.add_(torch.randn_like(weight), alpha=0.3)
    return cast("Adapter", adapter.eval())
