"""How fast a stream of answers forgets: the exponent of a power of age, learned from the answers themselves.

A clip resembles the one before it more than an older one, as neighbouring scenes of a drive do, or it does not, where
requests come in any order. A match of age a, 1 being the newest answer, weighs a^-s. Of a few exponents s the one is
taken that would have predicted the answers so far best: each answer's beginning is scored by a mixture of the
beginnings before it (Bayes' rule for experts, each of which predicts one text), weighted by age with that exponent.
"""

from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

EXPONENTS = np.array([0.0, 0.25, 0.5, 1.0, 1.5, 2.0])
UNLEARNED = 1.0  # the exponent before any answer came
KEPT, BEGINNING = 64, 32  # answers that are compared with, and tokens of each
WRONG = np.log(0.01)  # log-probability of a token that an answer before did not have there
DECAY = 0.98  # of what was learned, with every answer: a stream may change
NO_TOKEN = -3  # after an answer's end


class Recency:
    """Learns the exponent of one store of answers. Adding an answer takes some 50 µs, however many there were."""

    def __init__(self) -> None:
        self.answers = 0
        self._beginnings: deque[tuple[int, int, NDArray[np.int32]]] = deque(maxlen=KEPT)  # number, question, tokens
        self._scores = np.zeros(len(EXPONENTS))

    @property
    def exponent(self) -> float:
        """The one that has predicted the last answers best."""
        if not self._scores.any():
            return UNLEARNED
        return float(EXPONENTS[self._scores.argmax()])

    def add(self, question: int, tokens: Sequence[int]) -> None:
        """Learn from an answer to a question, by its number; only answers to the same one are compared."""
        beginning = np.full(BEGINNING, NO_TOKEN, np.int32)
        beginning[: len(tokens)] = tokens[:BEGINNING]
        before = [(number, text) for number, asked, text in self._beginnings if asked == question]
        if len(before) > 1:
            ages = self.answers - np.array([number for number, _ in before])
            wrong = (np.stack([text for _, text in before]) != beginning).sum(1)
            weights = ages.astype(np.float64) ** -EXPONENTS[:, None]  # [exponents, answers]
            likelihoods = (weights * np.exp(WRONG * (wrong - wrong.min()))).sum(1) / weights.sum(1)
            self._scores = DECAY * self._scores + np.log(likelihoods)
        self._beginnings.append((self.answers, question, beginning))
        self.answers += 1
