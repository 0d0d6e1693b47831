"""Drafts from texts that a request brings: predictions, each of which may be the answer, and hints, which it may quote.

An answer goes along a text, leaves it at an edit, and joins it again behind what was inserted, deleted or replaced, or
elsewhere. Its place is tracked by a hidden Markov model of alignment, a pair HMM with affine gaps (Durbin et al.,
Biological sequence analysis, 1998): the answer follows a text, is within an edit, or is away from all texts. Its
likeliest continuations make a tree with the probability of each node, so that the cost model can choose among them.
"""

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np

from crossdraft.engine.detokenize import TokenText
from crossdraft.engine.drafter import NOTHING, Draft
from crossdraft.engine.request import MOST_TEXT, Request
from crossdraft.engine.tree import ROOT, DraftTree

GAP = -1  # behind a text, and in place of special tokens: nothing is copied from there
BEGINS = 0.9  # probability that an answer begins as one of its predictions does
CLOSES = 0.35  # of an edit, to end at the next token,
LEAVES = 0.1  # and of the answer, not to come back to the text where it left it
OMITS = np.array([0.0, 0.15, 0.1, 0.05])  # of an edit, to leave out 1, 2, … tokens of the text and put none in place
SKIPS = np.array([0.35, 0.4, 0.12, 0.06, 0.04, 0.03])  # of an edit's token, to stand in place of 0, 1, … tokens
JOINS = 0.03  # of an answer away from all texts, to join one, anywhere
RATIO = 100.0  # most that a token counts: how much likelier it is where a text has it than elsewhere
FOLLOWED, LEFT = 20.0, 2.0  # imagined tokens at which an answer followed its text, and at which it left it
DECAY, IMAGINED = 0.98, 4.0  # of the comparison of the likeliest tokens' probabilities with how often they came
PLACES = 8  # most places of the texts that are drafted from
FAINT = 0.04  # least probability of a node


