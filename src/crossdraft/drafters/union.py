"""The drafter `union`: the trees of several drafters as one, under one budget.

Greedy answers: every node has a chance to be reached, by its own drafter's estimate, corrected by how such estimates
have turned out; the best nodes are kept. Sampled answers: what is drawn must not be dropped because of its value, so
the budget is divided beforehand; each drafter's tokens keep their own law, and acceptance stays exact (see
`DraftTree.union`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

from crossdraft.engine.drafter import Budget, Committed, Draft, Drafter, Needs
from crossdraft.engine.request import Request
from crossdraft.engine.tree import ROOT, DraftTree
from crossdraft.errors import CrossdraftError

GUESS = 0.7  # of a node whose drafter gives no estimate, given its parent


@dataclass
class Record:
    """How a drafter's estimates turn out: over nodes whose parent was accepted."""

    expected: float = 4.0
    right: float = 4.0
    decay: float = 0.98

    def add(self, chance: float, right: bool) -> None:
        """A node of this conditional chance was (not) accepted."""
        self.expected = self.expected * self.decay + chance
        self.right = self.right * self.decay + right

    @property
    def correction(self) -> float:
        """What to multiply the next estimates with."""
        return min(1.2, max(0.05, self.right / self.expected))


@dataclass(eq=False)
class Joint:
    """One answer: the drafters' own states, and what each proposed last."""

    states: list[Any]
    greedy: bool
    drafts: list[Draft] = field(default_factory=list)


class UnionDrafter:
    """Several drafters at once.

    Args:
        drafters: the first one's main chain is shown as provisional text.

    Raises:
        CrossdraftError: fewer than two drafters.
    """

    def __init__(self, drafters: Sequence[Drafter[Any]]) -> None:
        if len(drafters) < 2:
            raise CrossdraftError("A union needs two drafters or more, such as union:event,memory.")
        self.drafters = list(drafters)
        self.records = [Record() for _ in drafters]
        self.needs = all_needs([drafter.needs for drafter in drafters])

    def begin(self, requests: Sequence[Request]) -> list[Joint]:
        columns = [drafter.begin(requests) for drafter in self.drafters]
        return [
            Joint(list(states), request.sampling.greedy)
            for request, *states in zip(requests, *columns, strict=True)
        ]

    def propose(self, states: Sequence[Joint], budgets: Sequence[Budget]) -> list[Draft]:
        for state in states:
            state.drafts = []
        for place, drafter in enumerate(self.drafters):
            own = [self._share(state, budget, place) for state, budget in zip(states, budgets, strict=True)]
            drafts = drafter.propose([state.states[place] for state in states], own)
            for state, draft in zip(states, drafts, strict=True):
                state.drafts.append(draft)
        return [self._join(state, budget.nodes) for state, budget in zip(states, budgets, strict=True)]

    def commit(self, states: Sequence[Joint], verdicts: Sequence[Committed]) -> None:
        for place, drafter in enumerate(self.drafters):
            own = [self._verdict(state, place, v) for state, v in zip(states, verdicts, strict=True)]
            drafter.commit([state.states[place] for state in states], own)

    def end(self, states: Sequence[Joint]) -> None:
        for place, drafter in enumerate(self.drafters):
            drafter.end([state.states[place] for state in states])

    def _share(self, state: Joint, budget: Budget, place: int) -> Budget:
        """Greedy: everybody may fill the tree. Sampled: an equal part each, settled before anything is drawn."""
        budget = budget if place == 0 else replace(budget, on_token=None)
        if state.greedy:
            return budget
        part, rest = divmod(budget.nodes, len(self.drafters))
        return replace(budget, nodes=part + (place < rest))

    def _join(self, state: Joint, nodes: int) -> Draft:
        refusal = next((draft.refusal for draft in state.drafts if draft.refusal), None)
        if state.greedy:
            chances = [
                corrected(draft, record.correction)
                for draft, record in zip(state.drafts, self.records, strict=True)
            ]
            draft = best_of([draft.tree for draft in state.drafts], chances, nodes)
        else:
            draft = Draft(reduce(DraftTree.union, (draft.tree for draft in state.drafts)))
        return replace(draft, refusal=refusal)

    def _verdict(self, state: Joint, place: int, verdict: Committed) -> Committed:
        """The verdict as if the drafter's own tree had been judged."""
        if not state.drafts:  # the prompt's features, before anything was proposed
            return verdict
        draft = state.drafts[place]
        own = walk_down(draft.tree, verdict.tokens[: len(verdict.path)])
        if state.greedy:
            self._learn(self.records[place], draft, own, verdict.tokens)
        return replace(verdict, path=tuple(own))

    def _learn(self, record: Record, draft: Draft, path: Sequence[int], tokens: Sequence[int]) -> None:
        """Along the accepted path, each node's children were right or wrong; the text behind it tells."""
        chances = draft.reach or guesses(draft.tree)
        for depth, parent in enumerate([ROOT, *path]):
            above = 1.0 if parent == ROOT else chances[parent]
            children = draft.tree.children(parent)
            if children and above > 0:
                best = max(children, key=lambda child: chances[child])
                record.add(chances[best] / above, draft.tree.tokens[best] == tokens[depth])


