"""A drafter around a head: listens to the target's features, and drafts a tree of what the head says.

Subclasses say how an answer is listened to and how the head goes on behind a node; the life of a request, the growth of
trees, warping, and the head's short vocabulary are here. Where its table of positions ends, a head falls silent.

A plain greedy draft is grown over the head's own vocabulary, of a few hundred words; only the finished tree is
translated. Sampled drafts, and those under a penalty or bias, need distributions over the target's vocabulary.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Protocol, TypeVar, cast

import torch
from torch import Tensor

from crossdraft.drafters.base import fork_of
from crossdraft.drafters.trees.builder import BuiltTree, ProbsFn, SelectFn, TopK, WithoutReplacement
from crossdraft.engine.drafter import Budget, Draft, Needs, VerifyOutput
from crossdraft.engine.request import Request
from crossdraft.engine.sampling import Sampling, warp_tree
from crossdraft.engine.tree import ROOT, DraftTree
from crossdraft.errors import CrossdraftError
from crossdraft.heads.networks.base import Head
from crossdraft.heads.networks.layers import DecoderConfig

Grow = Callable[[ProbsFn, SelectFn, Budget], BuiltTree]
StateT = TypeVar("StateT")


class StepFn(Protocol):
    """What a head says in one draft, level by level."""

    def __call__(self, nodes: Sequence[int], tokens: Sequence[int], parents: Sequence[int]) -> Tensor:
        """[m, D] logits behind nodes of one level, given their tokens and parents; for `[ROOT]`, behind the root.

        Parents were asked about before.
        """
        ...


@dataclass(eq=False)
class HeadDrafterState(Generic[StateT]):
    """One answer: what was written, and what the head makes of it; `None` until the target has spoken.

    `places` is how many positions the text takes in the head, at most.
    """

    sampling: Sampling
    room: int  # most tokens of the answer
    generator: torch.Generator
    written: list[int] = field(default_factory=list)  # prompt and answer
    places: int = 0
    head_state: StateT | None = None


class HeadDrafter(Generic[StateT]):
    """See the module's text.

    Args:
        head: the network, in eval mode on the target's device.
        grow: how trees grow: a builder of `drafters.trees`, with its settings bound by `functools.partial`.
        ends: ids that end an answer.
        banned: ids that must never be drafted: a head that can say some, as imported ones can, has them masked.

    Raises:
        CrossdraftError: the head drafts nothing but banned ids.
    """

    ahead = 0  # positions behind the text that a draft takes, however small it is

    def __init__(self, head: Head, grow: Grow, ends: Sequence[int] = (), banned: Sequence[int] = ()) -> None:
        self.head = head.eval()
        self.grow = grow
        self.ids = list(head.config.draft_ids)
        never = frozenset(banned)
        banned_indices = [place for place, token in enumerate(self.ids) if token in never]
        if len(banned_indices) == len(self.ids):
            raise CrossdraftError(
                "The head drafts only ids that the target must not see as text; train it with other draft_ids."
            )
        self.banned_indices = torch.tensor(banned_indices, device=head.draft_ids.device) if banned_indices else None
        self.longest = head.config.max_positions if isinstance(head.config, DecoderConfig) else None
        self.ends = frozenset(ends)
        self.end_places = frozenset(place for place, token in enumerate(self.ids) if token in self.ends)
        self.needs = Needs(hidden_layers=head.reads, visual_layers=head.visual_reads)

    # -- what a method fills in ------------------------------------------------------------------------------------

    def update(self, state: HeadDrafterState[StateT], output: VerifyOutput) -> None:
        """Take in a verdict; the first one brings the prompt. `state.written` holds it already."""
        raise NotImplementedError

    def step_fn(self, head_state: StateT) -> StepFn:
        """Begin a draft."""
        raise NotImplementedError

    # -- the drafter's seam ----------------------------------------------------------------------------------------

    def begin(self, requests: Sequence[Request]) -> list[HeadDrafterState[StateT]]:
        # Never the judge's own stream: what a word was drawn by would decide whether it is accepted.
        return [HeadDrafterState(r.sampling, r.token_limit, r.sampling.generator(offset=1)) for r in requests]

    @torch.inference_mode()
    def propose(self, states: Sequence[HeadDrafterState[StateT]], budgets: Sequence[Budget]) -> list[Draft]:
        return [self._propose(state, budget) for state, budget in zip(states, budgets, strict=True)]

    @torch.inference_mode()
    def commit(self, states: Sequence[HeadDrafterState[StateT]], outputs: Sequence[VerifyOutput]) -> None:
        for state, output in zip(states, outputs, strict=True):
            if output.prompt is not None:
                state.written += (*output.prompt.visual_tokens, *output.prompt.tokens)
                state.places = len(output.prompt.tokens)
                if self.head.visual_reads:  # these stand in front of the text
                    state.places += 1 + len(output.prompt.visual_tokens)
            state.written += output.tokens
            state.places += len(output.tokens)
            if self._knows(state.places):
                self.update(state, output)
            else:
                state.head_state = None

    @torch.inference_mode()
    def fork(self, states: Sequence[HeadDrafterState[StateT]]) -> list[HeadDrafterState[StateT]]:
        copies = [fork_of(state) for state in states]
        for copy in copies:
            copy.head_state = None if copy.head_state is None else fork_of(cast("Any", copy.head_state))
        return copies

    def end(self, states: Sequence[HeadDrafterState[StateT]]) -> None:
        """Nothing to free but the states themselves."""

    # -- trees -----------------------------------------------------------------------------------------------------

    def _propose(self, state: HeadDrafterState[StateT], budget: Budget) -> Draft:
        most = state.places + max(budget.nodes, self.ahead)
        if state.head_state is None or not budget.nodes or not self._knows(most):
            return Draft(DraftTree.empty())
        step_fn, sampling = self._mask_banned(self.step_fn(state.head_state)), state.sampling
        if sampling.plain:
            return self._greedy(step_fn, budget)
        expand = self._wide(step_fn, state)
        grown = self.grow(expand, TopK() if sampling.greedy else WithoutReplacement(state.generator), budget)
        return Draft(grown.tree, grown.path_probs if sampling.greedy else ())

    def _knows(self, places: int) -> bool:
        """Whether the head can tell so many positions apart."""
        return self.longest is None or places <= self.longest

    def _mask_banned(self, step_fn: StepFn) -> StepFn:
        """The voice without banned words: silenced before any softmax, so that what is drawn from stays a law."""
        banned_indices = self.banned_indices
        if banned_indices is None:
            return step_fn
        return lambda nodes, tokens, parents: step_fn(nodes, tokens, parents).index_fill(
            -1, banned_indices, float("-inf")
        )

    def _greedy(self, step_fn: StepFn, budget: Budget) -> Draft:
        """A draft over the head's own vocabulary, translated when it is finished."""

        def expand(tree: DraftTree, nodes: Sequence[int]) -> Tensor:
            return _alive(tree, nodes, self.end_places, lambda alive: self._ask(step_fn, tree, alive).softmax(-1))

        tell = budget.on_token
        if tell is not None:
            budget = replace(budget, on_token=lambda place: tell(self.ids[place]))
        grown = self.grow(expand, TopK(), budget)
        tokens = tuple(self.ids[place] for place in grown.tree.tokens)
        return Draft(DraftTree(tokens, grown.tree.parents), grown.path_probs)

    def _ask(self, step_fn: StepFn, tree: DraftTree, nodes: Sequence[int]) -> Tensor:
        tokens = [self.ids[tree.tokens[node]] for node in nodes if node != ROOT]
        return step_fn(nodes, tokens, [tree.parents[node] for node in nodes if node != ROOT])

    def _wide(self, step_fn: StepFn, state: HeadDrafterState[StateT]) -> ProbsFn:
        """[m, V] distributions over the target's vocabulary, warped as the target's own are."""

        def ask(tree: DraftTree, nodes: Sequence[int]) -> Tensor:
            tokens = [tree.tokens[node] for node in nodes if node != ROOT]
            every = self.head.to_full_vocab(
                step_fn(nodes, tokens, [tree.parents[node] for node in nodes if node != ROOT])
            )
            beside, places = _families(tree, nodes)
            rows = every.new_zeros(1 + len(beside), every.shape[1])
            rows[places] = every
            warped = warp_tree(rows, beside, state.written, state.sampling)[places]
            return warped.softmax(-1) if state.sampling.greedy else warped

        return lambda tree, nodes: _alive(tree, nodes, self.ends, lambda alive: ask(tree, alive))


def _alive(
    tree: DraftTree, nodes: Sequence[int], ends: frozenset[int], ask: Callable[[Sequence[int]], Tensor]
) -> Tensor:
    """What `ask` says behind the nodes; 0 behind those that end the answer."""
    places = [i for i, node in enumerate(nodes) if node == ROOT or tree.tokens[node] not in ends]
    if not places:
        return torch.zeros(len(nodes), 1)
    found = ask([nodes[i] for i in places])
    if len(places) == len(nodes):
        return found
    probs = found.new_zeros(len(nodes), found.shape[-1])
    probs[places] = found
    return probs


def _families(tree: DraftTree, nodes: Sequence[int]) -> tuple[DraftTree, list[int]]:
    """The nodes and their ancestors as a tree, and where each node's logits stand: 0 is the root's place."""
    needed = sorted({step for node in nodes for step in tree.path(node)} if nodes[0] != ROOT else ())
    kept = tree.keep(needed)
    places = {node: place for place, node in enumerate(needed, 1)}
    return kept, [places.get(node, 0) for node in nodes]