class TextDrafts:
    """Drafts of one answer from texts. Costs some ten microseconds a token and round, and more for long texts.

    `predicted`, `accepted`: the predictions' tokens, and how many tokens of the answer followed them.

    Args:
        encode: the token ids of a text.
        predictions: texts that the answer is expected to be.
        hints: texts that it may quote, or futures of such, which are read once they are done.
        end: id that ends an answer, and stands behind predictions; `None` = none does.
    """

    def __init__(
        self,
        encode: Callable[[str], list[int]],
        predictions: Sequence[str] = (),
        hints: "Sequence[str | Future[str]]" = (),
        end: int | None = None,
    ) -> None:
        self._encode, self._end = encode, end
        self._tokens = np.empty(0, np.int64)
        # Probabilities of each place of the texts: the answer followed it up to here; the next token comes from here.
        self._follows, self._edits, self._next = np.empty(0), np.empty(0), np.empty(0)
        self._away = 1.0  # probability of being away from all texts
        self._steps, self._left = FOLLOWED + LEFT, LEFT
        self._expected = self._came = IMAGINED
        texts = [encode(text) for text in predictions]
        self.predicted, self.accepted = sum(map(len, texts)), 0
        self._add([[*text, *([] if end is None else [end])] for text in texts], BEGINS)
        self._foreseen = len(self._tokens)
        self._add([encode(hint) for hint in hints if isinstance(hint, str)])
        self._late = [hint for hint in hints if isinstance(hint, Future)]

    def commit(self, tokens: Sequence[int]) -> None:
        """Note tokens that joined the answer."""
        for token in tokens if len(self._tokens) else ():
            best = int(self._next.argmax())
            prob, came = float(self._next[best]), bool(self._tokens[best] == token)
            self._expected, self._came = self._expected * DECAY + prob, self._came * DECAY + came
            if prob > 0.5:
                self._steps, self._left = self._steps + 1, self._left + (not came)
            following = np.where(self._tokens[:-1] == token, self._next[:-1] * self._ratios[:-1], 0.0)
            edited, followed = float(self._edits.sum()), float(following.sum())
            away = self._away * (1 - JOINS) + edited * LEAVES
            total = followed + edited * (1 - LEAVES) + away
            self._follows[0], self._follows[1:] = 0.0, following / total
            self._edits *= (1 - LEAVES) / total
            self._away = away / total
            here = 2 * followed > total and int(following.argmax()) < self._foreseen
            self.accepted += here and token != self._end
            self._expect()

    def draft(self, nodes: int) -> Draft:
        """The likeliest `nodes` nodes, likeliest first; none where the answer is away from all texts."""
        self._add_late()
        trust = min(1.0, self._came / self._expected)
        places = np.flatnonzero(self._next * trust >= FAINT)
        places = places[np.argsort(-self._next[places], kind="stable")[:PLACES]]
        if not len(places) or nodes < 1:
            return NOTHING
        stays = 1 - self._left / self._steps
        at: dict[tuple[int, int], int] = {}
        probs: list[float] = []
        for place in places.tolist():
            parent, prob = ROOT, float(self._next[place]) * trust
            for token in self._tokens[place : place + nodes].tolist():
                if token == GAP or prob < FAINT:
                    break
                node = at.setdefault((parent, token), len(probs))
                if node == len(probs):
                    probs.append(0.0)
                probs[node] += prob
                parent, prob = node, prob * stays
        tree = DraftTree(tuple(token for _, token in at), tuple(parent for parent, _ in at))
        best = sorted(range(len(probs)), key=probs.__getitem__, reverse=True)[:nodes]
        return Draft(tree, tuple(probs)).keep(best)

    def _expect(self) -> None:
        """Find where the next token may come from, before it is known."""
        left, size = self._left / self._steps, len(self._tokens)
        edits = self._edits * CLOSES + np.convolve(self._follows * left, OMITS)[:size]
        self._next = self._follows * (1 - left) + edits + self._away * JOINS / size
        edits = self._edits * (1 - CLOSES) + self._follows * (left * (1 - OMITS.sum()))
        self._edits = np.convolve(edits, SKIPS)[:size]

    def _add(self, texts: Sequence[list[int]], begins: float = 0.0) -> None:
        """Add texts; with the probability `begins` the answer begins as one of them does."""
        if not texts:
            return
        follows = [[begins / len(texts)] + [0.0] * len(text) for text in texts]
        self._tokens = np.concatenate([self._tokens, *([*text, GAP] for text in texts)]).astype(np.int64)
        self._follows = np.concatenate([self._follows, *follows])
        self._edits = np.pad(self._edits, (0, len(self._tokens) - len(self._edits)))
        self._away -= begins
        _, kinds, counts = np.unique(self._tokens, return_inverse=True, return_counts=True)
        self._ratios = np.minimum(RATIO, len(self._tokens) / (1 + counts[kinds]))
        self._expect()

    def _add_late(self) -> None:
        done = [hint for hint in self._late if hint.done()]
        if done:
            self._late = [hint for hint in self._late if hint not in done]
            read = [hint.result() for hint in done if not hint.cancelled() and hint.exception() is None]
            self._add([self._encode(text[:MOST_TEXT]) for text in read])


def drafts_from_texts(request: Request, text: TokenText, ends: Collection[int]) -> TextDrafts | None:
    """Drafts from a request's predictions and hints; `None` if it has none, or the target's tokenizer is not here.

    Args:
        request: the request.
        text: the target's side of the tokenizer.
        ends: ids that end its answer.
    """
    tokenizer: Any = text.tokenizer
    if tokenizer is None or not any((*request.predictions, *request.hints)):  # empty ones are none
        return None

    def encode(given: str) -> list[int]:
        ids: list[int] = tokenizer(given, add_special_tokens=False, verbose=False)["input_ids"]
        return [GAP if token in text.special else token for token in ids]

    usual: int | None = tokenizer.eos_token_id
    end = usual if usual in ends else min(ends, default=None)
    return TextDrafts(encode, [*filter(None, request.predictions)], request.hints, end)
