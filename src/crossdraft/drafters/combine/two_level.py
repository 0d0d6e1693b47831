"""What `cascade` and `pyramid` share: a cheap drafter's words are read by a better one before the target sees them.

The cheap one writes a few tokens; the better one's model reads them in one pass, keeps those that it agrees to, and
adds one of its own; the cheap one goes on behind that. So the better one writes in fewer passes.

The cheap one's own state is told what is committed. What is not yet, a fork of it is told on trial: where the text goes
another way, that one is dropped and another forked. So any drafter can be the cheap one.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from crossdraft.drafters.alternatives import TokenAlternatives
from crossdraft.drafters.independent import IndependentDrafter, IndependentState
from crossdraft.engine.accept import as_wide
from crossdraft.engine.drafter import Budget, Draft, Drafter, Needs, VerifyOutput
from crossdraft.engine.request import Request
from crossdraft.engine.sampling import sample_one, warp
from crossdraft.engine.streams import apart
from crossdraft.engine.target import Chunk
from crossdraft.engine.tree import DraftTree
from crossdraft.errors import CrossdraftError

AHEAD = 5  # tokens that the cheap one writes between two passes of the better one

Keeps = Callable[[Tensor, int, Tensor], bool]
"""(p, token, q): whether the better one, of distribution p [V], lets stand a token that was drawn from q [V]."""


@dataclass(eq=False)
class InnerState:
    """A state of the cheap drafter, and the answer as it was told."""

    state: Any
    text: list[int] = field(default_factory=list)


@dataclass(eq=False)
class TwoLevelState:
    """One answer: the better drafter's text, what the cheap one was told of it, and what a fork was told on trial."""

    writing: IndependentState
    inner: InnerState
    trial: InnerState | None = None


