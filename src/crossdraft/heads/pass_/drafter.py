"""The drafter `pass`, PaSS (Monea et al. 2023): the target reads learned look-ahead embeddings and drafts for itself.

The embeddings stand for unknown tokens. They are probe rows after the root and after every node of the draft, so that
one pass both verifies a draft and makes the next one, as in P-EAGLE (2026); PaSS takes two passes:

    root ─ 0:"the" ─ 1:"car"          drafted last round
     ├ ? ─ ?  ├ ? ─ ?  └ ? ─ ?        look-ahead rows; the first has the position of the target's own token

Wherever the draft is rejected, the rows after the last accepted node predict the next draft. That costs L·(L + 1) rows
a pass: little on a GPU, much on a CPU. The target's weights are unchanged: the embeddings are trained
(`train.heads.pass_task`). They have no ids, so the drafter runs in the target's process.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from crossdraft.drafters.base import PerRequestDrafter, show
from crossdraft.engine.drafter import Budget, Draft, Needs, VerifyOutput
from crossdraft.engine.probes import Probes
from crossdraft.engine.request import Request
from crossdraft.engine.tree import ROOT, DraftTree
from crossdraft.heads.pass_.network import LookaheadEmbeddings

PLACEHOLDER = 0  # the id at an embedding's position; nothing reads it


@dataclass(eq=False)
class PassState:
    """One request: the next draft, as the target predicted it in its last pass."""

    tokens: tuple[int, ...] = ()


class PassDrafter(PerRequestDrafter[PassState]):
    """Drafts what the target predicted after learned embeddings.

    Args:
        head: L embeddings, on the target's device; L tokens are drafted.
        banned: ids that must not be drafted.
    """

    def __init__(self, head: LookaheadEmbeddings, banned: Sequence[int] = ()) -> None:
        self.embeddings = head.ahead.detach()
        self.banned = frozenset(banned)
        count = len(self.embeddings)
        self.needs = Needs(probes=count * (count + 1))

    def _begin(self, request: Request) -> PassState:
        return PassState()

    def _propose(self, state: PassState, budget: Budget) -> Draft:
        tree = DraftTree.chain(state.tokens[: budget.nodes])
        show(tree.tokens, budget)
        return Draft(tree, probes=self.probes(len(tree)))

    def _commit(self, state: PassState, output: VerifyOutput) -> None:
        count = len(self.embeddings)
        first = len(output.path) * count  # a chain: the rows after the last accepted node
        predicted = [top[0] for top in output.probe_top[first : first + count]]
        stop = next((i for i, token in enumerate(predicted) if token in self.banned), len(predicted))
        state.tokens = tuple(predicted[:stop])

    def probes(self, nodes: int) -> Probes:
        """Look-ahead rows after the root and each of `nodes` nodes of a chain."""
        count = len(self.embeddings)
        tokens = (PLACEHOLDER,) * (count * (nodes + 1))
        return Probes(tokens, lookahead_parents(count, nodes), top=1, embeddings=self.embeddings.repeat(nodes + 1, 1))


def lookahead_parents(count: int, nodes: int) -> tuple[int, ...]:
    """Parents of `count` rows in a chain after the root, and after every node of a chain.

    >>> lookahead_parents(2, 1)
    (-1, 1, 0, 3)
    """
    parents: list[int] = []
    for node in range(ROOT, nodes):
        behind = nodes + len(parents)
        parents += [node, *range(behind, behind + count - 1)][:count]
    return tuple(parents)
