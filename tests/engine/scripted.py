"""Drafters of tests: what most have in common, and one that proposes given trees and keeps what became of them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from crossdraft.drafters.base import fork_of
from crossdraft.engine.drafter import Budget, Draft, Needs, VerifyOutput
from crossdraft.engine.request import Request
from crossdraft.engine.tree import DraftTree
from crossdraft.errors import CrossdraftError


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


@dataclass
class Count:
    """A text that counts on from its last token; `tail` is what was written of it already."""

    last: int = 0
    tail: list[int] = field(default_factory=list)


class Counting:
    """Writes 1, 2, 3 …, a token at a time, and keeps of its text what the target agrees with."""

    needs = Needs()

    def begin(self, requests: Sequence[Request]) -> list[Count]:
        return [Count() for _ in requests]

    def propose(self, states: Sequence[Count], budgets: Sequence[Budget]) -> list[Draft]:
        return [self._propose(state, budget) for state, budget in zip(states, budgets, strict=True)]

    def _propose(self, state: Count, budget: Budget) -> Draft:
        while len(state.tail) < budget.nodes and not budget.stopped:
            state.tail.append((state.tail or [state.last])[-1] + 1)
        return Draft(DraftTree.chain(state.tail[: budget.nodes]))

    def commit(self, states: Sequence[Count], outputs: Sequence[VerifyOutput]) -> None:
        for state, output in zip(states, outputs, strict=True):
            state.last = output.tokens[-1]
            agrees = tuple(state.tail[: len(output.tokens)]) == output.tokens
            state.tail = state.tail[len(output.tokens) :] if agrees else []

    def fork(self, states: Sequence[Count]) -> list[Count]:
        return [fork_of(state) for state in states]

    def end(self, states: Sequence[Count]) -> None:
        pass


@dataclass
class Refusing:
    """Drafts one token for whoever asks, but refuses, in one of its methods, the question "no"."""

    method: str
    needs: Needs = field(default_factory=Needs)
    begun: list[str] = field(default_factory=list)
    committed: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)

    def _check(self, method: str, question: str) -> None:
        if method == self.method and question == "no":
            raise CrossdraftError("not this one")

    def begin(self, requests: Sequence[Request]) -> list[str]:
        for request in requests:
            self._check("begin", request.question)
            self.begun.append(request.question)
        return [request.question for request in requests]

    def propose(self, states: Sequence[str], budgets: Sequence[Budget]) -> list[Draft]:
        for state in states:
            self._check("propose", state)
        return [Draft(DraftTree.chain([1])) for _ in states]

    def commit(self, states: Sequence[str], outputs: Sequence[VerifyOutput]) -> None:
        for state in states:
            self._check("commit", state)
            self.committed.append(state)

    def fork(self, states: Sequence[str]) -> list[str]:
        return [*states]

    def end(self, states: Sequence[str]) -> None:
        for state in states:
            self.ended.append(state)
            self._check("end", state)
