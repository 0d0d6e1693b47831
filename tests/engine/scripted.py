"""Drafters of tests: what most have in common, and one that proposes given trees and keeps what became of them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from crossdraft.engine.drafter import Budget, Draft, Needs, VerifyOutput
from crossdraft.engine.request import Request
from crossdraft.engine.tree import DraftTree


class IgnoresCommits:
    """A drafter without `begin` and `propose`, which learns nothing at `commit`."""

    needs = Needs()

    def commit(self, states: Sequence[Any], outputs: Sequence[VerifyOutput]) -> None:
        pass

    def fork(self, states: Sequence[Any]) -> list[Any]:
        return [*states]

    def end(self, states: Sequence[Any]) -> None:
        pass


@dataclass
class Scripted(IgnoresCommits):
    """Proposes given trees round by round, and keeps the outputs."""

    trees: list[DraftTree]
    needs: Needs = field(default_factory=Needs)
    outputs: list[VerifyOutput] = field(default_factory=list)

    def begin(self, requests: Sequence[Request]) -> list[int]:
        return [0] * len(requests)

    def propose(self, states: Sequence[int], budgets: Sequence[Budget]) -> list[Draft]:
        return [Draft(self.trees.pop(0) if self.trees else DraftTree.empty()) for _ in states]

    def commit(self, states: Sequence[int], outputs: Sequence[VerifyOutput]) -> None:
        self.outputs += outputs
