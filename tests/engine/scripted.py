"""A drafter that proposes given trees, and keeps what the target made of them."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from crossdraft.engine.drafter import Budget, Draft, Needs, VerifyOutput
from crossdraft.engine.request import Request
from crossdraft.engine.tree import DraftTree


@dataclass
class Scripted:
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

    def fork(self, states: Sequence[int]) -> list[int]:
        return [*states]

    def end(self, states: Sequence[int]) -> None:
        pass
