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
from numpy.typing import NDArray

from crossdraft.engine.drafter import Draft
from crossdraft.engine.request import MOST_TEXT, Request
from crossdraft.engine.target import Target
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
        self._tokens = np.array([GAP])
        # Probabilities of each place of the texts: the answer followed one up to it, or an edit ends there or later.
        self._follows, self._edits = np.zeros(1), np.zeros(1)
        self._ratios = np.ones(1)
        self._away = 1.0  # probability of being away from all texts
        self._steps, self._left = FOLLOWED + LEFT, LEFT
        texts = [encode(text) for text in predictions]
        self.predicted, self.accepted = sum(map(len, texts)), 0
        self._add([[*text, *([] if end is None else [end])] for text in texts], BEGINS)
        self._foreseen = len(self._tokens)
        self._add([encode(hint) for hint in hints if isinstance(hint, str)])
        self._late = [hint for hint in hints if isinstance(hint, Future)]

    def commit(self, tokens: Sequence[int]) -> None:
        """Note tokens that joined the answer."""
        for token in tokens:
            expected, edits = self._expected()
            likeliest = int(expected.argmax())
            if expected[likeliest] > 0.5:
                self._steps, self._left = self._steps + 1, self._left + bool(self._tokens[likeliest] != token)
            came = np.where(self._tokens == token, expected * self._ratios, 0.0)
            followed, edited = float(came.sum()), float(edits.sum())
            away = self._away * (1 - JOINS) + edited * LEAVES
            total = followed + edited * (1 - LEAVES) + away
            self._follows = np.roll(came, 1) / total  # the last token is a gap
            self._edits, self._away = edits * ((1 - LEAVES) / total), away / total
            foreseen = 2 * followed > total and int(came.argmax()) < self._foreseen
            self.accepted += foreseen and token != self._end

    def draft(self, nodes: int) -> Draft:
        """The likeliest `nodes` nodes, likeliest first; none where the answer is away from all texts."""
        if done := [hint for hint in self._late if hint.done()]:
            self._late = [hint for hint in self._late if hint not in done]
            self._add(
                [self._encode(one.result()[:MOST_TEXT]) for one in done if not (one.cancelled() or one.exception())]
            )
        expected, _ = self._expected()
        at: dict[tuple[int, int], int] = {}
        probs: list[float] = []
        for place in np.flatnonzero(expected >= FAINT).tolist():
            parent, prob = ROOT, float(expected[place])
            for token in self._tokens[place : place + nodes].tolist():
                if token == GAP or prob < FAINT:
                    break
                node = at.setdefault((parent, token), len(probs))
                if node == len(probs):
                    probs.append(0.0)
                probs[node] += prob
                parent, prob = node, prob * (1 - self._left / self._steps)
        tree = DraftTree(tuple(token for _, token in at), tuple(parent for parent, _ in at))
        best = sorted(range(len(probs)), key=probs.__getitem__, reverse=True)[:nodes]
        return Draft(tree, tuple(probs)).keep(best)

    def _expected(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """[N] probability that the next token comes from each place; and of edits' ends, if it is part of an edit."""
        left, size = self._left / self._steps, len(self._tokens)
        begun = self._follows * left
        ended = self._edits * CLOSES + np.convolve(begun, OMITS)[:size]
        edits = np.convolve(self._edits * (1 - CLOSES) + begun * (1 - OMITS.sum()), SKIPS)[:size]
        return self._follows * (1 - left) + ended + self._away * JOINS / size, edits

    def _add(self, texts: Sequence[list[int]], begins: float = 0.0) -> None:
        """Add texts; with the probability `begins` the answer begins as one of them does."""
        if not texts:
            return
        follows = [[begins / len(texts)] + [0.0] * len(text) for text in texts]
        self._follows = np.concatenate([self._follows, *follows])
        self._tokens = np.concatenate([self._tokens, *([*text, GAP] for text in texts)])
        self._edits = np.pad(self._edits, (0, len(self._tokens) - len(self._edits)))
        self._away -= begins
        _, kinds, counts = np.unique(self._tokens, return_inverse=True, return_counts=True)
        self._ratios = np.minimum(RATIO, len(self._tokens) / (1 + counts[kinds]))


def drafts_from_texts(request: Request, target: Target, ends: Collection[int]) -> TextDrafts | None:
    """Drafts from a request's predictions and hints; `None` if it has none, or the target's tokenizer is not here.

    Args:
        request: the request.
        target: the target, which knows its tokenizer, and the ids that are no text.
        ends: ids that end its answer.
    """
    tokenizer: Any = target.text.tokenizer
    if tokenizer is None or not any((*request.predictions, *request.hints)):  # empty ones are none
        return None

    def encode(given: str) -> list[int]:
        ids: list[int] = tokenizer(given, add_special_tokens=False, verbose=False)["input_ids"]
        silent = target.text.special.keys() | target.reserved
        return [GAP if token in silent or token >= target.vocab_size else token for token in ids]

    usual: int | None = tokenizer.eos_token_id
    end = usual if usual in ends else min(ends, default=None)
    return TextDrafts(encode, [*filter(None, request.predictions)], request.hints, end)
