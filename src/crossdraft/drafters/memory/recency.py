"""Recency weights for a stream of answers: the exponent of a power of age, learned from the answers themselves.

Neighbouring scenes of a drive resemble each other more than older ones; where requests come in any order, age does not
matter. A match of age a, counted in answers to the same question and 1 for the newest, weighs a^-s. The exponent s is
chosen from a few by how well it would have predicted the answers so far: each answer's beginning is scored by a mixture
of the beginnings before it (Bayes' rule for experts, each of which predicts one text), weighted by age with that
exponent.
"""

from collections import OrderedDict, deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

EXPONENTS = np.array([0.0, 0.25, 0.5, 1.0, 1.5, 2.0])
UNLEARNED = 1.0  # the exponent before any answer came
KEPT, BEGINNING = 32, 32  # answers to a question that are compared with, and tokens of each
COMPARED = 256  # questions whose answers are compared; the one not asked for longest makes room
WRONG = np.log(0.01)  # log-probability of a token that an earlier answer did not have at that position
DECAY = 0.98  # factor on the learned scores with every answer: a stream may change
NO_TOKEN = -3  # after an answer's end


class Recency:
    """Learns the exponent of one store of answers.

    Adding an answer compares it with at most `KEPT` others, hence KEPT × BEGINNING tokens. The scores are not written
    to files: reading the answers again, in their order, restores them.
    """

    def __init__(self) -> None:
        self._beginnings: OrderedDict[int, deque[NDArray[np.int32]]] = OrderedDict()  # by question, oldest first
        self._scores = np.zeros(len(EXPONENTS))

    @property
    def exponent(self) -> float:
        """The exponent that has predicted the last answers best."""
        if not self._scores.any():
            return UNLEARNED
        return float(EXPONENTS[self._scores.argmax()])

    def add(self, question: int, tokens: Sequence[int]) -> None:
        """Learn from an answer to a question, by its number; only answers to the same one are compared."""
        beginning = np.full(BEGINNING, NO_TOKEN, np.int32)
        beginning[: len(tokens)] = tokens[:BEGINNING]
        before = self._beginnings.setdefault(question, deque(maxlen=KEPT))
        if len(before) > 1:
            ages = np.arange(len(before), 0.0, -1.0)
            wrong = (np.stack(before) != beginning).sum(1)
            weights = ages ** -EXPONENTS[:, None]  # [exponents, answers]
            likelihoods = (weights * np.exp(WRONG * (wrong - wrong.min()))).sum(1) / weights.sum(1)
            self._scores = DECAY * self._scores + np.log(likelihoods)
        before.append(beginning)
        self._beginnings.move_to_end(question)
        if len(self._beginnings) > COMPARED:
            self._beginnings.popitem(last=False)
