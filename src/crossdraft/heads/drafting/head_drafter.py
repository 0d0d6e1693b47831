"""`HeadDrafter`: drafts a tree with a head that reads the target's features.

A subclass defines how verified tokens and features enter the head (`update`) and its logits after the nodes of a draft
(`step_fn`). Requests, tree building, warping and the draft vocabulary are here. After the head's last position nothing
is drafted, and the request is given up with a sentence that says so.

A plain greedy draft is built over the draft vocabulary, a few hundred ids, and mapped to the target's ids at the end.
Sampled drafts, and those under a penalty or bias, need distributions over the target's vocabulary.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar, cast

import torch
from torch import Tensor

from crossdraft.drafters.base import Draws, PerRequestDrafter, fork_of
from crossdraft.drafters.trees.builder import BuiltTree, ProbsFn, SelectFn, TopK
from crossdraft.drafters.trees.dynamic import beam_search, expand_and_rerank
from crossdraft.drafters.trees.static import RankCounts, fill, greedy_shape
from crossdraft.engine.drafter import NOTHING, Budget, Draft, Needs, VerifyOutput
from crossdraft.engine.request import Request
from crossdraft.engine.sampling import Sampling, warp_tree
from crossdraft.engine.tree import ROOT, DraftTree
from crossdraft.errors import CrossdraftError
from crossdraft.heads.networks.base import Head
from crossdraft.heads.networks.layers import DecoderConfig, Rotary

Grow = Callable[[ProbsFn, SelectFn, Budget], BuiltTree]
StateT = TypeVar("StateT")

TREES: Mapping[str, Grow] = {
    "dynamic": partial(expand_and_rerank, beam=10, width=lambda probs: 10, depth=8),
    "chain": partial(expand_and_rerank, beam=1, width=lambda probs: 1),
    "beams": beam_search,
}
ACCEPTANCE = "acceptance.json"  # in the head's folder; written by `crossdraft train`
LARGEST = 128  # nodes of a static shape; a draft takes the first ones within its budget


def static_tree(folder: Path) -> Grow:
    """Static tree: the shape that Medusa's search finds for the measured acceptance of the head in this folder.

    Raises:
        CrossdraftError: there is no measurement, or the file has other content.
    """
    counts = RankCounts.load(folder / ACCEPTANCE)
    return partial(fill, greedy_shape(counts.by_depth(), LARGEST))


class StepFn(Protocol):
    """A head's logits in one draft, depth by depth."""

    def __call__(self, nodes: Sequence[int], tokens: Sequence[int], parents: Sequence[int], depth: int) -> Tensor:
        """Logits [m, D] after nodes of one depth (1 = children of the root); `[ROOT]`, [], [], 0 = after the root.

        Parents must be nodes of an earlier call.
        """
        ...


@dataclass(eq=False)
class HeadDrafterState(Generic[StateT]):
    """State of one request: its tokens so far, and the head's own state, `None` until the target's first features."""

    sampling: Sampling
    max_tokens: int  # largest number of tokens of the answer
    draws: Draws
    tokens: list[int] = field(default_factory=list)  # prompt and answer
    answered: int = 0  # number of `tokens` that are the answer's
    positions: int = 0  # largest number of the text's positions in the head
    head_state: StateT | None = None


