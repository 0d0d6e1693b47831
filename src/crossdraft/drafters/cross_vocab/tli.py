"""Token-level intersection (TLI; Timor et al. 2025), and OmniDraft's n-gram cache (Ramakrishnan et al. 2025).

TLI: the drafter's distribution is cut down to the shared tokens *before* its token is drawn, and then read over the
target's ids. That is the exact distribution of the token, so acceptance is exact.

OmniDraft: an n-gram of drafter tokens that stands for one target token, as learned from committed text, is drafted as
that token, with the product of the n-gram's probabilities. To keep the distribution exact, at most one n-gram is
possible at each position, and it is chosen before anything is drawn: the n-gram that the drafter's likeliest tokens
spell. Its probability is taken from that of its first token, which keeps the rest.
"""

import math
import operator
from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from crossdraft.drafters.base import show
from crossdraft.drafters.cross_vocab.assistant import AssistantState, ByNamespace, CrossVocabDrafter, DraftStep
from crossdraft.drafters.cross_vocab.vocabulary import TokenTable, map_vocabularies
from crossdraft.engine.drafter import Budget, Draft, VerifyOutput
from crossdraft.engine.request import Request
from crossdraft.engine.sampling import Sampling, warp
from crossdraft.engine.target import Target
from crossdraft.engine.tree import DraftTree, common_prefix

LONGEST = 6  # drafter tokens of an n-gram


class NgramCache:
    """Cache from several drafter tokens to one target token; beyond `limit`, it forgets the least recently used."""

    def __init__(self, limit: int = 4096) -> None:
        self.limit = limit
        self._tokens: OrderedDict[tuple[int, ...], int] = OrderedDict()
        self._openings: Counter[tuple[int, ...]] = Counter()

    def __len__(self) -> int:
        return len(self._tokens)

    def learn(self, ids: Sequence[int], token: int) -> None:
        """Note that the target says these 2 to `LONGEST` tokens as one."""
        gram = tuple(ids)
        if not 2 <= len(gram) <= LONGEST:
            return
        if gram not in self._tokens:
            self._openings.update(gram[:n] for n in range(1, len(gram)))
        self._tokens[gram] = token
        self._tokens.move_to_end(gram)
        if len(self._tokens) > self.limit:
            old, _ = self._tokens.popitem(last=False)
            self._openings.subtract(old[:n] for n in range(1, len(old)))
            self._openings += Counter()  # drops what has come to 0

    def find(self, ids: Sequence[int]) -> int | None:
        """The target's token for exactly these drafter tokens, or `None`."""
        gram = tuple(ids)
        if gram in self._tokens:
            self._tokens.move_to_end(gram)
        return self._tokens.get(gram)

    def opens(self, ids: Sequence[int]) -> bool:
        """True if a longer n-gram begins with these tokens."""
        return tuple(ids) in self._openings


def aligned(left: Sequence[bytes], right: Sequence[bytes]) -> Iterator[tuple[int, int, int]]:
    """`(i, j, k)` where `left[i]` and `right[j:k]` cover the same bytes, counted from the end of both texts.

    >>> list(aligned([b" turning", b" left"], [b" turn", b"ing", b" le", b"ft"]))
    [(0, 0, 2), (1, 2, 4)]
    >>> list(aligned([b" tur", b"ning"], [b" turn", b"ing"]))
    []
    """
    edges = {byte: j for j, byte in enumerate(_edges(right))}
    for i, (start, end) in enumerate(pairwise(_edges(left))):
        if start in edges and end in edges and start < end:
            yield i, edges[start], edges[end]


def _edges(texts: Sequence[bytes]) -> list[int]:
    total = sum(map(len, texts))
    return [byte - total for byte in accumulate(map(len, texts), initial=0)]


@dataclass(frozen=True)
class Gram:
    """An n-gram that may be drafted as one token.

    Args:
        ids: the drafter's tokens.
        token: the target's token.
        rest: probability of all `ids` but the first, given the first.
    """

    ids: tuple[int, ...]
    token: int
    rest: float


def target_dist(q: Tensor, to_target: Tensor, width: int, gram: Gram | None = None) -> Tensor:
    """[width] the distribution of the next draft token over the target's ids.

    Args:
        q: [Vd] the drafter's distribution; positive at shared tokens and, if there is an n-gram, at its first token.
        to_target: [Vd] the target's id of each drafter token, -1 = none.
        width: rows of the target's head.
        gram: n-gram to which the probability q(first) · rest of its first token is moved. If the target lacks that
            first token, its remaining probability is dropped and the result renormalised.
    """
    shared = to_target >= 0
    dist = q.new_zeros(width)
    dist[to_target[shared]] = q[shared]
    if gram is not None:
        first = gram.ids[0]
        moved = q[first] * gram.rest
        if to_target[first] >= 0:
            dist[to_target[first]] = (dist[to_target[first]] - moved).clamp_min(0)
        dist[gram.token] += moved
    return dist / dist.sum()


