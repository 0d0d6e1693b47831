"""An independent drafter: a model of its own that reads the request through its own sense.

It needs nothing of the target, so it may write while the target still reads. It runs behind the same adapter as a
target does, with its own prompt, encoder, cache and positions; the only thing the two share is the vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from crossdraft.engine.cache import KVCache
from crossdraft.engine.drafter import Budget, Committed, Draft, Needs
from crossdraft.engine.request import Request
from crossdraft.engine.sampling import Sampling, sample_one, warp
from crossdraft.engine.target import Chunk, Target
from crossdraft.engine.tree import DraftTree


@dataclass(eq=False)
class Writing:
    """One answer as the drafter sees it.

    `tail` is what the drafter wrote behind the committed tokens and nobody has judged yet: when the target agrees
    with a prefix of it, the rest is the next proposal, for free.
    """

    sampling: Sampling
    cache: KVCache
    prompt_length: int
    context: list[int]  # the prompt's ids, for repetition penalties
    generator: torch.Generator
    logits: Tensor  # [V] behind everything that was fed
    committed: list[int] = field(default_factory=list)
    fed: list[int] = field(default_factory=list)  # answer tokens in the cache
    tail: list[int] = field(default_factory=list)
    confidences: list[float] = field(default_factory=list)  # of the tail's tokens
    dists: list[Tensor] = field(default_factory=list)  # [V] each, the tail's, when sampling


class IndependentDrafter:
    """Drafts a chain with a model of its own.

    Args:
        model: the drafter's network behind the adapter, with its own `prepare`.
        banned: ids that must never be drafted: what the target must not see as text. They are masked before the
            softmax, so that q stays a distribution.
    """

    needs = Needs()

    def __init__(self, model: Target, banned: Sequence[int] = ()) -> None:
        self.model = model
        blocked = sorted(frozenset(banned) | model.reserved)
        self.banned = torch.tensor(
            [i for i in blocked if i < model.vocab_size], dtype=torch.long, device=model.device
        )

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
        prompt = self.model.prepare(request)
        pieces, offset = self.model.chunks(prompt, self.model.encode(prompt))
        cache = self.model.new_cache(capacity=len(prompt) + request.max_new_tokens)
        row = cache.add_row(cache.capacity)
        cache.offsets[row] = offset
        outs = [self.model.extend(cache, slice(0, 1), [piece], [DraftTree.empty()]) for piece in pieces]
        logits = outs[-1].logits[0][0]
        seed = (
            request.sampling.seed + 1
        )  # not the target's stream: its draws must not depend on the drafter's
        generator = torch.Generator(self.model.device).manual_seed(seed)
        return Writing(request.sampling, cache, len(prompt), prompt.input_ids.tolist(), generator, logits)

    def _propose(self, state: Writing, budget: Budget) -> Draft:
        """Continue the tail until the budget, the end of the answer, or the stop signal."""
        reach = 1.0
        for confidence in state.confidences[: budget.nodes]:
            reach *= confidence
        while len(state.tail) < budget.nodes and reach >= budget.min_confidence and not budget.stopped:
            if (state.tail and state.tail[-1] in self.model.eos) or self._full(state):
                break
            token, confidence = self._next(state)
            reach *= confidence
            if budget.on_token is not None:
                budget.on_token(token)
        count = min(budget.nodes, len(state.tail))
        dists = torch.stack(state.dists[:count]) if state.dists and count else None
        return Draft(DraftTree.chain(state.tail[:count], dists))

    def _full(self, state: Writing) -> bool:
        """True if one more token to feed would not fit the drafter's own context."""
        return state.prompt_length + len(state.committed) + len(state.tail) >= self.model.context

    def _next(self, state: Writing) -> tuple[int, float]:
        """Feed what is missing and choose one more token for the tail."""
        written = [*state.committed, *state.tail]
        missing = written[len(state.fed) :]
        if missing:
            chunk = Chunk(torch.tensor(missing))
            state.logits = self.model.extend(state.cache, slice(0, 1), [chunk], [DraftTree.empty()]).logits[
                0
            ][0]
            state.fed = written
        logits = state.logits.index_fill(0, self.banned, float("-inf"))
        q = warp(logits, state.sampling, [*state.context, *written])
        if state.sampling.greedy:
            token = int(q.argmax())
            confidence = float(logits.softmax(-1)[token])
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
        agreed = _common_prefix(state.tail, verdict.tokens)
        stays = agreed == len(verdict.tokens)
        state.tail = state.tail[agreed:] if stays else []
        state.confidences = state.confidences[agreed:] if stays else []
        state.dists = state.dists[agreed:] if stays else []
        written = [*state.committed, *state.tail]
        kept = _common_prefix(state.fed, written)
        if kept < len(state.fed):
            state.cache.truncate(0, state.prompt_length + kept)
            state.fed = state.fed[:kept]


def _common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    for place, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return place
    return min(len(left), len(right))
