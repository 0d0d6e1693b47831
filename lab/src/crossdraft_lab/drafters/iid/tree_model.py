"""An independent model that drafts a tree instead of a chain, one pass per level.

Every pass feeds the nodes whose continuations are asked for, and their ancestors. Their common path, the trunk, is kept
in the cache, so a tree that is mostly one chain costs a token a pass; the branches beside the trunk are fed again with
each level. After verification the accepted branch stays in the cache as far as it was fed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from crossdraft.drafters.base import Draws, PerRequestDrafter, banned_bias, read_prompt
from crossdraft.drafters.trees.builder import BuiltTree, ProbsFn, SelectFn, TopK
from crossdraft.engine.cache import KVCache
from crossdraft.engine.drafter import Budget, Draft, Needs, VerifyOutput
from crossdraft.engine.passes import Chunk, PassRow
from crossdraft.engine.prefix_cache import SENSED
from crossdraft.engine.request import Request
from crossdraft.engine.sampling import Sampling, warp_tree
from crossdraft.engine.target import Target
from crossdraft.engine.tree import ROOT, DraftTree, common_prefix
from crossdraft.errors import CrossdraftError

SPARE = 192  # tokens of the cache after the answer, for nodes that are fed together
BuildTree = Callable[[ProbsFn, SelectFn, Budget], BuiltTree]


@dataclass(eq=False)
class TreeModelState:
    """One answer as the drafter sees it.

    `held` are the cache's committed tokens. The uncommitted keys and values of the nodes `uncommitted`, which the last
    pass fed, follow them. `logits` [1 + n, V] are those after `held` and after each of these nodes.
    """

    sampling: Sampling
    cache: KVCache
    written: list[int]  # prompt and answer, as far as it is committed
    asked: int  # of these, tokens of the prompt
    held: list[int]
    draws: Draws
    logits: Tensor | None
    uncommitted: DraftTree = field(default_factory=DraftTree.empty)
    ended: bool = False  # what is committed ends the answer


class TreeDrafter(PerRequestDrafter[TreeModelState]):
    """Drafts a tree with a model of its own.

    Args:
        model: the drafter's network behind the adapter, with its own `prepare`.
        build: how the tree is built: a function of `drafters.trees`, with its settings bound by `functools.partial`.
        banned: ids that must never be drafted; see `IndependentDrafter`.

    Raises:
        CrossdraftError: the model keeps states.
    """

    needs = Needs()

    def __init__(self, model: Target, build: BuildTree, banned: Sequence[int] = ()) -> None:
        if model.traits.mixers:
            raise CrossdraftError(
                f"{type(model.model).__name__} keeps states, which cannot go back by one token, as each level of a "
                "tree asks; let it draft chains: leave out tree."
            )
        self.model = model
        self.build = build
        self.banned = banned_bias(model, banned)

    def _begin(self, request: Request) -> TreeModelState:
        prompt, cache, out = read_prompt(
            self.model, request, request.token_limit + SPARE, prefixes=self.prefixes, senses=SENSED
        )
        ids, draws = prompt.input_ids.tolist(), Draws(request.sampling, self.model.device)
        return TreeModelState(request.sampling, cache, ids, len(ids), list(ids), draws, out.logits[0])

    def _propose(self, state: TreeModelState, budget: Budget) -> Draft:
        greedy = state.sampling.greedy
        select = TopK() if greedy else state.draws.select
        built = self.build(partial(self._probs, state), select, budget)
        return Draft(built.tree, built.path_probs if greedy else ())

    def _commit(self, state: TreeModelState, output: VerifyOutput) -> None:
        """Keep the part of the cache that agrees with the text, and the fed branch that continues it."""
        state.written += output.tokens
        state.ended = not self.model.eos.isdisjoint(output.tokens[-1:])
        agreed = common_prefix(state.held, state.written)
        if agreed < len(state.held):
            state.cache.truncate(0, agreed)
            state.held, state.logits, state.uncommitted = state.held[:agreed], None, DraftTree.empty()
            return
        path = state.uncommitted.follow(state.written[agreed:])
        if path:
            state.cache.keep(0, path)
            state.held = [*state.held, *(state.uncommitted.tokens[node] for node in path)]
            state.logits = None if state.logits is None else state.logits[path[-1] + 1 :][:1]
        state.uncommitted = DraftTree.empty()

    def _probs(self, state: TreeModelState, tree: DraftTree, nodes: Sequence[int]) -> Tensor:
        """[m, V] distributions after the nodes, 0 where the answer or the context ends."""
        alive = [at for at, node in enumerate(nodes) if self._goes_on(state, tree, node)]
        found = self._distributions(state, tree, [nodes[at] for at in alive]) if alive else None
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
        """[m, V] the model's distributions after the nodes, in one pass; `None` if the cache has no room for it."""
        trunk = shared_path(tree, nodes)
        text = [*state.written, *(tree.tokens[node] for node in trunk)]
        branches = sorted({step for node in nodes for step in tree.path(node)} - set(trunk))
        branch_tree = branches_of(tree, trunk, branches)
        logits = self._read(state, text, branch_tree)
        if logits is None:
            return None
        warped = warp_tree(logits + self.banned, branch_tree, text, state.sampling)
        rows = {node: row for row, node in enumerate(branches, 1)}  # row 0: after the trunk
        wanted = warped[[rows.get(node, 0) for node in nodes]]
        if state.sampling.greedy:
            return wanted.softmax(-1)
        return state.draws.rank(wanted, len(state.written) - state.asked + len(tree.path(nodes[0])))

    def _read(self, state: TreeModelState, text: list[int], branch_tree: DraftTree) -> Tensor | None:
        """[1 + n, V] logits after `text` and each node of the tree after it; `None` if they do not fit."""
        if len(text) + len(branch_tree) > state.cache.capacity:
            return None
        if state.logits is None or state.held != text or len(branch_tree):
            # A pass begins with a token of the text, so the last one is read again even if it is held.
            kept = min(common_prefix(state.held, text), len(text) - 1)
            state.cache.truncate(0, kept)
            chunk = Chunk(torch.tensor(text[kept:]))
            state.logits = self.model.extend(state.cache, [PassRow(0, chunk, branch_tree)]).logits[0]
            state.held, state.uncommitted = text, branch_tree
        return state.logits[: 1 + len(branch_tree)]


def shared_path(tree: DraftTree, nodes: Sequence[int]) -> list[int]:
    """The nodes that lie on the paths of all of `nodes`, from the root down.

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
    moved = {trunk[-1] if trunk else ROOT: ROOT} | {node: at for at, node in enumerate(branches)}
    parents = tuple(moved[tree.parents[node]] for node in branches)
    return DraftTree(tuple(tree.tokens[node] for node in branches), parents)
