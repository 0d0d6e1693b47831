"""PaSS with ids of the vocabulary instead of trained embeddings: an untrained drafter for any target."""

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace

import torch

from crossdraft.engine.probes import Probes
from crossdraft.heads.pass_.drafter import PassDrafter


class LookaheadIds(PassDrafter):
    """Probes these ids in a row after the root and after every node of the draft."""

    def __init__(self, ids: Sequence[int], banned: Sequence[int] = ()) -> None:
        super().__init__(SimpleNamespace(ahead=torch.zeros(len(ids), 1)), banned)
        self.ids = tuple(ids)

    def probes(self, nodes: int) -> Probes:
        return replace(super().probes(nodes), tokens=self.ids * (nodes + 1), embeddings=None)
