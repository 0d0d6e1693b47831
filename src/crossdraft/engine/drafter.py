"""The drafter's seam: the interface of everything that proposes tokens for the target.

Every call takes lists, one entry per request, so that a drafter can batch if it wants to. A drafter that needs nothing
of the target (`needs` is empty) may `begin` and `propose` while the target's prefill runs: hidden drafting.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar, runtime_checkable

from torch import Tensor

from crossdraft.engine.request import Request
from crossdraft.engine.timeline import Span
from crossdraft.engine.tree import ROOT, DraftTree


@dataclass(frozen=True)
class Needs:
    """A drafter's requirements: what it consumes of the target at every commit, and how it runs.

    Args:
        hidden_layers: indexes into `hidden_states` (0 = the embeddings, -1 = after the final norm).
        visual_layers: hidden layers that are wanted for the prompt's first piece too, which ends with its last visual
            token; without any, the target prefills that piece faster.
        kv_layers: layers of the target whose keys and values are wanted.
        video: the request's video or prepared inputs; without this need they are not sent to another process.
        visual: the target's visual features of the request, before they are prefilled: `Request.visual_features`. The
            drafter waits for them when it is asked to begin.
        prompt: the prompt's token ids, once the target has prepared it: `Request.prompt_ids`. The drafter need not wait
            for them; they are known before anything is committed.
        successors: number of likeliest tokens that are wanted after each verified node: `VerifyOutput.successors`.
        learns: true if it learns from answers for later ones. A rule that draws random numbers, such as `rejection`,
            must then use other numbers for each answer: a draft would otherwise depend on the draws that decide on it,
            and acceptance would not be exact.
        unasked: true if its drafts come without being asked for: asking costs the target nothing but the wait.
        hides: true if a part of it may draft before the target's first token, though another part may not.
        runs_in: place of its work: `here` (this process), `process` (one of its own), or both.
    """

    hidden_layers: tuple[int, ...] = ()
    visual_layers: tuple[int, ...] = ()
    kv_layers: tuple[int, ...] = ()
    video: bool = False
    visual: bool = False
    prompt: bool = False
    successors: int = 0
    learns: bool = False
    unasked: bool = False
    hides: bool = False
    runs_in: frozenset[str] = frozenset({"here"})

    @property
    def nothing(self) -> bool:
        """True if the drafter is independent of the target, hence may start before it."""
        return not (self.hidden_layers or self.visual_layers or self.kv_layers)

    @property
    def may_hide(self) -> bool:
        """True if it may draft while the target's prefill runs."""
        return self.nothing or self.hides

    @classmethod
    def of_all(cls, needs: "Sequence[Needs]") -> "Needs":
        """The union of several drafters' needs."""
        return cls(
            hidden_layers=tuple(sorted({layer for need in needs for layer in need.hidden_layers})),
            kv_layers=tuple(sorted({layer for need in needs for layer in need.kv_layers})),
            visual_layers=tuple(sorted({layer for need in needs for layer in need.visual_layers})),
            video=any(need.video for need in needs),
            visual=any(need.visual for need in needs),
            prompt=any(need.prompt for need in needs),
            successors=max((need.successors for need in needs), default=0),
            learns=any(need.learns for need in needs),
            unasked=all(need.unasked for need in needs),
            hides=any(need.may_hide for need in needs),
            runs_in=frozenset[str]().union(*(need.runs_in for need in needs)),
        )


NO_NEEDS = Needs()


@dataclass(frozen=True)
class Budget:
    """Limits on how much to draft.

    Args:
        nodes: at most this many nodes.
        min_confidence: no further once the drafter's own probability of the whole path falls below this, because the
            expected gain of one more node is then below its cost.
        stop: no further once this returns true.
        until: hidden drafting: the event that the target is at the last piece of its prefill. The draft is then wanted
            as far as it has come.
        on_token: called with every token of the drafter's main chain as it appears; must return at once.
        wait_s: seconds after which the draft is worthless; 0 = only a draft that is there already, `None` = wait.
    """

    nodes: int
    min_confidence: float = 0.0
    stop: Callable[[], bool] | None = None
    until: threading.Event | None = None
    on_token: "OnToken | None" = None
    wait_s: float | None = None

    @property
    def stopped(self) -> bool:
        """True if drafting must end now."""
        return (self.stop is not None and self.stop()) or (self.until is not None and self.until.is_set())


@dataclass(frozen=True)
class Outcome:
    """A possible result of verifying a draft.

    Args:
        tokens: emitted tokens: nodes of the draft along a path from the root, then one token that is no node there.
        prob: the drafter's own probability of the outcome.
    """

    tokens: tuple[int, ...]
    prob: float