class TokenIntersection(CrossVocabDrafter):
    """Drafter by TLI; with `learns` it has an n-gram cache (OmniDraft) for each namespace.

    Args:
        model, own, target, sees, learns: see `CrossVocabDrafter`; without `learns` only shared tokens are drafted.

    Raises:
        CrossdraftError: the two vocabularies share no token.
    """

    def __init__(
        self, model: Target, own: TokenTable, target: TokenTable, *, sees: bool = False, learns: bool = False
    ) -> None:
        super().__init__(model, own, target, sees=sees, learns=learns)
        self.table = map_vocabularies(own, target)
        self.grams = ByNamespace[NgramCache]()
        self.to_target = torch.tensor(self.table.to_target, device=model.device)
        self.shared = self.allow_only(i for i, id_ in enumerate(self.table.to_target) if id_ >= 0)

    def _begin(self, request: Request) -> AssistantState:
        state = super()._begin(request)
        state.sampling = self._own_sampling(request.sampling)
        return state

    def _propose(self, state: AssistantState, budget: Budget) -> Draft:
        """Draft token by token, each drawn from the distribution that is reported with it."""
        if state.own_bytes < len(state.text):  # inside a character
            return Draft(DraftTree.empty())
        path_prob = math.prod(step.prob for step in state.pending[: budget.nodes])
        while len(state.pending) < budget.nodes and path_prob >= budget.min_confidence and not budget.stopped:
            ended = bool(state.pending) and state.pending[-1].token == self.target.eos_id
            if ended or not self.has_room(state, len(state.written)):
                break
            step = self._write(state)
            state.pending.append(step)
            path_prob *= step.prob
            show([step.token], budget)
        steps = state.pending[: budget.nodes]
        tree = state.draws.chain([step.token for step in steps], [step.dist for step in steps if step.dist is not None])
        path_probs = accumulate((step.prob for step in steps), operator.mul)
        return Draft(tree, tuple(path_probs) if state.sampling.greedy else ())

    def _commit(self, state: AssistantState, output: VerifyOutput) -> None:
        """Keep drafted steps as far as the target's tokens agree with them; else encode the text anew, and learn."""
        agreed = common_prefix([step.token for step in state.pending], output.tokens)
        state.committed += output.tokens
        state.text += self.target.to_bytes(output.tokens)
        if agreed < len(output.tokens):
            state.retokenise(self.own)
            if not state.is_fork:
                self._learn(state, len(output.tokens))
            return
        state.own_ids += [i for step in state.pending[:agreed] for i in step.ids]
        state.own_bytes = len(state.text)
        state.pending = state.pending[agreed:]

    def _learn(self, state: AssistantState, count: int) -> None:
        """Learn the n-grams of the last `count` committed tokens that are several tokens of the drafter."""
        own, text = self.own.to_bytes(state.own_ids), state.text[: state.own_bytes]
        if not self.needs.learns or state.own_bytes < len(state.text) or own.lstrip(b" ") != text.lstrip(b" "):
            return
        grams = self.grams.get(state.namespace) or NgramCache()
        theirs = [self.target.to_bytes([i]) for i in state.committed]
        for i, j, k in aligned(theirs, [self.own.to_bytes([i]) for i in state.own_ids]):
            if i >= len(theirs) - count:
                grams.learn(state.own_ids[j:k], state.committed[i])
        self.grams.set(state.namespace, grams)

    def _write(self, state: AssistantState) -> DraftStep:
        ids = state.written
        logits = self.logits_behind(state, ids)
        gram = self._gram(state, ids, logits)
        return self._likeliest(logits, gram) if state.sampling.greedy else self._drawn(state, ids, logits, gram)

    def _likeliest(self, logits: Tensor, gram: Gram | None) -> DraftStep:
        """The likeliest step, for greedy answers. Its probability is over all readable tokens, not only shared ones."""
        probs = (logits + self.readable).softmax(-1)
        if gram is not None:
            return DraftStep(gram.ids, float(probs[gram.ids[0]]) * gram.rest, gram.token)
        own = int((logits + self.shared).argmax())
        return DraftStep((own,), float(probs[own]), self.table.to_target[own])

    def _drawn(self, state: AssistantState, ids: Sequence[int], logits: Tensor, gram: Gram | None) -> DraftStep:
        allowed = self.shared
        if gram is not None:
            allowed = allowed.index_fill(0, torch.tensor(gram.ids[0], device=allowed.device), 0)
        q = warp(logits + allowed, state.sampling, [*state.prompt, *ids])
        dist = target_dist(q, self.to_target, self.target.width, gram)
        token = state.draws.token(dist, len(state.committed) + len(state.pending))
        ids = gram.ids if gram is not None and token == gram.token else (self.table.to_drafter[token],)
        return DraftStep(ids, float(dist[token]), token, dist)

    def _gram(self, state: AssistantState, ids: Sequence[int], logits: Tensor) -> Gram | None:
        """The longest known n-gram that the drafter's likeliest tokens spell; nothing is drawn to find it."""
        found: Gram | None = None
        grams = self.grams.get(state.namespace)
        path: list[int] = []
        rest = 1.0
        while grams is not None and len(path) < LONGEST and self.has_room(state, len(ids) + len(path)):
            if path:
                logits = self.logits_behind(state, [*ids, *path])
            probs = (logits + self.readable).softmax(-1)
            path.append(int(probs.argmax()))
            rest *= float(probs[path[-1]]) if len(path) > 1 else 1.0
            token = grams.find(path)
            if token is not None:
                found = Gram(tuple(path), token, rest)
            if not grams.opens(path):
                break
        return found

    def _own_sampling(self, sampling: Sampling) -> Sampling:
        """Sampling settings with the biases on the target's ids moved to the drafter's ids of the same tokens."""
        pairs = [(self.table.to_drafter[i], bias) for i, bias in sampling.logit_bias or () if i < self.target.width]
        return replace(sampling, logit_bias=tuple((i, bias) for i, bias in pairs if i >= 0))
