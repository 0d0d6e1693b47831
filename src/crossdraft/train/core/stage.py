"""A training stage: its place on disk and its settings."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crossdraft.train.core.recipe import Optim


@dataclass(frozen=True, slots=True)
class Stage:
    """One training stage: where it keeps its checkpoints and log, and what it optimises.

    Args:
        identity: what decides the weights, by name: a checkpoint of another one is refused. `None` = whoever runs the
            stage knows whose its folder is.
    """

    folder: Path
    name: str
    optim: Optim
    identity: Mapping[str, Any] | None = None

    @property
    def checkpoint(self) -> Path:
        return self.folder / f"{self.name}.ckpt"

    @property
    def best(self) -> Path:
        """The weights of the best check, where one is watched."""
        return self.folder / f"{self.name}.best.ckpt"

    @property
    def log(self) -> Path:
        return self.folder / f"{self.name}.log.jsonl"
