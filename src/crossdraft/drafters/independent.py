"""An independent drafter: a model of its own that reads the request through its own sense.

It needs nothing of the target, so it may write while the target still reads. It runs behind the same adapter as a
target does, with its own prompt, encoder, cache and positions; the only thing the two share is the vocabulary.

Where the target overrules a word, most of what was written behind it usually still holds. So the drafter does not
write it again word by word: it reads the old text behind the new word in one pass, and keeps it as far as it would say
the same now. What it proposes is what word-by-word drafting proposes; only the passes are fewer. Subclasses may guess
from elsewhere (`_guess`): the text stays the same.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from crossdraft.drafters.alternatives import WORDS, TokenAlternatives, tree_from_topk
from crossdraft.drafters.base import fork_of
from crossdraft.drafters.reuse import DraftReuse
from crossdraft.engine.cache import KVCache
from crossdraft.engine.drafter import Budget, Draft, Needs, VerifyOutput
from crossdraft.engine.request import Request
from crossdraft.engine.sampling import Sampling, sample_one, warp_tree
from crossdraft.engine.target import Chunk, Encoded, Prompt, Target, TargetOut
from crossdraft.engine.tree import DraftTree
from crossdraft.errors import CrossdraftError

if TYPE_CHECKING:
    from crossdraft.heads.glance.frame_encoder import FrameEncoder


@dataclass(eq=False)
class IndependentState:
    """One answer as the drafter sees it.

    `tail` is what the drafter wrote behind the committed tokens and nobody has judged yet: when the target agrees
    with a prefix of it, the rest is the next proposal, for free. `old` is what was overruled: the best guess at what
    comes next, and `quoted` counts the tokens of the last guess that stood in it.
    """

    sampling: Sampling
    cache: KVCache
    prompt_length: int
    context: list[int]  # the prompt's ids, for repetition penalties
    generator: torch.Generator
    rows: Tensor  # [1 + n, V] logits behind everything that was fed, and behind each token guessed next
    committed: list[int] = field(default_factory=list)
    fed: list[int] = field(default_factory=list)  # answer tokens in the cache
    slots: list[TokenAlternatives] = field(default_factory=list)  # the tail's words, and what might stand there instead
    old: DraftReuse = field(default_factory=DraftReuse)
    quoted: int = 0
    # Where subclasses guess from them, [h] each: of the prompt's last token, of each of `fed`; what is behind is void.
    features: list[Tensor] = field(default_factory=list)
    seen: Sequence[tuple[Tensor, Tensor]] = ()  # keys and values of the frames, a layer each; see `heads.glance`
    dists: list[Tensor] = field(default_factory=list)  # [V] each, the tail's, when sampling

    @property
    def tail(self) -> list[int]:
        """See the class's text."""
        return [slot.words[0] for slot in self.slots]

    @property
    def path_prob(self) -> float:
        """The drafter's own chance of the whole tail."""
        return math.prod(slot.chances[0] for slot in self.slots)


