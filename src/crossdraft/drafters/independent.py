"""An independent drafter: a model of its own that reads the request through its own sense.

The drafter needs nothing of the target, so it may draft while the target still reads. It runs behind the same adapter
as a target does, with its own prompt, encoder, cache and positions; it shares only the vocabulary with the target.

Draft reuse: where the target rejects a token, most of the text drafted after it usually still holds. So the drafter
does not write that text again token by token: it reads the rejected text after the new token in one pass, and keeps it
as far as it would say the same now. It proposes the same draft as token-by-token drafting, in fewer passes. Subclasses
may take candidates from elsewhere (`_candidates`) without changing the draft.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Protocol

import torch
from torch import Tensor

from crossdraft.drafters import WORDS
from crossdraft.drafters.alternatives import TokenAlternatives, tree_from_topk
from crossdraft.drafters.base import Draws, PerRequestDrafter, banned_bias, read_prompt, show
from crossdraft.engine.cache import KVCache
from crossdraft.engine.drafter import Budget, Draft, Needs, VerifyOutput
from crossdraft.engine.fast.static_cache import hand_back
from crossdraft.engine.passes import Chunk, PassRow, TargetOut
from crossdraft.engine.prefix_cache import SEEN, SENSED
from crossdraft.engine.request import Request
from crossdraft.engine.sampling import Sampling, warp_tree
from crossdraft.engine.target import Target
from crossdraft.engine.tree import DraftTree, common_prefix

LONGEST, SHORTEST = 32, 2  # candidates read in one pass
MOST = 256  # rejected tokens that are kept
GRAM = 2  # tokens that must recur for two positions to be matched


@dataclass(frozen=True)
class DraftReuse:
    """Rejected text, candidates for what comes next.

    A candidate that fails costs rows of a pass, so after a failure few are read until they hold again.

    Args:
        tokens: all rejected tokens, the latest text first.
        at: the position of the next candidates in `tokens`.
        length: number of candidates to read.
    """

    tokens: tuple[int, ...] = ()
    at: int = 0
    length: int = LONGEST

    def rejected(self, text: Sequence[int]) -> "DraftReuse":
        """Add new text, whose first token the target replaced."""
        return DraftReuse((*text, *self.tokens[:MOST])) if text else self

    def candidates(self, written: Sequence[int], most: int) -> tuple["DraftReuse", list[int]]:
        """Find at most `most` candidates to follow `written`; returns a copy at their position, and the candidates.

        They follow the nearest later position of the last two tokens, else the nearest earlier one. Without either, the
        last token is taken to have replaced the next rejected token, and the candidates follow that token.
        """
        at = self._position_of(tuple(written[-GRAM:]))
        end = min(len(self.tokens), at + min(self.length, most))
        return replace(self, at=at), list(self.tokens[at:end])

    def after(self, offered: int, held: int) -> "DraftReuse":
        """Move on after `held` of `offered` candidates were drafted again, and then one more token."""
        if not offered:
            return self
        length = min(LONGEST, 2 * self.length) if held == offered else max(SHORTEST, held)
        return replace(self, at=self.at + held, length=length)

    def _position_of(self, last: tuple[int, ...]) -> int:
        text = self.tokens
        here = min(self.at + 1, len(text))
        if len(last) < GRAM:
            return here
        further = range(max(GRAM, here), len(text) + 1)
        nearer = range(min(here, len(text) + 1) - 1, GRAM - 1, -1)
        return next((end for end in chain(further, nearer) if text[end - GRAM : end] == last), here)


@dataclass(eq=False)
class IndependentState:
    """One answer as the drafter sees it.

    `drafted` are the tokens written after the committed ones and not verified yet: when the target agrees with a prefix
    of them, the rest is the next proposal, for free. `reuse` is the rejected text, and `reused` the number of the last
    candidates that came from it.
    """

    sampling: Sampling
    cache: KVCache
    prompt: list[int]  # its ids, for repetition penalties too
    draws: Draws
    logits: Tensor  # [1 + n, V] after everything that was fed, and after each candidate
    committed: list[int] = field(default_factory=list)
    fed: list[int] = field(default_factory=list)  # answer tokens in the cache
    drafted: list[TokenAlternatives] = field(default_factory=list)
    reuse: DraftReuse = field(default_factory=DraftReuse)
    reused: int = 0
    # [h] each, where subclasses need features: of the prompt's last token, then of each token of `fed`; rest unused.
    features: list[Tensor] = field(default_factory=list)
    frame_kv: Sequence[tuple[Tensor, Tensor]] = ()  # keys and values of the frames, a layer each; see `heads.glance`
    dists: list[Tensor] = field(default_factory=list)  # [V] each, of drafted tokens that were drawn independently
    notes: tuple[str, ...] = ()  # of its own prompt, such as on the recording that it read

    @property
    def pending(self) -> list[int]:
        """Drafted tokens that are not verified yet."""
        return [one.tokens[0] for one in self.drafted]

    @property
    def path_prob(self) -> float:
        """The drafter's own probability of all pending tokens."""
        return math.prod(one.probs[0] for one in self.drafted)