def all_needs(needs: Sequence[Needs]) -> Needs:
    """Whatever any of them needs.

    Raises:
        CrossdraftError: they ask for hidden layers, of which each would have to be given its own.
    """
    layers = {need.hidden_layers for need in needs if need.hidden_layers}
    if len(layers) > 1:
        raise CrossdraftError("Drafters that read different hidden layers cannot be joined.")
    return Needs(
        hidden_layers=next(iter(layers), ()),
        logits=any(need.logits for need in needs),
        video=any(need.video for need in needs),
    )


def guesses(tree: DraftTree) -> tuple[float, ...]:
    """A chance for every node where the drafter knows none."""
    return tuple(GUESS**depth for depth in tree.depths)


def corrected(draft: Draft, factor: float) -> tuple[float, ...]:
    """The chances of a draft's nodes, each step's multiplied by `factor` and at most 1."""
    given = draft.reach or guesses(draft.tree)
    chances: list[float] = []
    for node, parent in enumerate(draft.tree.parents):
        above, before = (1.0, 1.0) if parent == ROOT else (chances[parent], given[parent])
        step = given[node] / before if before > 0 else 0.0
        chances.append(above * min(1.0, step * factor))
    return tuple(chances)


def best_of(trees: Sequence[DraftTree], chances: Sequence[Sequence[float]], nodes: int) -> Draft:
    """The likeliest `nodes` nodes of all trees as one; a node that several propose has the greatest of their chances.

    >>> draft = best_of([DraftTree.chain([1, 2]), DraftTree.chain([1, 3])], [[0.9, 0.3], [0.6, 0.5]], 2)
    >>> draft.tree.tokens, draft.reach
    ((1, 3), (0.9, 0.5))
    """
    found: dict[tuple[int, ...], float] = {}
    for tree, values in zip(trees, chances, strict=True):
        paths: list[tuple[int, ...]] = []
        for token, parent, value in zip(tree.tokens, tree.parents, values, strict=True):
            path = (*(() if parent == ROOT else paths[parent]), token)
            paths.append(path)
            found[path] = max(found.get(path, 0.0), value)
    # A parent is never less likely than its child, and of equals the shorter path comes first.
    best = sorted(found.items(), key=lambda entry: (-entry[1], len(entry[0])))[:nodes]
    where: Mapping[tuple[int, ...], int] = {path: node for node, (path, _) in enumerate(best)}
    tokens = tuple(path[-1] for path, _ in best)
    parents = tuple(where.get(path[:-1], ROOT) for path, _ in best)
    return Draft(DraftTree(tokens, parents), tuple(chance for _, chance in best))


def walk_down(tree: DraftTree, tokens: Sequence[int]) -> list[int]:
    """The nodes that these tokens lead through, as far as the tree goes."""
    path: list[int] = []
    for token in tokens:
        above = path[-1] if path else ROOT
        below = next((child for child in tree.children(above) if tree.tokens[child] == token), None)
        if below is None:
            break
        path.append(below)
    return path
