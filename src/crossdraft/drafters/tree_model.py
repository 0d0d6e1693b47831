"""An independent model that drafts a tree instead of a chain, one pass per level.

Every pass feeds the nodes whose continuations are asked for, and their ancestors. What all of these share, the trunk,
is kept in the cache, so a tree that is mostly one chain costs a token a pass; the branches beside it are fed again
with each level. Behind a verdict the accepted branch stays in the cache as far as it was fed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from crossdraft.drafters.base import fork_of
from crossdraft.drafters.independent import banned_bias, common_prefix, draft_generator, read_prompt
from crossdraft.drafters.trees.builder import BuiltTree, ProbsFn, SelectFn, TopK, WithoutReplacement
from crossdraft.engine.cache import KVCache
from crossdraft.engine.drafter import Budget, Draft, Needs, VerifyOutput
from crossdraft.engine.request import Request
from crossdraft.engine.sampling import Sampling, warp_tree
from crossdraft.engine.target import Chunk, Target
from crossdraft.engine.tree import ROOT, DraftTree

SPARE = 192  # places of the cache behind the answer, for nodes that are fed together
Grow = Callable[[ProbsFn, SelectFn, Budget], BuiltTree]


@dataclass(eq=False)
class TreeModelState:
    """One answer as the drafter sees it.

    `held` is what the cache holds. Behind it lie, not committed, the keys and values of `loose`: the nodes that the
    last pass fed. `rows` [1 + n, V] are the logits behind `held` and behind each of them.
    """

    sampling: Sampling
    cache: KVCache
    written: list[int]  # prompt and answer, as far as it is committed
    held: list[int]
    generator: torch.Generator
    rows: Tensor | None
    loose: DraftTree = field(default_factory=DraftTree.empty)
    ended: bool = False  # what is committed ends the answer


class TreeDrafter:
    """Drafts a tree with a model of its own.

    Args:
        model: the drafter's network behind the adapter, with its own `prepare`.
        grow: how the tree grows: a builder of `drafters.trees`, with its settings bound by `functools.partial`.
        banned: ids that must never be drafted; see `IndependentDrafter`.
    """

    needs = Needs()

    def __init__(self, model: Target, grow: Grow, banned: Sequence[int] = ()) -> None:
        self.model = model
        self.grow = grow
        self.banned = banned_bias(model, banned)

    @torch.inference_mode()
    def begin(self, requests: Sequence[Request]) -> list[TreeModelState]:
        return [self._begin(request) for request in requests]

    @torch.inference_mode()
    def propose(self, states: Sequence[TreeModelState], budgets: Sequence[Budget]) -> list[Draft]:
        return [self._propose(state, budget) for state, budget in zip(states, budgets, strict=True)]

    @torch.inference_mode()
    def commit(self, states: Sequence[TreeModelState], outputs: Sequence[VerifyOutput]) -> None:
        for state, output in zip(states, outputs, strict=True):
            state.written += output.tokens
            state.ended = not self.model.eos.isdisjoint(output.tokens[-1:])
            _resynchronise(state)

    @torch.inference_mode()
    def fork(self, states: Sequence[TreeModelState]) -> list[TreeModelState]:
        return [fork_of(state) for state in states]

    def end(self, states: Sequence[TreeModelState]) -> None:
        """Nothing to free but the states themselves."""

    def _begin(self, request: Request) -> TreeModelState:
        prompt, cache, rows = read_prompt(self.model, request, request.token_limit + SPARE)
        ids = prompt.input_ids.tolist()
        return TreeModelState(request.sampling, cache, ids, list(ids), draft_generator(self.model, request), rows)

    def _propose(self, state: TreeModelState, budget: Budget) -> Draft:
        greedy = state.sampling.greedy
        grown = self.grow(
            partial(self._expand, state), TopK() if greedy else WithoutReplacement(state.generator), budget
        )
        return Draft(grown.tree, grown.path_probs if greedy else ())

    def _expand(self, state: TreeModelState, tree: DraftTree, nodes: Sequence[int]) -> Tensor:
        """[m, V] distributions behind the nodes, 0 where the answer or the context ends."""
        alive = [place for place, node in enumerate(nodes) if self._goes_on(state, tree, node)]
        found = self._distributions(state, tree, [nodes[place] for place in alive]) if alive else None
        if found is None:
            return torch.zeros(len(nodes), self.model.vocab_size, device=self.model.device)
        probs = found.new_zeros(len(nodes), found.shape[-1])
        probs[alive] = found
        return probs

    def _goes_on(self, state: TreeModelState, tree: DraftTree, node: int) -> bool:
        depth = 0 if node == ROOT else tree.depths[node]
        ended = state.ended if node == ROOT else tree.tokens[node] in self.model.eos
        return not ended and len(state.written) + depth < self.model.context

    def _distributions(self, state: TreeModelState, tree: DraftTree, nodes: Sequence[int]) -> Tensor | None:
        """[m, V] what the model says behind the nodes, in one pass; `None` if the cache has no room for it."""
        trunk = shared_path(tree, nodes)
        text = [*state.written, *(tree.tokens[node] for node in trunk)]
        branches = sorted({step for node in nodes for step in tree.path(node)} - set(trunk))
        beside = branches_of(tree, trunk, branches)
        rows = self._read(state, text, beside)
        if rows is None:
            return None
        warped = warp_tree(rows + self.banned, beside, text, state.sampling)
        places = {node: place for place, node in enumerate(branches, 1)}  # place 0: behind the trunk
        wanted = warped[[places.get(node, 0) for node in nodes]]
        return wanted.softmax(-1) if state.sampling.greedy else wanted

    def _read(self, state: TreeModelState, text: list[int], beside: DraftTree) -> Tensor | None:
        """[1 + n, V] logits behind `text` and each node of the tree behind it; `None` if they do not fit."""
        if len(text) + len(beside) > state.cache.capacity:
            return None
        if state.rows is None or state.held != text or len(beside):
            # A pass begins with a token of the text, so the last one is read again even if it is held.
            kept = min(common_prefix(state.held, text), len(text) - 1)
            state.cache.truncate(0, kept)
            chunk = Chunk(torch.tensor(text[kept:]))
            state.rows = self.model.extend(state.cache, slice(0, 1), [chunk], [beside]).logits[0]
            state.held, state.loose = text, beside
        return state.rows[: 1 + len(beside)]


def shared_path(tree: DraftTree, nodes: Sequence[int]) -> list[int]:
    """The nodes that lie on the paths of all of these, from the root down.

    >>> shared_path(DraftTree((1, 2, 3), (-1, 0, 0)), [1, 2])
    [0]
    """
    paths = [tree.path(node) for node in nodes]
    shared = paths[0]
    for path in paths[1:]:
        shared = shared[: common_prefix(shared, path)]
    return shared


def branches_of(tree: DraftTree, trunk: Sequence[int], branches: Sequence[int]) -> DraftTree:
    """The branches as a tree whose root is the trunk's end."""
    placed = {trunk[-1] if trunk else ROOT: ROOT} | {node: place for place, node in enumerate(branches)}
    parents = tuple(placed[tree.parents[node]] for node in branches)
    return DraftTree(tuple(tree.tokens[node] for node in branches), parents)


def _resynchronise(state: TreeModelState) -> None:
    """Keep of the cache what agrees with the text, and the fed branch that goes on with it."""
    agreed = common_prefix(state.held, state.written)
    if agreed < len(state.held):
        state.cache.truncate(0, agreed)
        state.held, state.rows, state.loose = state.held[:agreed], None, DraftTree.empty()
        return
    path: list[int] = []
    for token in state.written[agreed:]:
        children = state.loose.children(path[-1] if path else ROOT)
        step = next((child for child in children if state.loose.tokens[child] == token), None)
        if step is None:
            break
        path.append(step)
    if path:
        state.cache.keep(0, path)
        state.held = [*state.held, *(state.loose.tokens[node] for node in path)]
        state.rows = None if state.rows is None else state.rows[path[-1] + 1 :][:1]
    state.loose = DraftTree.empty()
