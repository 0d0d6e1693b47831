"""Slow reference decoder of RAW words, one at a time, and random streams of words.

It follows the rules that `events.evt` documents, and shares none of its code.
"""

import random
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

DISORDER_US = 10_000
Row = tuple[int, int, int, int]  # t, x, y, p


@dataclass
class Reference:
    """Decodes words of "2", "2.1" or "3"; `events` are in the words' order, `dropped` counts those left out."""

    version: str
    events: list[Row] = field(default_factory=list)
    dropped: int = 0
    high: int | None = None  # with its wraps
    low: int = 0
    row: int | None = None
    column: int | None = None
    sign: int = 0
    wraps: int = 0

    def read(self, words: Iterable[int]) -> list[Row]:
        for word in words:
            (self._evt3 if self.version == "3" else self._evt2)(word)
        return self.events

    def _clock(self, raw: int, bits: int, shift: int) -> None:
        turn, gap = 1 << bits, min(1 << bits >> 2, (1 << 26) >> shift)
        if self.high is None:
            self.high, self.low = raw, 0
            return
        step = raw - self.high % turn
        if step <= gap - turn:
            step += turn
            self.wraps += step > 1
        elif step >= turn - gap:
            step -= turn
        if step:
            self.high, self.low = self.high + step, 0

    def _add(self, t: int | None, x: int | None, y: int | None, p: int) -> None:
        if t is None or x is None or y is None:
            self.dropped += 1
        else:
            self.events.append((t, x, y, p))

    def _evt2(self, word: int) -> None:
        mask = 1
        if self.version == "2.1":
            word, mask = word >> 32, word & 0xFFFFFFFF
        kind = word >> 28
        if kind == 8:
            self._clock(word & 0xFFFFFFF, 28, 6)
        elif kind < 2:
            t = None if self.high is None else self.high * 64 + (word >> 22 & 63)
            for bit in range(32):
                if mask >> bit & 1:
                    self._add(t, (word >> 11 & 2047) + bit, word & 2047, kind)

    def _evt3(self, word: int) -> None:  # noqa: C901 - a case for each kind
        kind, content = word >> 12, word & 0xFFF
        t = None if self.high is None else self.high * 4096 + self.low
        match kind:
            case 0:
                self.row = content & 2047
            case 1:
                self.row = None
            case 2:
                self._add(t, content & 2047, self.row, content >> 11)
            case 3:
                self.column, self.sign = content & 2047, content >> 11
            case 4 | 5:
                width = 12 if kind == 4 else 8
                for bit in range(width):
                    if content >> bit & 1:
                        self._add(t, None if self.column is None else self.column + bit, self.row, self.sign)
                if self.column is not None:
                    self.column += width
            case 6:
                self.low = content
            case 8:
                self._clock(content, 12, 12)


def in_order(events: list[Row], width: int, height: int) -> tuple[list[Row], int, str]:
    """The events up to the first fault, sorted; how many were late; and the fault: "", "outside" or "order"."""
    latest, late, found = None, 0, []
    for t, x, y, p in events:
        fault = "outside" if x >= width or y >= height else ""
        if not fault and latest is not None and t < latest:
            fault = "order" if latest - t > DISORDER_US else ""
            late += not fault
        if fault:
            return sorted(found, key=lambda one: one[0]), late, fault
        latest = t if latest is None else max(latest, t)
        found.append((t, x, y, p))
    return sorted(found, key=lambda one: one[0]), late, ""


def swapped(words: list[int]) -> bytes:
    """Bytes of EVT2.1 words in the IMX636's order of halves."""
    return np.array(words, "<u8").view("<u4").reshape(-1, 2)[:, ::-1].tobytes()


def random_words(version: str, chance: random.Random, *, steady: bool = False) -> list[int]:
    """Random words for 1280x720: wrapped, with words lost, late, damaged and of other kinds; `steady` = none late."""
    return (_evt3 if version == "3" else _evt2)(chance, version == "2.1", steady)


def _step(chance: random.Random, turn: int, steady: bool) -> int:
    """What a TIME_HIGH adds to the last."""
    if steady:
        return max(1, turn >> 14) * chance.choice([0, 1, 1, 1, 2, 500 if chance.random() < 0.05 else 1])
    kind = chance.random()
    return 1 if kind < 0.6 else 0 if kind < 0.8 else chance.randrange(-2, 3) if kind < 0.97 else chance.randrange(turn)


def _evt2(chance: random.Random, vectors: bool, steady: bool) -> list[int]:
    words, turn = [], 1 << 28
    high = chance.choice([turn - 3, chance.randrange(turn)])
    for _ in range(chance.randrange(50, 600)):
        kind = chance.random()
        word = (
            chance.randrange(2) << 28
            | chance.randrange(64) << 22
            | chance.randrange(1248) << 11
            | chance.randrange(720)
        )
        if kind < 0.3:
            high = (high + _step(chance, turn >> 9, steady)) % turn
            word = 8 << 28 | high
        elif kind > 0.98 and not steady:
            word = chance.choice([chance.randrange(1 << 32), chance.choice([3, 9, 10, 12, 14, 15]) << 28])
        mask = chance.choice([chance.randrange(1 << 32), 1 << chance.randrange(32), 0])
        words.append(word << 32 | mask if vectors else word)
    return words


def _evt3(chance: random.Random, vectors: bool, steady: bool) -> list[int]:
    words, high, low = [], chance.choice([4093, chance.randrange(4096)]), 0
    vectors = vectors or chance.random() < 0.7
    for _ in range(chance.randrange(50, 1500 if steady else 400)):
        kind = chance.random()
        if kind < 0.1:
            high, low = (high + _step(chance, 4096, steady)) % 4096, 0
            words.append(8 << 12 | high)
        elif kind < 0.3:
            low = min(4095, low + chance.randrange(300)) if steady or chance.random() < 0.9 else chance.randrange(4096)
            words.append(6 << 12 | low)
        elif kind < 0.45:
            words.append(chance.randrange(720))
        elif kind < 0.7 or not vectors:
            words.append(2 << 12 | chance.randrange(2) << 11 | chance.randrange(1280))
        elif kind < 0.8:
            words.append(3 << 12 | chance.randrange(2) << 11 | chance.randrange(600))
        elif kind < 0.98 or steady:
            words.append(chance.choice([4 << 12 | chance.randrange(4096), 5 << 12 | chance.randrange(256)]))
        else:
            words.append(chance.choice([chance.randrange(1 << 16), chance.choice([1, 7, 9, 10, 14, 15]) << 12 | 5]))
    return words