class FrameReader(Protocol):
    """A network that attends to the clip and gives the logits, such as `heads.glance`."""

    target: Target | None
    glance: Any

    def encode(self, request: Request) -> Sequence[tuple[Tensor, Tensor]]:
        """Keys and values of the frames, a layer each."""
        ...

    def logits(self, features: Tensor, visual: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
        """[n, H] features of the drafter's model -> [n, V] logits."""
        ...


class IndependentDrafter(PerRequestDrafter[IndependentState]):
    """Drafts with a model of its own.

    Args:
        model: the drafter's network behind the adapter, with its own `prepare`.
        banned: ids that must never be drafted, as the target must not see them as text. They are masked before the
            softmax, so that q stays a distribution.
        sees: true if the model reads the request's video.
        words: tokens of a position that may become nodes: 1 = chains, more = trees with alternatives where the model is
            unsure (greedy answers only); see `alternatives`.
        glance: network that attends to the clip and gives the logits; `None` = the model's own logits.
    """

    capture: tuple[int, ...] = ()  # the layer whose features a glance or a subclass reads

    def __init__(
        self,
        model: Target,
        banned: Sequence[int] = (),
        *,
        sees: bool = False,
        words: int = 1,
        glance: FrameReader | None = None,
    ) -> None:
        encodes = glance is not None and glance.target is not None
        self.needs = Needs(video=sees or encodes, visual=glance is not None and not encodes)
        self.words = words
        self._senses = SEEN if sees else SENSED
        self.model = model if glance is None else model.features_only()  # the glance gives the logits
        self.glance = glance
        if glance is not None:
            self.capture = glance.glance.reads
        self.banned = banned_bias(model, banned)

    def end(self, states: Sequence[IndependentState]) -> None:
        for state in states:  # forks have caches of another kind
            hand_back(state.cache)

    def _begin(self, request: Request) -> IndependentState:
        prompt, cache, out = read_prompt(
            self.model, request, request.token_limit, self.capture, self.prefixes, self._senses
        )
        draws, ids = Draws(request.sampling, self.model.device), prompt.input_ids.tolist()
        features = [layer[-1] for layer in out.hidden[0]]
        frame_kv = self.glance.encode(request) if self.glance is not None else ()
        logits = self.logits_of(out, frame_kv)
        state = IndependentState(request.sampling, cache, ids, draws, logits, features=features, frame_kv=frame_kv)
        state.notes = prompt.notes
        return state

    def logits_of(self, out: TargetOut, frame_kv: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
        """[1 + n, V] logits after the last token that a pass fed, and after each of its candidates."""
        logits = out.logits[0]
        return logits if self.glance is None else self.glance.logits(out.hidden[0][0][-len(logits) :], frame_kv)

    def _propose(self, state: IndependentState, budget: Budget) -> Draft:
        """Draft on until the budget, the end of the answer, or the stop signal."""
        drafted, eos = state.drafted, self.model.eos
        while len(drafted) < budget.nodes and state.path_prob >= budget.min_confidence and not budget.stopped:
            if self.ended(state) or self.room(state) == 0:
                break
            show(self._write(state, budget.nodes - len(drafted)), budget)
        if state.sampling.greedy:
            return tree_from_topk(drafted, budget.nodes, self.words, eos)
        count = min(budget.nodes, len(drafted))
        return Draft(state.draws.chain(state.pending[:count], state.dists[:count]))

    def ended(self, state: IndependentState) -> bool:
        """True if the text so far, verified or not, ends the answer."""
        last = [state.drafted[-1].tokens[0]] if state.drafted else state.committed[-1:]
        return not self.model.eos.isdisjoint(last)

    def room(self, state: IndependentState) -> int:
        """Number of tokens that can still be fed before the drafter's own context, or its cache, is full."""
        most = min(self.model.context, state.cache.capacity)
        return max(0, most - len(state.prompt) - len(state.committed) - len(state.drafted))

    def _write(self, state: IndependentState, most: int) -> list[int]:
        """Draft in one pass: the candidates that the drafter still predicts, and one more token.

        Returns the new tokens, between 1 and `most` of them.
        """
        candidates = self._read_on(state, most - 1)
        new = self._choose(state, candidates)
        kept = len(new) - 1  # all but the last are candidates that held, hence in the cache
        state.cache.keep(0, range(kept))
        state.fed += candidates[:kept]
        reused = min(len(candidates), state.reused)
        state.reuse = state.reuse.after(reused, min(kept, reused))
        state.logits = state.logits[kept:]
        return new

    def _read_on(self, state: IndependentState, most: int) -> list[int]:
        """Feed the tokens that the cache lacks and then at most `most` candidates; returns the candidates."""
        written = [*state.committed, *state.pending]
        missing = written[len(state.fed) :]
        if not missing:
            return []
        candidates = self._candidates(state, written, min(most, self.room(state)))
        self.feed(state, written, candidates)
        return candidates

    def feed(self, state: IndependentState, written: list[int], candidates: Sequence[int]) -> None:
        """Run one pass over the tokens of `written` that are not in the cache yet, and the candidates after them."""
        chunk, tree = Chunk(torch.tensor(written[len(state.fed) :])), DraftTree.chain(candidates)
        out = self.model.extend(state.cache, [PassRow(0, chunk, tree, capture=self.capture)])
        for layer in out.hidden[0]:
            state.features[1 + len(state.fed) :] = layer
        state.logits = self.logits_of(out, state.frame_kv)
        state.fed = written
        if not state.pending:
            state.cache.mark(0)

    def _candidates(self, state: IndependentState, written: Sequence[int], most: int) -> list[int]:
        """Find at most `most` tokens that may follow all of `written`, of which `state.fed` is in the KV cache."""
        state.reuse, found = state.reuse.candidates(written, most)
        state.reused = len(found)
        return found

    def _choose(self, state: IndependentState, candidates: Sequence[int]) -> list[int]:
        """Draft from the last pass's logits: the candidates that the model still predicts, and one more token."""
        before = [*state.prompt, *state.committed, *state.pending]
        scores = warp_tree(state.logits + self.banned, DraftTree.chain(candidates), before, state.sampling)
        likely = top_tokens(scores) if state.sampling.greedy else []
        new: list[int] = []
        for row, candidate in enumerate([*candidates, None]):
            if not state.sampling.greedy:
                token = state.draws.token(scores[row], len(state.committed) + len(state.drafted))
                likely.append(TokenAlternatives((token,), (float(scores[row, token]),)))
                if state.draws.independent:
                    state.dists.append(scores[row].clone())  # a view would keep all rows
            state.drafted.append(likely[row])
            new.append(likely[row].tokens[0])
            if new[-1] != candidate or new[-1] in self.model.eos:
                break
        return new

    def _commit(self, state: IndependentState, output: VerifyOutput) -> None:
        """Resynchronise with the accepted tokens: keep the cache and the drafted tokens as far as they agree."""
        # A target of the same tokenizer may have more rows than the drafter, and the last one stands for those.
        tokens = [min(token, self.model.vocab_size - 1) for token in output.tokens]
        pending, count = state.pending, len(tokens)
        agreed = common_prefix(pending, tokens)
        state.committed += tokens
        if agreed < count:
            # Where all accepted tokens were alternatives, only the last is new: it replaces the drafted token there.
            known = all(token in one.tokens for token, one in zip(tokens[:-1], state.drafted, strict=False))
            state.reuse = state.reuse.rejected(pending[count - 1 if known else agreed :])
            agreed = len(pending)
        del state.drafted[:agreed], state.dists[:agreed]
        written = [*state.committed, *state.pending]
        kept = common_prefix(state.fed, written)
        if kept < len(state.fed):
            kept = state.cache.truncate(0, len(state.prompt) + kept) - len(state.prompt)
            state.fed = state.fed[:kept]


def top_tokens(scores: Tensor) -> list[TokenAlternatives]:
    """The most likely token of each row of logits [n, V], and the next ones, with their probabilities."""
    firsts = scores.argmax(-1).tolist()
    best = scores.topk(min(WORDS, scores.shape[-1])).indices.tolist()
    ids = [
        [first, *(token for token in row if token != first)][:WORDS] for first, row in zip(firsts, best, strict=True)
    ]
    probs = scores.softmax(-1).gather(1, torch.tensor(ids, device=scores.device))
    return [_possible(tokens, p) for tokens, p in zip(ids, probs.tolist(), strict=True)]


def _possible(tokens: Sequence[int], probs: Sequence[float]) -> TokenAlternatives:
    """Alternatives without banned tokens, which have probability 0; the first token always stays."""
    count = max(1, sum(prob > 0 for prob in probs))
    return TokenAlternatives(tuple(tokens[:count]), tuple(probs[:count]))
