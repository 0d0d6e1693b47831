"""A small head for a target whose tables are given: where joint learning begins."""

import torch

from crossdraft.heads.files import config_of, make
from crossdraft.heads.networks.base import Head, SharedWeights

SIZES = {"eagle3": {"heads": 2, "kv_heads": 2, "head_dim": 16, "intermediate_size": 32, "levels": [1, 1, 2]}}


def medusa_for(tables: SharedWeights, network: str = "medusa", layers: int = 2) -> Head:
    """Fresh, with two levels and the first 300 ids of the target."""
    size, width = tables.head.shape
    values = {"hidden_size": width, "vocab_size": size, "num_layers": layers, "draft_ids": list(range(300)), "steps": 2}
    torch.manual_seed(0)
    return make(network, config_of(network, values | SIZES.get(network, {}), "here"), tables)
