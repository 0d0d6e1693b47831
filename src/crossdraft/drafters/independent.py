"""An independent drafter: a model of its own that reads the request through its own sense.

It needs nothing of the target, so it may write while the target still reads. It runs behind the same adapter as a
target does, with its own prompt, encoder, cache and positions; the only thing the two share is the vocabulary.

Where the target overrules a word, most of what was written behind it usually still holds. So the drafter does not
write it again word by word: it reads the old text behind the new word in one pass, and keeps it as far as it would say
the same now. What it proposes is what word-by-word drafting proposes; only the passes are fewer.
"""

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import torch
from torch import Tensor

from crossdraft.engine.cache import KVCache
from crossdraft.engine.drafter import Budget, Committed, Draft, Needs
from crossdraft.engine.request import Request
from crossdraft.engine.sampling import Sampling, sample_one, warp
from crossdraft.engine.target import Chunk, Prompt, Target
from crossdraft.engine.tree import DraftTree

NEARBY = 4  # how far behind an overruled token a single token that recurs is taken for the same place


@dataclass(eq=False)
class Writing:
    """One answer as the drafter sees it.

    `tail` is what the drafter wrote behind the committed tokens and nobody has judged yet: when the target agrees
    with a prefix of it, the rest is the next proposal, for free. `stale` is what stood where the target went another
    way, and behind it: the best guess at what comes next.
    """

    sampling: Sampling
    cache: KVCache
    prompt_length: int
    context: list[int]  # the prompt's ids, for repetition penalties
    generator: torch.Generator
    rows: Tensor  # [1 + n, V] logits behind everything that was fed, and behind each token guessed next
    committed: list[int] = field(default_factory=list)
    fed: list[int] = field(default_factory=list)  # answer tokens in the cache
    tail: list[int] = field(default_factory=list)
    stale: list[int] = field(default_factory=list)
    confidences: list[float] = field(default_factory=list)  # of the tail's tokens
    dists: list[Tensor] = field(default_factory=list)  # [V] each, the tail's, when sampling


class IndependentDrafter:
    """Drafts a chain with a model of its own.

    Args:
        model: the drafter's network behind the adapter, with its own `prepare`.
        banned: ids that must never be drafted: what the target must not see as text. They are masked before the
            softmax, so that q stays a distribution.
        sees: whether it reads the request's video.
    """

    def __init__(self, model: Target, banned: Sequence[int] = (), *, sees: bool = False) -> None:
        self.needs = Needs(video=sees)
        self.model = model
        self.banned = mute(model, banned)

    @torch.inference_mode()
    def begin(self, requests: Sequence[Request]) -> list[Writing]:
        return [self._begin(request) for request in requests]

    @torch.inference_mode()
    def propose(self, states: Sequence[Writing], budgets: Sequence[Budget]) -> list[Draft]:
        return [self._propose(state, budget) for state, budget in zip(states, budgets, strict=True)]

    def commit(self, states: Sequence[Writing], verdicts: Sequence[Committed]) -> None:
        for state, verdict in zip(states, verdicts, strict=True):
            self._commit(state, verdict)

    def end(self, states: Sequence[Writing]) -> None:
        """Nothing to free but the states themselves."""

    def _begin(self, request: Request) -> Writing:
        prompt, cache, rows = read_prompt(self.model, request, request.max_new_tokens)
        generator = own_chances(self.model, request)
        return Writing(request.sampling, cache, len(prompt), prompt.input_ids.tolist(), generator, rows)

    def _propose(self, state: Writing, budget: Budget) -> Draft:
        """Continue the tail until the budget, the end of the answer, or the stop signal."""
        reach = math.prod(state.confidences[: budget.nodes])
        while len(state.tail) < budget.nodes and reach >= budget.min_confidence and not budget.stopped:
            if (state.tail and state.tail[-1] in self.model.eos) or self._room(state) == 0:
                break
            for token, confidence in self._write(state, budget.nodes - len(state.tail)):
                reach *= confidence
                if budget.on_token is not None:
                    budget.on_token(token)
        count = min(budget.nodes, len(state.tail))
        dists = torch.stack(state.dists[:count]) if state.dists and count else None
        paths = tuple(accumulate(state.confidences[:count], operator.mul)) if state.sampling.greedy else ()
        return Draft(DraftTree.chain(state.tail[:count], dists), paths)

    def _room(self, state: Writing) -> int:
        """How many more tokens can be fed before the drafter's own context is full."""
        return max(0, self.model.context - state.prompt_length - len(state.committed) - len(state.tail))

    def _write(self, state: Writing, most: int) -> list[tuple[int, float]]:
        """One pass: append a token to the tail, and as much of the guess as the drafter still says now.

        Returns the new tokens with their confidences, between 1 and `most` of them.
        """
        guess = self._read_on(state, most - 1)
        new: list[tuple[int, float]] = []
        for place in range(len(guess) + 1):
            token, confidence = self._choose(state, state.rows[place])
            new.append((token, confidence))
            if place == len(guess) or token != guess[place] or token in self.model.eos:
                break
        kept = len(new) - 1  # all but the last came true, hence are in the cache
        state.cache.keep(0, range(kept))
        state.fed += guess[:kept]
        state.stale = state.stale[kept:]
        state.rows = state.rows[kept:]
        return new

    def _read_on(self, state: Writing, most: int) -> list[int]:
        """Feed what is missing and, behind it, a guess of at most `most` tokens; returns the guess."""
        written = [*state.committed, *state.tail]
        missing = written[len(state.fed) :]
        if not missing:
            return []
        at = resume_point(state.stale, written)
        state.stale = state.stale[at:]
        guess = state.stale[: min(most, self._room(state))]
        chunk, chain = Chunk(torch.tensor(missing)), DraftTree.chain(guess)
        state.rows = self.model.extend(state.cache, slice(0, 1), [chunk], [chain]).logits[0]
        state.fed = written
        return guess

    def _choose(self, state: Writing, logits: Tensor) -> tuple[int, float]:
        """Draw one token behind everything written from its logits [V], and append it to the tail."""
        logits = logits + self.banned
        q = warp(logits, state.sampling, [*state.context, *state.committed, *state.tail])
        if state.sampling.greedy:
            token = int(q.argmax())
            confidence = math.exp(logits[token] - logits.logsumexp(-1))
        else:
            token = sample_one(q, state.generator)
            confidence = float(q[token])
            state.dists.append(q)
        state.tail.append(token)
        state.confidences.append(confidence)
        return token, confidence

    def _commit(self, state: Writing, verdict: Committed) -> None:
        """Resynchronise on the accepted tokens: keep the cache and the tail as far as they agree."""
        state.committed += verdict.tokens
        agreed = common_prefix(state.tail, verdict.tokens)
        stays = agreed == len(verdict.tokens)
        if not stays:
            state.stale = state.tail[agreed:] + state.stale
        state.tail = state.tail[agreed:] if stays else []
        state.confidences = state.confidences[agreed:] if stays else []
        state.dists = state.dists[agreed:] if stays else []
        written = [*state.committed, *state.tail]
        kept = common_prefix(state.fed, written)
        if kept < len(state.fed):
            state.cache.truncate(0, state.prompt_length + kept)
            state.fed = state.fed[:kept]


