"""A datastore of answers with an n-gram index (as in REST: He et al. 2023): one ring of tokens, and hash chains.

New answers overwrite the oldest. A chain links a position to the one before it at which the same n-gram ended, newest
first, and there is one for every scope: within the same clip, the same question, anywhere. Chains start from a hash
table. Two n-grams that share a hash share a chain, which is harmless: whoever walks a chain compares what it finds.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from crossdraft.drafters.memory.recency import Recency
from crossdraft.errors import CrossdraftError

START = -1  # stands in front of every answer
GRAMS = (1, 2)  # lengths of the n-grams that are indexed
QUESTIONS = 1 << 14  # questions whose answers are counted
SMALLEST, LARGEST = 1 << 8, 1 << 28
_PRIMES = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9)  # large, odd, their bits well mixed
_WORD = (1 << 64) - 1


@dataclass(frozen=True)
class Scope:
    """The clip and the question of an answer, as numbers."""

    clip: int
    question: int

    @property
    def keys(self) -> tuple[int, int, int]:
        """Keys of the chains: the same clip, the same question, anywhere."""
        return self.clip, self.question, 0


class Datastore:
    """A ring of the newest answers, `capacity` tokens; every answer takes one token more than its length.

    Raises:
        CrossdraftError: the capacity is not valid.
    """

    def __init__(self, capacity: int = 1 << 20) -> None:
        if not SMALLEST <= capacity <= LARGEST:
            raise CrossdraftError(f"A memory holds {SMALLEST} to {LARGEST} tokens, not {capacity}.")
        self.capacity = capacity
        self.tokens = np.full(capacity, START, np.int32)  # position p lies at p % capacity
        self.answer = np.zeros(capacity, np.int32)  # the number of the answer that a position belongs to
        self.question = np.zeros(capacity, np.int64)  # number of that answer's question
        self.nth = np.zeros(capacity, np.int32)  # number of earlier answers to that question
        self.recency = Recency()
        self._asked: OrderedDict[int, int] = OrderedDict()  # answers to each question
        self.written = 0  # positions written so far
        self.answers = 0
        self._buckets = 1 << (capacity - 1).bit_length()
        chains = len(Scope(0, 0).keys) * len(GRAMS)
        # Plain memory views: reading one number from them is thrice as fast as from an array.
        self._heads = [np.full(self._buckets, -1, np.int64).data for _ in range(chains)]
        self._before = [np.full(capacity, -1, np.int64).data for _ in range(chains)]

    def __len__(self) -> int:
        """Tokens held."""
        return min(self.written, self.capacity)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        views = (*self._heads, *self._before)
        arrays = (self.tokens, self.answer, self.question, self.nth)
        return sum(array.nbytes for array in arrays) + sum(view.nbytes for view in views)

    def add(self, scope: Scope, tokens: Sequence[int]) -> None:
        """Store an answer; if it is longer than the ring, only its end."""
        row = [START, *tokens][-(self.capacity - 1) :]
        ring = np.arange(self.written, self.written + len(row)) % self.capacity
        self.tokens[ring] = row
        self.answer[ring], self.question[ring] = self.answers, scope.question
        self.nth[ring] = asked = self._asked.pop(scope.question, 0)
        self._asked[scope.question] = asked + 1
        if len(self._asked) > QUESTIONS:
            self._asked.popitem(last=False)
        self.recency.add(scope.question, tokens)
        for chain, (gram, key) in enumerate((gram, key) for key in scope.keys for gram in GRAMS):
            heads, before = self._heads[chain], self._before[chain]
            for at in range(gram - 1, len(row)):
                bucket = self._bucket(key, row[at - gram + 1 : at + 1])
                before[(self.written + at) % self.capacity] = heads[bucket]
                heads[bucket] = self.written + at
        self.written += len(row)
        self.answers += 1
        self.tokens[self.written % self.capacity] = START  # ends a continuation that is read across it

    def ages(self, positions: NDArray[np.int64], question: int) -> NDArray[np.int64]:
        """[N] ages of the answers before positions [N]: counted in answers to `question`, else in all; 1 = newest."""
        ring = (positions - 1) % self.capacity
        own = self._asked.get(question, 0) - self.nth[ring]
        every = self.answers - self.answer[ring]
        found: NDArray[np.int64] = np.where(self.question[ring] == question, own, every).astype(np.int64)
        return np.maximum(found, 1)

    def ends(self, scope: Scope, gram: Sequence[int], most: int) -> list[list[int]]:
        """Positions where an n-gram ended, in the same clip, the same question, anywhere: the `most` newest of each.

        Some may belong to another n-gram that shares the chain.
        """
        chains = range(GRAMS.index(len(gram)), len(self._heads), len(GRAMS))
        return [self._walk(chain, self._bucket(key, gram), most) for chain, key in zip(chains, scope.keys, strict=True)]

    def around(self, positions: NDArray[np.int64], before: int, after: int) -> NDArray[np.int32]:
        """[N, before + after] tokens: `before` of them in front of each position, `after` from the position on."""
        offsets = np.arange(-before, after)
        # Positions are reduced first: `wrap` is quick for indexes that leave the ring by a few only.
        return self.tokens.take((positions % self.capacity)[:, None] + offsets, mode="wrap")

    def _walk(self, chain: int, bucket: int, most: int) -> list[int]:
        position, before = self._heads[chain][bucket], self._before[chain]
        oldest, found = max(0, self.written - self.capacity + 1), []
        while position >= oldest and len(found) < most:
            found.append(position)
            position = before[position % self.capacity]
        return found

    def _bucket(self, key: int, gram: Sequence[int]) -> int:
        value = key & _WORD
        for token, prime in zip(gram, _PRIMES, strict=False):
            value = ((value ^ (token + 2)) * prime) & _WORD
            value ^= value >> 29
        return (value * _PRIMES[0] & _WORD) >> (64 - self._buckets.bit_length() + 1)
