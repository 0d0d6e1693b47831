"""The drafter `memory`: trees from what the target has already answered.

It trusts, in this order, this answer so far, answers about the same clip, to the same question, and all others. It
needs no model and no training, costs well under a millisecond a round, and grows better with every answer.
"""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from crossdraft.drafters.base import fork_of
from crossdraft.drafters.memory.datastore import START, Scope
from crossdraft.drafters.memory.retrieval import retrieve
from crossdraft.drafters.memory.shelf import Datastores
from crossdraft.engine.drafter import Budget, Draft, Needs, VerifyOutput
from crossdraft.engine.request import Request
from crossdraft.engine.tree import DraftTree


@dataclass(eq=False)
class MemoryState:
    """One answer as the memory sees it: whose it is, where it belongs, and its tokens behind START."""

    namespace: str | None
    scope: Scope
    written: list[int]


class MemoryDrafter:
    """Drafts deterministic trees from a shelf of answers, to which every finished answer is added.

    Args:
        shelf: the answers; requests of different namespaces never see each other's.
    """

    needs = Needs(remembers=True)

    def __init__(self, shelf: Datastores | None = None) -> None:
        self.shelf = shelf or Datastores()

    def begin(self, requests: Sequence[Request]) -> list[MemoryState]:
        return [MemoryState(request.namespace, scope_of(request), [START]) for request in requests]

    def propose(self, states: Sequence[MemoryState], budgets: Sequence[Budget]) -> list[Draft]:
        return [self._propose(state, budget) for state, budget in zip(states, budgets, strict=True)]

    def commit(self, states: Sequence[MemoryState], outputs: Sequence[VerifyOutput]) -> None:
        for state, output in zip(states, outputs, strict=True):
            state.written += output.tokens

    def fork(self, states: Sequence[MemoryState]) -> list[MemoryState]:
        return [fork_of(state) for state in states]

    def end(self, states: Sequence[MemoryState]) -> None:
        for state in states:
            if state.namespace is not None and len(state.written) > 1:
                self.shelf.add(state.namespace, state.scope, state.written[1:])

    def _propose(self, state: MemoryState, budget: Budget) -> Draft:
        if state.namespace is None:
            return Draft(DraftTree.empty())
        store = self.shelf.store(state.namespace)
        grown = retrieve(store, state.scope, state.written, budget.nodes, budget.min_confidence)
        tree = DraftTree(grown.tokens, grown.parents)
        if budget.on_token is not None:
            for token in tree.main_path_tokens:
                budget.on_token(token)
        return Draft(tree, grown.path_probs)


def scope_of(request: Request) -> Scope:
    """The same question is the same words, whatever their case and spacing; the same clip is the same file."""
    question = " ".join(request.prompt.casefold().split())
    clip = request.video if isinstance(request.video, str | os.PathLike) else None
    return Scope(number(str(Path(clip).resolve())) if clip is not None else 0, number(question))


def number(text: str) -> int:
    """A number of 63 bits for a text, the same in every process; never 0. File names may be no UTF-8."""
    content = text.encode(errors="surrogatepass")
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest()) >> 1 or 1
