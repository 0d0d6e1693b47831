"""A drafter of look-ahead tokens, as in PaSS (Monea 2023): the target says itself what comes several places on.

Ids that stand for "some token, not known yet" are probed behind the root and behind every node of the draft:

    root ─ 0:"the" ─ 1:"car"          drafted last time
     ├ ? ─ ?  ├ ? ─ ?  └ ? ─ ?        look-ahead ids; the first one stands where the target's own token will

Wherever the draft turns out to end, the ids behind that node have read the next draft, so that every pass verifies one
draft and makes another. An untrained target says little behind such ids: they are worth it once they are trained. They
are ids, hence rows of the target's embedding table; `pass_` has embeddings of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from crossdraft.drafters.base import fork_of
from crossdraft.engine.drafter import Budget, Draft, Needs, VerifyOutput
from crossdraft.engine.probes import Probes
from crossdraft.engine.request import Request
from crossdraft.engine.tree import ROOT, DraftTree


@dataclass(eq=False)
class Ahead:
    """One answer: what the target said of the places behind the one that it comes to now."""

    tokens: tuple[int, ...] = ()


class AheadDrafter:
    """Drafts what the target said behind look-ahead ids.

    Args:
        ids: the look-ahead ids, in a row; as many tokens are drafted.
        banned: ids that must not be drafted.
    """

    def __init__(self, ids: Sequence[int], banned: Sequence[int] = ()) -> None:
        self.ids = tuple(ids)
        self.banned = frozenset(banned)
        self.needs = Needs(probes=len(self.ids) * (len(self.ids) + 1))

    def begin(self, requests: Sequence[Request]) -> list[Ahead]:
        return [Ahead() for _ in requests]

    def propose(self, states: Sequence[Ahead], budgets: Sequence[Budget]) -> list[Draft]:
        drafts = []
        for state, budget in zip(states, budgets, strict=True):
            tree = DraftTree.chain(state.tokens[: budget.nodes])
            if budget.on_token is not None:
                for token in tree.tokens:
                    budget.on_token(token)
            drafts.append(Draft(tree, probes=self.probes(len(tree))))
        return drafts

    def commit(self, states: Sequence[Ahead], outputs: Sequence[VerifyOutput]) -> None:
        for state, output in zip(states, outputs, strict=True):
            end = len(output.path) * len(self.ids)  # a chain: the ids behind the last accepted node
            said = [top[0] for top in output.probe_top[end : end + len(self.ids)]]
            stop = next((i for i, token in enumerate(said) if token in self.banned), len(said))
            state.tokens = tuple(said[:stop])

    def probes(self, nodes: int) -> Probes:
        """What is asked about behind a chain of so many nodes."""
        return ids_behind_all(self.ids, nodes)

    def fork(self, states: Sequence[Ahead]) -> list[Ahead]:
        return [fork_of(state) for state in states]

    def end(self, states: Sequence[Ahead]) -> None:
        """Nothing to free."""


def ids_behind_all(ids: Sequence[int], nodes: int) -> Probes:
    """The ids in a row behind the root and behind every node of a chain.

    >>> ids_behind_all([8, 9], 1)
    Probes(tokens=(8, 9, 8, 9), parents=(-1, 1, 0, 3), top=1)
    """
    parents: list[int] = []
    for node in range(ROOT, nodes):
        behind = nodes + len(parents)
        parents += [node, *range(behind, behind + len(ids) - 1)]
    return Probes(tuple(ids) * (nodes + 1), tuple(parents), top=1)