class TwoLevelDrafter:
    """Drafts a chain that `inner` writes and `outer` corrects.

    Args:
        outer: the better drafter, of the target's own vocabulary.
        inner: the cheaper one; of a tree, its main path is read.
        keeps: what `outer` lets stand beside the token it would have taken itself, which in a greedy answer always
            stands. When sampling it must not look at a token that was drawn: see `pyramid`.
        ahead: most tokens that `inner` writes between two passes of `outer`.

    Raises:
        CrossdraftError: `outer` is no model that can read along.
    """

    def __init__(self, outer: Drafter[Any], inner: Drafter[Any], keeps: Keeps, ahead: int = AHEAD) -> None:
        if not isinstance(outer, IndependentDrafter):
            raise CrossdraftError(
                "The first drafter of a cascade or pyramid must be a model of the target's own vocabulary, such as "
                "event, blind or view."
            )
        self.outer = outer
        self.inner = inner
        self.keeps = keeps
        self.ahead = ahead
        # Of the target's outputs, nothing.
        self.needs = Needs(
            video=outer.needs.video or inner.needs.video,
            visual=outer.needs.visual or inner.needs.visual,
            remembers=outer.needs.remembers or inner.needs.remembers,
        )

    @torch.inference_mode()
    def begin(self, requests: Sequence[Request]) -> list[TwoLevelState]:
        outer, inner = self.outer.begin(requests), self.inner.begin(apart(requests, 1))
        return [TwoLevelState(writing, InnerState(state)) for writing, state in zip(outer, inner, strict=True)]

    @torch.inference_mode()
    def propose(self, states: Sequence[TwoLevelState], budgets: Sequence[Budget]) -> list[Draft]:
        return [self.draft(state, budget) for state, budget in zip(states, budgets, strict=True)]

    def commit(self, states: Sequence[TwoLevelState], outputs: Sequence[VerifyOutput]) -> None:
        # The inner one is told with the next draft: most of what the target says it knows by then.
        self.outer.commit([state.writing for state in states], outputs)

    @torch.inference_mode()
    def fork(self, states: Sequence[TwoLevelState]) -> list[TwoLevelState]:
        writings = self.outer.fork([state.writing for state in states])
        pairs = zip(writings, states, strict=True)
        return [TwoLevelState(writing, self._fork(state.inner)) for writing, state in pairs]

    def end(self, states: Sequence[TwoLevelState]) -> None:
        for state in states:
            self._tell(state.inner, state.writing.committed)  # what it remembers must be what was said
        self.inner.end([state.inner.state for state in states])
        self.outer.end([state.writing for state in states])

    def draft(self, state: TwoLevelState, budget: Budget) -> Draft:
        """Continue the outer one's tail until the budget, the end of the answer, or the stop signal."""
        text = state.writing
        while len(text.slots) < budget.nodes and text.path_prob >= budget.min_confidence and not budget.stopped:
            if self.outer.ended(text) or self.outer.room(text) == 0:
                break
            before = len(text.slots)
            self._write(state, budget)
            show(text.tail[before:], budget)
        # Written it is; what remains is to wrap it up.
        return self.outer.propose([text], [Budget(min(budget.nodes, len(text.tail)))])[0]

    def suggest(self, state: TwoLevelState, nodes: int, stop: Callable[[], bool] | None) -> Draft:
        """What the inner one writes behind the outer one's text: the main path of its draft."""
        if nodes == 0:
            return Draft(DraftTree.empty())
        return main_path(self.inner.propose([self._informed(state)], [Budget(nodes, stop=stop)])[0])

    def _informed(self, state: TwoLevelState) -> Any:
        """The inner one told the outer one's text: its own state if all of that is committed, else a fork on trial."""
        text = state.writing
        if not text.tail:
            self._tell(state.inner, text.committed)
            return state.inner.state
        written = [*text.committed, *text.tail]
        if state.trial is None or state.trial.text != written[: len(state.trial.text)]:
            state.trial = self._fork(state.inner)
        self._tell(state.trial, written)
        return state.trial.state

    def _fork(self, told: InnerState) -> InnerState:
        return InnerState(self.inner.fork([told.state])[0], [*told.text])

    def _tell(self, told: InnerState, text: Sequence[int]) -> None:
        """Let it know what this text adds to the one that it was told."""
        if len(text) > len(told.text):
            self.inner.commit([told.state], [VerifyOutput((), tuple(text[len(told.text) :]))])
            told.text = [*text]

    def _write(self, state: TwoLevelState, budget: Budget) -> None:
        """One pass of the outer one over the inner one's words: append those that stand, and one of its own."""
        text = state.writing
        written = [*text.committed, *text.tail]
        missing = written[len(text.fed) :]
        words = DraftTree.empty()
        if missing:  # else only the prompt was read, and its own logits are there already
            most = min(self.ahead, budget.nodes - len(text.tail) - 1, self.outer.room(text))
            words = self.suggest(state, most, budget.stop).tree
            words = readable(words, self.outer.model.vocab_size)
            chunk, chain = Chunk(torch.tensor(missing)), DraftTree.chain(words.tokens)
            out = self.outer.model.extend(text.cache, slice(0, 1), [chunk], [chain], self.outer.capture)
            text.rows = self.outer.rows_of(out, text.seen)
            text.fed = written
        kept = self._correct(text, words)
        text.cache.keep(0, range(kept))
        text.fed = [*text.fed, *words.tokens[:kept]]
        text.rows = text.rows[kept:]

    def _correct(self, text: IndependentState, words: DraftTree) -> int:
        """Append to the tail until the outer one says something else; returns how many words stood."""
        for place, word in enumerate(words.tokens):
            if self._choose(text, text.rows[place], word, law_of(words, place)) != word:
                return place
            if word in self.outer.model.eos:
                return place  # it stands, but nothing is read behind it, itself neither
        self._choose(text, text.rows[len(words)])
        return len(words)

    def _choose(self, text: IndependentState, logits: Tensor, word: int = -1, law: Tensor | None = None) -> int:
        """Append one token, `word` if it may stand there, from the outer one's logits [V]."""
        logits = logits + self.outer.banned
        scores = warp(logits, text.sampling, [*text.context, *text.committed, *text.tail])
        q = None
        if word >= 0:
            q = point_mass(word, scores) if law is None else law.to(scores)
        if text.sampling.greedy:
            token = int(scores.argmax())
            if q is not None and word != token and self.keeps(scores.softmax(-1), word, q):
                token = word
            confidence = math.exp(logits[token] - logits.logsumexp(-1))
        else:
            stands = q is not None and self.keeps(scores, word, q)
            q = q if stands and q is not None else scores
            token = word if stands else sample_one(q, text.generator)
            confidence = float(q[token])
            text.dists.append(q)
        text.slots.append(TokenAlternatives((token,), (confidence,)))
        return token


def main_path(draft: Draft) -> Draft:
    """The chain of first children, with its distributions and chances."""
    if draft.tree.is_chain:
        return draft
    path = draft.tree.main_path
    return Draft(draft.tree.keep(path), tuple(draft.path_probs[node] for node in path) if draft.path_probs else ())


def show(tokens: Sequence[int], budget: Budget) -> None:
    """Tell whoever watches."""
    if budget.on_token is not None:
        for token in tokens:
            budget.on_token(token)


def readable(words: DraftTree, vocabulary: int) -> DraftTree:
    """As much of a chain as a model of this many tokens has words for; drawn ones must all be among them."""
    strange = (place for place, token in enumerate(words.tokens) if token >= vocabulary)
    return as_wide(words.first(next(strange, len(words))), vocabulary)


def law_of(words: DraftTree, place: int) -> Tensor | None:
    """[V] what a word was drawn from; `None` if it was chosen for certain."""
    row = words.drawn_from[place]
    return None if words.dists is None or row < 0 else words.dists[row]


def point_mass(token: int, like: Tensor) -> Tensor:
    """[V] all on one token."""
    return F.one_hot(torch.tensor(token, device=like.device), like.shape[-1]).to(like)
