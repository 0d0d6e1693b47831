"""Training batches made by hand and a head small enough to learn in a second."""

from dataclasses import dataclass

import torch

from crossdraft.heads.files import config_of, make
from crossdraft.heads.networks.base import Head, SharedWeights
from crossdraft.heads.networks.train_batch import TrainBatch
from crossdraft.heads.registry import NETWORKS
from crossdraft_lab.train.core.dist import MicroBatch
from crossdraft_lab.train.heads.recipe import HeadRecipe

HIDDEN, VOCABULARY, LAYERS = 16, 30, 4
IDS = tuple(range(2, 22))


def shared_weights() -> SharedWeights:
    generator = torch.Generator().manual_seed(3)
    rows = torch.randn(2, VOCABULARY, HIDDEN, generator=generator)
    return SharedWeights(rows[0], rows[1])


def small_head(network: str = "eagle", steps: int = 2) -> Head:
    torch.manual_seed(0)
    config = NETWORKS[network].config_class(
        hidden_size=HIDDEN, vocab_size=VOCABULARY, num_layers=LAYERS, draft_ids=IDS, heads=2, kv_heads=2,
        head_dim=8, intermediate_size=24, steps=steps,
    )  # fmt: skip
    return make(network, config, shared_weights())


def counting(rows: int, first: int = 0) -> TrainBatch:
    """Answers that count on, modulo the draft vocabulary; each feature points at the token after it."""
    length, start = 12, 4
    begin = torch.arange(first, first + rows)[:, None]
    tokens = IDS[0] + (begin + torch.arange(length)) % len(IDS)
    directions = shared_weights().lm_head
    hidden = torch.zeros(rows, length, HIDDEN)
    hidden[:, :-1] = 3 * directions[tokens[:, 1:]] / directions[tokens[:, 1:]].norm(dim=-1, keepdim=True)
    return TrainBatch(
        tokens, dict.fromkeys(range(LAYERS + 1), hidden), torch.full((rows,), start), torch.full((rows,), length)
    )


@dataclass(frozen=True)
class Counting:
    """An endless source of such answers."""

    def batch(self, step: int, count: int, share: MicroBatch) -> TrainBatch:
        part = share.take(range(step * count, step * count + count))
        return counting(len(part), part[0] % len(IDS))

    def describe(self, step: int, count: int) -> str:
        return f"numbers from {step * count}"


def recipe(**more: object) -> HeadRecipe:
    values = {
        "network": "eagle",
        "loss": {"soft_cross_entropy": 1.0, "smooth_l1": 0.2},
        "optim": {
            "steps": 40, "warmup_steps": 4, "learning_rate": 1e-2, "clips": 8, "checkpoint_every": 20,
            "decay_steps": 10,
        },
    }  # fmt: skip
    return HeadRecipe.model_validate({**values, **more})


SIZES = {"eagle3": {"heads": 2, "kv_heads": 2, "head_dim": 16, "intermediate_size": 32, "levels": [1, 1, 2]}}


def medusa_for(shared_weights: SharedWeights, network: str = "medusa", layers: int = 2) -> Head:
    """Fresh, with two levels and the first 300 ids of the target."""
    size, width = shared_weights.lm_head.shape
    values = {"hidden_size": width, "vocab_size": size, "num_layers": layers, "draft_ids": list(range(300)), "steps": 2}
    torch.manual_seed(0)
    return make(network, config_of(network, values | SIZES.get(network, {}), "here"), shared_weights)
