"""Heads with random weights for the tiny pair's target, as folders."""

from functools import cache
from pathlib import Path

import torch

from crossdraft.heads.files import config_of, make, save_head
from crossdraft.heads.networks.base import SharedWeights
from crossdraft.load import load_target, target_fingerprint

SIZES = {
    "eagle": {"heads": 2, "kv_heads": 2, "head_dim": 16, "intermediate_size": 32, "steps": 2},
    "medusa": {"steps": 3},
}


@cache
def _tables(target: Path) -> tuple[SharedWeights, dict[str, object]]:
    model = load_target(str(target), "cpu", "float32", packed=False).model
    text = model.config.get_text_config()
    sizes = {
        "hidden_size": text.hidden_size,
        "vocab_size": text.vocab_size,
        "num_layers": text.num_hidden_layers,
        "draft_ids": tuple(range(10, 300)),
    }
    return SharedWeights.of(model), sizes


def random_head(target: Path, folder: Path, network: str) -> Path:
    """Writes one; returns its folder."""
    tables, sizes = _tables(target)
    torch.manual_seed(0)
    head = make(network, config_of(network, {**sizes, **SIZES[network]}, "here"), tables)
    folder.mkdir(parents=True)
    save_head(folder, head, network, target_fingerprint(str(target)))
    return folder