def mute(model: Target, banned: Sequence[int]) -> Tensor:
    """[V] to be added to logits: -inf at what must not be drafted."""
    blocked = sorted(frozenset(banned) | model.reserved)
    bias = torch.zeros(model.vocab_size, device=model.device)
    bias[[i for i in blocked if i < model.vocab_size]] = float("-inf")
    return bias


def read_prompt(model: Target, request: Request, spare: int) -> tuple[Prompt, KVCache, Tensor]:
    """The drafter's own prefill: the prompt, a cache with room for `spare` more tokens, and [1, V] logits behind it."""
    prompt = model.prepare(request)
    pieces, offset = model.chunks(prompt, model.encode(prompt))
    cache = model.new_cache(capacity=len(prompt) + spare)
    row = cache.add_row(cache.capacity)
    cache.offsets[row] = offset
    outs = [model.extend(cache, slice(0, 1), [piece], [DraftTree.empty()]) for piece in pieces]
    return prompt, cache, outs[-1].logits[0]


def own_chances(model: Target, request: Request) -> torch.Generator:
    """A stream of the drafter's own: the target's draws must not depend on it."""
    return torch.Generator(model.device).manual_seed(request.sampling.seed + 1)


def resume_point(stale: Sequence[int], written: Sequence[int]) -> int:
    """Where old text goes on behind new text: an index into `stale`, whose first token has been overruled.

    Behind the first place that repeats the last two tokens written, else (nearby only) the last one; failing both, one
    token was put in another's place, and the old text goes on behind that.

    >>> resume_point([1, 2, 3, 4, 5], [9, 3, 4])
    4
    >>> resume_point([1, 2, 3, 4, 5], [9, 2])
    2
    >>> resume_point([1, 2, 3, 4, 5], [9, 8])
    1
    """
    last = tuple(written[-2:])
    for end in range(2, len(stale) + 1):
        if tuple(stale[end - 2 : end]) == last:
            return end
    for end in range(1, min(NEARBY, len(stale)) + 1):
        if stale[end - 1] == last[-1]:
            return end
    return min(1, len(stale))


def common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """How many tokens two texts begin with in common."""
    for place, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return place
    return min(len(left), len(right))