@dataclass(frozen=True)
class Draft:
    """A proposal for one request.

    Args:
        tree: the drafted tokens.
        path_probs: [n] the drafter's own probability of the path down to each node, parents first; empty where it
            knows none, and where tokens were drawn: a drawn token must not be dropped because of its value.
        refusal: reason why this request gets no drafts, in one sentence; the request goes on without a drafter.
        fault: fault of a draft that could not be read, and is dropped.
        outcomes: likely ways for the target to leave the tree, by the drafter; an edge drafts on after them, and a
            union takes them for nodes.
        spans: spans of work that was done elsewhere since the last draft; for the timeline.
        notes: remarks on its drafters for the answer, a sentence each; a repeated remark is shown once.
    """

    tree: DraftTree
    path_probs: tuple[float, ...] = ()
    refusal: str | None = None
    fault: str | None = None
    outcomes: tuple[Outcome, ...] = ()
    spans: tuple[Span, ...] = ()
    notes: tuple[str, ...] = ()

    def keep(self, nodes: Sequence[int]) -> "Draft":
        """The draft of `nodes`, parents before their children."""
        if list(nodes) == list(range(len(self.tree))):
            return self
        tree = self.tree.keep(nodes)
        path_probs = tuple(self.path_probs[node] for node in nodes) if self.path_probs else ()
        return replace(self, tree=tree, path_probs=path_probs)

    def first(self, nodes: int) -> "Draft":
        """The draft of the first `nodes` nodes."""
        return self.keep(range(min(nodes, len(self.tree))))

    def after(self, tokens: Sequence[int]) -> "Draft":
        """The part of the draft below a path of tokens, with probabilities given that path; empty without such a path.

        >>> Draft(DraftTree.from_paths([[5, 6], [5, 7], [8]]), (0.5, 0.25, 0.1, 0.2)).after((5,)).path_probs
        (0.5, 0.2)
        """
        if not tokens:
            return self
        tree, path = self.tree, self.tree.follow(tokens)
        index = {path[-1]: ROOT} if len(path) == len(tokens) else {}
        nodes: list[int] = []
        for node, parent in enumerate(tree.parents):
            if parent in index:
                index[node] = len(nodes)
                nodes.append(node)
        chosen = (tuple(values[node] for node in nodes) for values in (tree.tokens, tree.drawn_from))
        above = self.path_probs[path[-1]] if index and self.path_probs else 1.0
        end = len(tokens)
        return replace(
            self,
            tree=DraftTree(next(chosen), tuple(index[tree.parents[node]] for node in nodes), tree.dists, next(chosen)),
            path_probs=tuple(_share(self.path_probs[node], above) for node in nodes) if self.path_probs else (),
            outcomes=tuple(
                Outcome(one.tokens[end:], _share(one.prob, above))
                for one in self.outcomes
                if one.tokens[:end] == tuple(tokens) and len(one.tokens) > end
            ),
        )


def _share(prob: float, above: float) -> float:
    return min(1.0, prob / above) if above else 0.0


NOTHING = Draft(DraftTree.empty())


@dataclass(frozen=True)
class PromptFeatures:
    """The prompt as the target read it, for drafters that look into it.

    Args:
        tokens: [m] ids of the last piece, the text after the last visual token.
        visual_tokens: [N] ids of the piece before it, with placeholders for visual tokens.
        visual: for each visual layer asked for, [N, h] features of that piece.
        positions: [axes, N + m] or [N + m] positions of both pieces; `None` = 0, 1, 2, …
    """

    tokens: tuple[int, ...]
    visual_tokens: tuple[int, ...] = ()
    visual: Mapping[int, Tensor] = field(default_factory=dict)
    positions: Tensor | None = None


@dataclass(frozen=True)
class VerifyOutput:
    """Result of verifying a draft.

    Args:
        path: accepted nodes of the draft's tree, from the root downwards.
        tokens: tokens that were added to the answer this round: the accepted ones, then the target's own.
        hidden: for each layer asked for, features of the root and of the accepted tokens, [len(tokens), h] (one more
            where the answer was cut short); at the first commit those of the prompt's last piece, [m, h], stand for the
            root.
        prompt: that prompt, at the first commit of a drafter that asked for features.
        kv: keys and values [heads, n, head_dim] of each layer asked for, at all n tokens in front of the new root:
            views of the target's own, to be copied by who keeps them.
        successors: the target's likeliest tokens, likeliest first, after each path of tokens through the verified tree,
            accepted or not, and after the empty path; by their logits, before penalties and structure.
    """

    path: tuple[int, ...]
    tokens: tuple[int, ...]
    hidden: Mapping[int, Tensor] = field(default_factory=dict)
    prompt: PromptFeatures | None = None
    kv: Mapping[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    successors: "Successors" = field(default_factory=dict)


Successors = Mapping[tuple[int, ...], Sequence[int]]
OnToken = Callable[[int], None]
State = TypeVar("State")


@runtime_checkable
class Drafter(Protocol[State]):
    """Interface of a drafter. `State` is the drafter's own memory of one request."""

    needs: Needs

    def begin(self, requests: Sequence[Request]) -> list[State]:
        """Read the requests: own encoder, own prefill. Nothing of the target is known yet."""
        ...

    def propose(self, states: Sequence[State], budgets: Sequence[Budget]) -> list[Draft]:
        """Continue each answer after what is committed. An empty tree is a valid proposal."""
        ...

    def commit(self, states: Sequence[State], outputs: Sequence[VerifyOutput]) -> None:
        """Learn what was accepted; the next `propose` continues from there."""
        ...

    def fork(self, states: Sequence[State]) -> list[State]:
        """Independent copies of states, to draft after possible continuations.

        A copy is dropped without `end`, and teaches the drafter nothing.
        """
        ...

    def end(self, states: Sequence[State]) -> None:
        """Free what the requests held."""
        ...


@runtime_checkable
class AsyncDrafter(Protocol):
    """A drafter whose proposals are made elsewhere, at least in part: it is asked first and waited for later."""

    def propose_async(self, states: Sequence[Any], budgets: Sequence[Budget]) -> "Proposal":
        """Begin `Drafter.propose`; returns a function that waits for the drafts."""
        ...


Proposal = Callable[[], list[Draft]]


def propose_async(drafter: Drafter[Any], states: Sequence[Any], budgets: Sequence[Budget]) -> Proposal:
    """Begin a proposal; a drafter of this thread makes its drafts only when the returned function is called."""
    if isinstance(drafter, AsyncDrafter):
        return drafter.propose_async(states, budgets)
    return lambda: drafter.propose(states, budgets)
