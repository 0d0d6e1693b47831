"""A whole training of a small head, from recipe to folder, in one process or in one rank of several."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from crossdraft.heads.networks.base import Head, HeadConfig, SharedWeights
from crossdraft_lab.train.core.dist import SINGLE, Distributed
from crossdraft_lab.train.heads.feature_task import HeadLoss
from crossdraft_lab.train.heads.recipe import HeadRecipe
from crossdraft_lab.train.heads.run import HeadRun, train_head
from crossdraft_lab.train.heads.task import TaskData
from tests.train.heads.small import HIDDEN, IDS, LAYERS, VOCABULARY, Counting, recipe, shared_weights

SCALED = {
    "network": "eagle3",
    "config": {
        "heads": 2, "kv_heads": 2, "head_dim": 8, "intermediate_size": 24, "steps": 2, "levels": [1, 2, 3],
        "level_scales": [0.3, 0.7, 1.3],
    },
    "loss": {"soft_cross_entropy": 1.0},
    "noise": 0.1,
    "threads": 1,
}  # fmt: skip
QUICK = {"steps": 6, "warmup_steps": 1, "learning_rate": 1e-2, "clips": 8, "checkpoint_every": 3}


@dataclass(frozen=True)
class CountingTask:
    """Numbers that count on, for a target that is nothing but its tables; see `task.HeadTask`."""

    recipe: HeadRecipe
    context: int = 64
    fingerprint: str = "ab" * 32
    draft_ids: Sequence[int] = IDS
    about: str = ""

    @property
    def host(self) -> Any:
        text = SimpleNamespace(
            hidden_size=HIDDEN, num_hidden_layers=LAYERS, num_attention_heads=4, num_key_value_heads=2,
            intermediate_size=40, rope_parameters={"rope_theta": 1e6}, rms_norm_eps=1e-5,
        )  # fmt: skip
        return SimpleNamespace(
            text_config=text, vocab_size=VOCABULARY, context=self.context, device=torch.device("cpu")
        )

    def measured_settings(self, kind: type[HeadConfig], settings: Mapping[str, Any]) -> dict[str, Any]:
        return {}

    def shared_weights(self) -> SharedWeights:
        return shared_weights()

    def data(self, head: Head) -> TaskData:
        data = HeadLoss(head, shared_weights().lm_head[head.draft_ids], self.recipe)
        return TaskData(data.loss_of(Counting()), str, lambda step: data.figures(Counting(), 2))

    def measured_figures(self, head: Head, folder: Path) -> dict[str, object]:
        """Nothing; but the head is left as it would have been measured."""
        torch.save(head.state_dict(), folder / "measured.pt")
        return {}


def run_of(folder: Path, **more: Any) -> HeadRun:
    """A training of a few steps; `optim` is added to what it has."""
    taught = recipe(**SCALED | more | {"optim": QUICK | more.get("optim", {})})
    return HeadRun(taught, CountingTask(taught), {"numbers": True}, folder)


def train(folder: Path, ranks: Distributed = SINGLE, **more: Any) -> dict[str, Any]:
    return train_head(run_of(folder, **more), ranks)


def train_rank(folder: Path, changes: Mapping[str, Any], ranks: Distributed) -> None:
    """Train in one of several ranks; see `tests.train.core.two`."""
    train(folder, ranks, **changes)