class IndependentDrafter:
    """Drafts with a model of its own.

    Args:
        model: the drafter's network behind the adapter, with its own `prepare`.
        banned: ids that must never be drafted: what the target must not see as text. They are masked before the
            softmax, so that q stays a distribution.
        sees: whether it reads the request's video.
        words: words of a place that may become nodes: 1 = chains, more = trees with second guesses where it doubts
            (greedy answers only); see `second`.
        glance: looks at the clip and has the last word; `None` = the model says what it says.
    """

    capture: tuple[int, ...] = ()  # the layer whose features a glance or a subclass reads

    def __init__(
        self,
        model: Target,
        banned: Sequence[int] = (),
        *,
        sees: bool = False,
        words: int = 1,
        glance: "FrameEncoder | None" = None,
    ) -> None:
        looks = glance is not None and glance.tower is not None
        self.needs = Needs(video=sees or looks, visual=glance is not None and not looks)
        self.words = words
        self.model = model if glance is None else model.features_only()  # the glance has the last word
        self.glance = glance
        if glance is not None:
            self.capture = glance.glance.reads
        self.banned = banned_bias(model, banned)

    @torch.inference_mode()
    def begin(self, requests: Sequence[Request]) -> list[IndependentState]:
        return [self._begin(request) for request in requests]

    @torch.inference_mode()
    def propose(self, states: Sequence[IndependentState], budgets: Sequence[Budget]) -> list[Draft]:
        return [self._propose(state, budget) for state, budget in zip(states, budgets, strict=True)]

    def commit(self, states: Sequence[IndependentState], outputs: Sequence[VerifyOutput]) -> None:
        for state, output in zip(states, outputs, strict=True):
            self._commit(state, output)

    @torch.inference_mode()
    def fork(self, states: Sequence[IndependentState]) -> list[IndependentState]:
        return [fork_of(state) for state in states]

    def end(self, states: Sequence[IndependentState]) -> None:
        """Nothing to free but the states themselves."""

    def _begin(self, request: Request) -> IndependentState:
        prompt, cache, out = read_whole(self.model, request, request.token_limit, self.capture)
        generator, ids = draft_generator(self.model, request), prompt.input_ids.tolist()
        features = [layer[-1] for layer in out.hidden[0]]
        seen = self.glance.look(request) if self.glance is not None else ()
        rows = self.rows_of(out, seen)
        return IndependentState(
            request.sampling, cache, len(prompt), ids, generator, rows, features=features, seen=seen
        )

    def rows_of(self, out: TargetOut, seen: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
        """[1 + n, V] logits behind what a pass fed last, and behind each token that it guessed."""
        rows = out.logits[0]
        return rows if self.glance is None else self.glance.say(out.hidden[0][0][-len(rows) :], seen)

    def _propose(self, state: IndependentState, budget: Budget) -> Draft:
        """Continue the tail until the budget, the end of the answer, or the stop signal."""
        slots, eos = state.slots, self.model.eos
        while len(slots) < budget.nodes and state.path_prob >= budget.min_confidence and not budget.stopped:
            if self.ended(state) or self.room(state) == 0:
                break
            for token in self._write(state, budget.nodes - len(slots)):
                if budget.on_token is not None:
                    budget.on_token(token)
        if state.sampling.greedy:
            return tree_from_topk(slots, budget.nodes, self.words, eos)
        count = min(budget.nodes, len(slots))
        dists = torch.stack(state.dists[:count]) if count else None
        return Draft(DraftTree.chain(state.tail[:count], dists))

    def ended(self, state: IndependentState) -> bool:
        """Whether what is written, judged or not, ends the answer."""
        last = [state.slots[-1].words[0]] if state.slots else state.committed[-1:]
        return not self.model.eos.isdisjoint(last)

    def room(self, state: IndependentState) -> int:
        """How many more tokens can be fed before the drafter's own context, or its cache, is full."""
        most = min(self.model.context, state.cache.capacity)
        return max(0, most - state.prompt_length - len(state.committed) - len(state.slots))

    def _write(self, state: IndependentState, most: int) -> list[int]:
        """One pass: append a token to the tail, and as much of the guess as the drafter still says now.

        Returns the new tokens, between 1 and `most` of them.
        """
        guess = self._read_on(state, most - 1)
        new = self._choose(state, guess)
        kept = len(new) - 1  # all but the last came true, hence are in the cache
        state.cache.keep(0, range(kept))
        state.fed += guess[:kept]
        quoted = min(len(guess), state.quoted)
        state.old = state.old.told(quoted, min(kept, quoted))
        state.rows = state.rows[kept:]
        return new

    def _read_on(self, state: IndependentState, most: int) -> list[int]:
        """Feed what is missing and, behind it, a guess of at most `most` tokens; returns the guess."""
        written = [*state.committed, *state.tail]
        missing = written[len(state.fed) :]
        if not missing:
            return []
        guess = self._guess(state, written, min(most, self.room(state)))
        chunk, chain = Chunk(torch.tensor(missing)), DraftTree.chain(guess)
        out = self.model.extend(state.cache, slice(0, 1), [chunk], [chain], self.capture)
        for layer in out.hidden[0]:
            state.features[1 + len(state.fed) :] = layer
        state.rows = self.rows_of(out, state.seen)
        state.fed = written
        return guess

    def _guess(self, state: IndependentState, written: Sequence[int], most: int) -> list[int]:
        """What may follow everything `written`, at most `most` tokens; of these `state.fed` have been read."""
        state.old, guess = state.old.guess(written, most)
        state.quoted = len(guess)
        return guess

    def _choose(self, state: IndependentState, guess: Sequence[int]) -> list[int]:
        """Append to the tail what the drafter says now: its guess as far as that comes true, and one word more."""
        before = [*state.context, *state.committed, *state.tail]
        said = warp_tree(state.rows + self.banned, DraftTree.chain(guess), before, state.sampling)
        likely = top_tokens(said) if state.sampling.greedy else []
        new: list[int] = []
        for place, guessed in enumerate([*guess, None]):
            if not state.sampling.greedy:
                token = sample_one(said[place], state.generator)
                likely.append(TokenAlternatives((token,), (float(said[place, token]),)))
                state.dists.append(said[place].clone())  # a view would keep all rows
            state.slots.append(likely[place])
            new.append(likely[place].words[0])
            if new[-1] != guessed or new[-1] in self.model.eos:
                break
        return new

    def _commit(self, state: IndependentState, output: VerifyOutput) -> None:
        """Resynchronise on the accepted tokens: keep the cache and the tail as far as they agree."""
        state.committed += output.tokens
        tail, count = state.tail, len(output.tokens)
        agreed = common_prefix(tail, output.tokens)
        if agreed < count:
            # Where the words accepted stood in their slots, only the last token is news: it overrules what stood there.
            known = all(token in slot.words for token, slot in zip(output.tokens[:-1], state.slots, strict=False))
            state.old = state.old.overruled(tail[count - 1 if known else agreed :])
            agreed = len(tail)
        del state.slots[:agreed], state.dists[:agreed]
        written = [*state.committed, *state.tail]
        kept = common_prefix(state.fed, written)
        if kept < len(state.fed):
            state.cache.truncate(0, state.prompt_length + kept)
            state.fed = state.fed[:kept]


def top_tokens(scores: Tensor) -> list[TokenAlternatives]:
    """Of each row [n, V] the word of the highest score, and the next likeliest, with their chances."""
    firsts = scores.argmax(-1).tolist()
    best = scores.topk(min(WORDS, scores.shape[-1])).indices.tolist()
    words = [[first, *(word for word in row if word != first)][:WORDS] for first, row in zip(firsts, best, strict=True)]
    chances = scores.softmax(-1).gather(1, torch.tensor(words, device=scores.device))
    return [_possible(w, c) for w, c in zip(words, chances.tolist(), strict=True)]


def _possible(words: Sequence[int], chances: Sequence[float]) -> TokenAlternatives:
    """A slot without words that must not be said, where fewer than `WORDS` may be."""
    count = max(1, sum(chance > 0 for chance in chances))
    return TokenAlternatives(tuple(words[:count]), tuple(chances[:count]))


def banned_bias(model: Target, banned: Sequence[int]) -> Tensor:
    """[V] to be added to logits: -inf at what must not be drafted."""
    blocked = sorted(frozenset(banned) | model.reserved)
    bias = torch.zeros(model.vocab_size, device=model.device)
    bias[[i for i in blocked if i < model.vocab_size]] = float("-inf")
    return bias


def read_prompt(model: Target, request: Request, spare: int) -> tuple[Prompt, KVCache, Tensor]:
    """The drafter's own prefill: the prompt, a cache with room for `spare` more tokens, and [1, V] logits behind it."""
    prompt, cache, out = read_whole(model, request, spare)
    return prompt, cache, out.logits[0]


def read_whole(
    model: Target, request: Request, spare: int, capture: Sequence[int] = ()
) -> tuple[Prompt, KVCache, TargetOut]:
    """As `read_prompt`, with all that came of the prompt's last piece."""
    prompt = own_prompt(model, request)
    return prompt, *read_encoded(model, prompt, model.encode(prompt), spare, capture)


def own_prompt(model: Target, request: Request) -> Prompt:
    """The request as the drafter's model reads it.

    Raises:
        CrossdraftError: it does not fit into the model's context.
    """
    prompt = model.prepare(request)
    if len(prompt) >= model.context:
        raise CrossdraftError(
            f"The drafter reads the question as {len(prompt)} tokens, its context has {model.context}; "
            "ask a shorter question."
        )
    return prompt


def read_encoded(
    model: Target, prompt: Prompt, encoded: Encoded, spare: int, capture: Sequence[int] = ()
) -> tuple[KVCache, TargetOut]:
    """As `read_whole`, of a prompt whose features are here already."""
    capacity = len(prompt) + spare
    cache = model.new_cache(capacity=capacity)
    out = model.prefill(cache, prompt, encoded, capacity, capture=capture).out
    return cache, out


def draft_generator(model: Target, request: Request) -> torch.Generator:
    """A stream of the drafter's own: the target's draws must not depend on it."""
    return request.sampling.generator(model.device, offset=1)


def common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """How many tokens two texts begin with in common."""
    for place, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return place
    return min(len(left), len(right))