class HeadDrafter(PerRequestDrafter[HeadDrafterState[StateT]], Generic[StateT]):
    """Base of the drafters with a head on the target's features.

    Args:
        head: the network, in eval mode on the target's device.
        grow: a tree builder of `drafters.trees`, with its settings bound by `functools.partial`.
        ends: ids that end an answer.
        banned: ids that must never be drafted: masked where the draft vocabulary has some, as an imported head's may.

    Raises:
        CrossdraftError: the head drafts nothing but banned ids.
    """

    min_positions = 0  # positions that even the smallest draft takes after the text

    def __init__(self, head: Head, grow: Grow, ends: Sequence[int] = (), banned: Sequence[int] = ()) -> None:
        self.head = head.eval()
        self.grow = grow
        self.ids = list(head.config.draft_ids)
        never = frozenset(banned)
        masked = [index for index, token in enumerate(self.ids) if token in never]
        if len(masked) == len(self.ids):
            raise CrossdraftError(
                "The head drafts only ids that the target must not see as text; train it with other draft_ids."
            )
        self.banned_indices = torch.tensor(masked, device=head.draft_ids.device) if masked else None
        self.max_positions = head.config.max_positions if isinstance(head.config, DecoderConfig) else None
        self.ends = frozenset(ends)
        self.end_indices = frozenset(index for index, token in enumerate(self.ids) if token in self.ends)
        self.needs = Needs(hidden_layers=head.reads, visual_layers=head.visual_reads)

    # -- for subclasses -------------------------------------------------------------------------------------------

    def update(self, state: HeadDrafterState[StateT], output: VerifyOutput, hidden: dict[int, Tensor]) -> None:
        """Read verified tokens, which `state.tokens` already includes, and the features of the tokens before each.

        The first call reads the prompt's features. `hidden` has each layer's [1, n, H] in the head's dtype.
        """
        raise NotImplementedError

    def step_fn(self, head_state: StateT) -> StepFn:
        """Begin a draft; return its function from nodes to logits."""
        raise NotImplementedError

    def lengthen(self, positions: int) -> None:
        """Allow at least `positions` positions: rotary positions go on beyond those of the training."""
        if self.max_positions is not None and positions > self.max_positions:
            self.max_positions = positions
            for module in self.head.modules():
                if isinstance(module, Rotary):
                    module.lengthen(positions)

    # -- of one request --------------------------------------------------------------------------------------------

    def _begin(self, request: Request) -> HeadDrafterState[StateT]:
        draws = Draws(request.sampling)
        return HeadDrafterState(request.sampling, request.token_limit, draws)

    def _commit(self, state: HeadDrafterState[StateT], output: VerifyOutput) -> None:
        if output.prompt is not None:
            state.tokens += (*output.prompt.visual_tokens, *output.prompt.tokens)
            state.positions = len(output.prompt.tokens)
            if self.head.visual_reads:  # a visual prefix
                state.positions += 1 + len(output.prompt.visual_tokens)
        state.tokens += output.tokens
        state.answered += len(output.tokens)
        state.positions += len(output.tokens)
        if not self._has_positions(state.positions):
            state.head_state = None
            return
        # An answer that was cut short has fewer tokens than features; nothing is drafted after it.
        count = len(output.tokens) + (0 if output.prompt is None else len(output.prompt.tokens) - 1)
        dtype = self.head.embeddings.dtype
        self.update(state, output, {layer: rows[None, :count].to(dtype) for layer, rows in output.hidden.items()})

    def _fork(self, state: HeadDrafterState[StateT]) -> HeadDrafterState[StateT]:
        copy = fork_of(state)
        copy.head_state = None if copy.head_state is None else fork_of(cast("Any", copy.head_state))
        return copy

    def _propose(self, state: HeadDrafterState[StateT], budget: Budget) -> Draft:
        if budget.nodes and state.positions and not self._has_positions(state.positions + max(1, self.min_positions)):
            why = f"the text leaves none of the head's {self.max_positions} positions"
            return replace(NOTHING, refusal=why)
        most = state.positions + max(budget.nodes, self.min_positions)
        if state.head_state is None or not budget.nodes or not self._has_positions(most):
            return Draft(DraftTree.empty())
        step_fn, sampling = self._mask_banned(self.step_fn(state.head_state)), state.sampling
        if sampling.plain:
            return self._greedy(step_fn, budget)
        probs_fn = self._full_vocab_probs(step_fn, state)
        built = self.grow(probs_fn, TopK() if sampling.greedy else state.draws.select, budget)
        return Draft(built.tree, built.path_probs if sampling.greedy else ())

    def _has_positions(self, positions: int) -> bool:
        return self.max_positions is None or positions <= self.max_positions

    def _mask_banned(self, step_fn: StepFn) -> StepFn:
        """Set banned ids to -inf before any softmax, so that q stays a distribution."""
        banned = self.banned_indices
        if banned is None:
            return step_fn
        return lambda nodes, tokens, parents, depth: step_fn(nodes, tokens, parents, depth).index_fill(
            -1, banned, float("-inf")
        )

    def _greedy(self, step_fn: StepFn, budget: Budget) -> Draft:
        """Build a draft over the draft vocabulary, and map it to the target's ids."""

        def probs_of(tree: DraftTree, nodes: Sequence[int]) -> Tensor:
            tokens = [self.ids[tree.tokens[node]] for node in nodes if node != ROOT]
            return step_fn(nodes, tokens, *_parents(tree, nodes)).softmax(-1)

        on_token = budget.on_token
        if on_token is not None:
            budget = replace(budget, on_token=lambda index: on_token(self.ids[index]))
        built = self.grow(self._open_nodes(probs_of, self.end_indices), TopK(), budget)
        tokens = tuple(self.ids[index] for index in built.tree.tokens)
        return Draft(DraftTree(tokens, built.tree.parents), built.path_probs)

    def _full_vocab_probs(self, step_fn: StepFn, state: HeadDrafterState[StateT]) -> ProbsFn:
        """Make a function that returns distributions [m, V] over the target's vocabulary, warped like the target's."""

        def probs_of(tree: DraftTree, nodes: Sequence[int]) -> Tensor:
            tokens = [tree.tokens[node] for node in nodes if node != ROOT]
            logits = self.head.to_full_vocab(step_fn(nodes, tokens, *_parents(tree, nodes)))
            ancestors, rows = _with_ancestors(tree, nodes)
            every = logits.new_zeros(1 + len(ancestors), logits.shape[1])
            every[rows] = logits
            warped = warp_tree(every, ancestors, state.tokens, state.sampling)[rows]
            if state.sampling.greedy:
                return warped.softmax(-1)
            return state.draws.rank(warped, state.answered + len(tree.path(nodes[0])))

        return self._open_nodes(probs_of, self.ends)

    def _open_nodes(self, probs_fn: ProbsFn, ends: frozenset[int]) -> ProbsFn:
        """Wrap `probs_fn` to return 0 after nodes whose token ends the answer, and after the head's last depth."""
        most = self.head.max_depth

        def probs_of(tree: DraftTree, nodes: Sequence[int]) -> Tensor:
            open_rows = [row for row, node in enumerate(nodes) if node == ROOT or tree.tokens[node] not in ends]
            if not open_rows or (most is not None and len(tree.path(nodes[0])) >= most):
                return torch.zeros(len(nodes), 1)
            found = probs_fn(tree, [nodes[row] for row in open_rows])
            if len(open_rows) == len(nodes):
                return found
            probs = found.new_zeros(len(nodes), found.shape[-1])
            probs[open_rows] = found
            return probs

        return probs_of


def _parents(tree: DraftTree, nodes: Sequence[int]) -> tuple[list[int], int]:
    """Parents of nodes that all have one depth, and this depth."""
    return [tree.parents[node] for node in nodes if node != ROOT], len(tree.path(nodes[0]))


def _with_ancestors(tree: DraftTree, nodes: Sequence[int]) -> tuple[DraftTree, list[int]]:
    """Return nodes and their ancestors as a tree, and each node's row of logits: row 0 is the root's."""
    needed = sorted({step for node in nodes for step in tree.path(node)} if nodes[0] != ROOT else ())
    rows = {node: row for row, node in enumerate(needed, 1)}
    return tree.keep(needed), [rows.get(node, 0) for node in nodes]
