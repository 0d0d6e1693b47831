"""Drafting across vocabularies by token: what both vocabularies have is drafted under the target's id.

Token-level intersection (TLI; Timor et al. 2025): the drafter's distribution is cut down to the shared tokens *before*
its token is drawn, and then read over the target's ids. That is an honest law of the token, so acceptance is exact.

What the target says in one token and the drafter in several is learned from committed text (OmniDraft, Ramakrishnan et
al. 2025): an n-gram of the drafter's that stands for one token of the target's is drafted as that token, with the
product of its probabilities. To keep the law exact, one n-gram at most has a chance at each place, and which one is
settled before anything is drawn: the one the drafter's likeliest tokens spell. Its probability is taken from that of
its first token, which keeps the rest.
"""

import math
import operator
from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from crossdraft.drafters.cross_vocab.assistant import AssistantModel, AssistantState, Step, common_prefix
from crossdraft.drafters.cross_vocab.vocabulary import TokenTable, VocabularyMap
from crossdraft.engine.drafter import Budget, Draft, VerifyOutput
from crossdraft.engine.request import Request
from crossdraft.engine.sampling import Sampling, sample_one, warp
from crossdraft.engine.tree import DraftTree

LONGEST = 6  # drafter tokens of an n-gram


class NgramCache:
    """Several drafter tokens -> one target token, the least recently used forgotten beyond `limit`."""

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
        """The target's token for exactly these."""
        gram = tuple(ids)
        if gram in self._tokens:
            self._tokens.move_to_end(gram)
        return self._tokens.get(gram)

    def opens(self, ids: Sequence[int]) -> bool:
        """True if a longer n-gram begins with these."""
        return tuple(ids) in self._openings


def aligned(left: Sequence[bytes], right: Sequence[bytes]) -> Iterator[tuple[int, int, int]]:
    """`(i, j, k)` where `left[i]` and `right[j:k]` stand at the same place, counted from the end of both texts.

    >>> list(aligned([b" turning", b" left"], [b" turn", b"ing", b" le", b"ft"]))
    [(0, 0, 2), (1, 2, 4)]
    >>> list(aligned([b" tur", b"ning"], [b" turn", b"ing"]))
    []
    """
    edges = {place: j for j, place in enumerate(_edges(right))}
    places = _edges(left)
    for i, (start, end) in enumerate(pairwise(places)):
        if start in edges and end in edges and start < end:
            yield i, edges[start], edges[end]


def _edges(texts: Sequence[bytes]) -> list[int]:
    total = sum(map(len, texts))
    return [place - total for place in accumulate(map(len, texts), initial=0)]


@dataclass(frozen=True)
class Gram:
    """An n-gram that may be drafted as one token.

    Args:
        ids: the drafter's tokens.
        token: the target's.
        rest: probability of all of them but the first, given the first.
    """

    ids: tuple[int, ...]
    token: int
    rest: float


def token_law(q: Tensor, twins: Tensor, width: int, gram: Gram | None = None) -> Tensor:
    """[width] the law of the next draft over the target's ids.

    Args:
        q: [Vd] the drafter's distribution; positive at shared tokens and, if there is an n-gram, at its first token.
        twins: [Vd] the target's id of each drafter token, -1 = none.
        width: rows of the target's head.
        gram: moves the probability q(first) · rest from its first token to its own. What is left of a first token
            that the target does not have is nobody's, and the law is renormalised.
    """
    shared = twins >= 0
    law = q.new_zeros(width)
    law[twins[shared]] = q[shared]
    if gram is not None:
        first = gram.ids[0]
        moved = q[first] * gram.rest
        if twins[first] >= 0:
            law[twins[first]] = (law[twins[first]] - moved).clamp_min(0)
        law[gram.token] += moved
    return law / law.sum()


class TokenIntersection:
    """TLI as a way of drafting; with an n-gram cache, OmniDraft's.

    Args:
        pen: the drafter's model.
        own, target: the two tokenizers.
        table: which ids are twins.
        grams: `None` = the shared tokens alone.
    """

    def __init__(
        self,
        pen: AssistantModel,
        own: TokenTable,
        target: TokenTable,
        table: VocabularyMap,
        grams: NgramCache | None = None,
    ) -> None:
        self.pen = pen
        self.own = own
        self.target = target
        self.table = table
        self.grams = grams
        self.twins = torch.tensor(table.to_target, device=pen.model.device)
        self.readable = pen.mask(i for i, text in enumerate(own.spelling) if text is not None or i in own.ends)
        self.shared = pen.mask(i for i, twin in enumerate(table.to_target) if twin >= 0)

    def open(self, request: Request) -> AssistantState:
        """Read a request."""
        page = self.pen.open(request)
        page.sampling = self._own_sampling(request.sampling)
        return page

    def propose(self, page: AssistantState, budget: Budget) -> Draft:
        """Write token by token, each drawn from the law that is reported with it."""
        if page.base_bytes < len(page.said):  # inside a character
            return Draft(DraftTree.empty())
        reach = math.prod(step.confidence for step in page.tail[: budget.nodes])
        while len(page.tail) < budget.nodes and reach >= budget.min_confidence and not budget.stopped:
            ended = bool(page.tail) and page.tail[-1].token == self.target.end
            if ended or not self.pen.room(page, len(page.ids)):
                break
            step = self._write(page)
            page.tail.append(step)
            reach *= step.confidence
            if budget.on_token is not None:
                budget.on_token(step.token)
        steps = page.tail[: budget.nodes]
        laws = [step.law for step in steps if step.law is not None]
        tree = DraftTree.chain([step.token for step in steps], torch.stack(laws) if laws else None)
        paths = accumulate((step.confidence for step in steps), operator.mul)
        return Draft(tree, tuple(paths) if page.sampling.greedy else ())

    def commit(self, page: AssistantState, output: VerifyOutput) -> None:
        """Keep what was written as far as the target's tokens agree with it; else say the text anew, and learn."""
        agreed = common_prefix([step.token for step in page.tail], output.tokens)
        page.committed += output.tokens
        page.said += self.target.spell(output.tokens)
        if agreed < len(output.tokens):
            page.restate(self.own)
            if not page.on_trial:
                self._learn(page, len(output.tokens))
            return
        page.base += [i for step in page.tail[:agreed] for i in step.ids]
        page.base_bytes = len(page.said)
        page.tail = page.tail[agreed:]

    def _learn(self, page: AssistantState, count: int) -> None:
        """Note which of the last `count` committed tokens the drafter says in several."""
        own, said = self.own.spell(page.base), page.said[: page.base_bytes]
        if self.grams is None or page.base_bytes < len(page.said) or own.lstrip(b" ") != said.lstrip(b" "):
            return
        theirs = [self.target.spell([i]) for i in page.committed]
        for i, j, k in aligned(theirs, [self.own.spell([i]) for i in page.base]):
            if i >= len(theirs) - count:
                self.grams.learn(page.base[j:k], page.committed[i])

    def _write(self, page: AssistantState) -> Step:
        ids = page.ids
        logits = self.pen.behind(page, ids)
        gram = self._gram(page, ids, logits)
        return self._likeliest(logits, gram) if page.sampling.greedy else self._drawn(page, ids, logits, gram)

    def _likeliest(self, logits: Tensor, gram: Gram | None) -> Step:
        """For greedy answers. Confidence counts what cannot be said in the target's tokens, too."""
        probs = (logits + self.readable).softmax(-1)
        if gram is not None:
            return Step(gram.ids, float(probs[gram.ids[0]]) * gram.rest, gram.token)
        own = int((logits + self.shared).argmax())
        return Step((own,), float(probs[own]), self.table.to_target[own])

    def _drawn(self, page: AssistantState, ids: Sequence[int], logits: Tensor, gram: Gram | None) -> Step:
        allowed = self.shared
        if gram is not None:
            allowed = allowed.index_fill(0, torch.tensor(gram.ids[0], device=allowed.device), 0)
        q = warp(logits + allowed, page.sampling, [*page.prompt, *ids])
        law = token_law(q, self.twins, self.target.width, gram)
        token = sample_one(law, page.generator)
        if gram is not None and token == gram.token:
            return Step(gram.ids, float(law[token]), token, law)
        return Step((self.table.to_drafter[token],), float(law[token]), token, law)

    def _gram(self, page: AssistantState, ids: Sequence[int], logits: Tensor) -> Gram | None:
        """The longest known n-gram that the drafter's likeliest tokens spell; nothing is drawn to find it."""
        found: Gram | None = None
        path: list[int] = []
        rest = 1.0
        while self.grams is not None and len(path) < LONGEST and self.pen.room(page, len(ids) + len(path)):
            if path:
                logits = self.pen.behind(page, [*ids, *path])
            probs = (logits + self.readable).softmax(-1)
            path.append(int(probs.argmax()))
            rest *= float(probs[path[-1]]) if len(path) > 1 else 1.0
            token = self.grams.find(path)
            if token is not None:
                found = Gram(tuple(path), token, rest)
            if not self.grams.opens(path):
                break
        return found

    def _own_sampling(self, sampling: Sampling) -> Sampling:
        """Biases are meant for the target's ids; here they follow the tokens to the drafter's."""
        pairs = [(self.table.to_drafter[i], bias) for i, bias in sampling.logit_bias or () if i < self.target.width]
        return replace(sampling, logit_bias=tuple((i, bias) for i, bias in pairs if i >= 0))
