"""Words of Prophesee's EVT2, EVT2.1 and EVT3, decoded as whole arrays.

All three split the time: TIME_HIGH words carry the upper bits of a counter in µs; the events (EVT2), or TIME_LOW words
(EVT3), the lower. A word of EVT2 is a kind (4 bits), the low time (6), x and y (11 each); of EVT2.1 the same with a
mask of 32 pixels from x on. A word of EVT3 is a kind and 12 bits, which set a part of a state (row, time, first column
of a vector), or are events. Words of neither events nor time (triggers, counters, padding) are passed over.

Both classes keep their state from call to call; the data of a call are whole words. `decode` gives events in the words'
order: times may fall, columns may lie outside the sensor. `skip` only gives their number. `dropped` counts events of
unknown time, row or column (at the beginning), or of another sensor; `undefined` words of kinds that there are not.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

WRAP_US = 1 << 26  # longest gap (67 s) over which a fall of TIME_HIGH is still a wrap
POPULATION = np.unpackbits(np.arange(1 << 16, dtype=np.uint16).view(np.uint8)).reshape(-1, 16).sum(1, dtype=np.uint8)
ROW, OTHER_ROW, SINGLE, BASE, VECTOR, LOW, HIGH = 0, 1, 2, 3, 4, 6, 8  # kinds of EVT3; a vector of 8 pixels is 5
MASK_OF = np.array([0, 0, 0, 0, 0xFFF, 0xFF, *[0] * 10], np.uint16)  # of a kind's words: bits that are pixels
WIDTH_OF = np.array([0, 0, 0, 0, 12, 8, *[0] * 10])  # columns by which a vector moves the next one on
PIXELS_OF = np.arange(1 << 16, dtype=np.uint16) & np.repeat(MASK_OF, 1 << 12)  # [65536] pixels of an EVT3 word, as bits
PIXELS_OF[SINGLE << 12 : BASE << 12] = 1
EVENTS_OF = POPULATION[PIXELS_OF]
NO_ROW, NO_COLUMN = 0xFFFF, -(1 << 40)  # a row, and a vector's column, that are not known
Found = tuple[NDArray[np.int64], NDArray[np.integer], NDArray[np.uint16], NDArray[np.uint8]]  # t in µs, x, y, p


class HighClock:
    """Undoes the wraps of TIME_HIGH, a counter of `bits` bits in units of 2**`shift` µs.

    Words may be missing, repeated or late, so each step is judged by its size. A fall that a gap of up to a quarter of
    the range (EVT3: 4.2 s), and at most `WRAP_US`, explains is a wrap; a rise that a step back by as much explains is a
    late word from before a wrap. Any other step is what it looks like: silence, or a step back.

    `us` is the last value; `stepped`: it once stepped back; `wraps` counts wraps without the words beside them, and
    `gap_us` is the longest gap of these.
    """

    def __init__(self, bits: int, shift: int) -> None:
        self.us: int | None = None
        self.stepped, self.wraps, self.gap_us = False, 0, 0
        self._range, self._shift, self._most = 1 << bits, shift, min(1 << bits - 2, WRAP_US >> shift)

    def __call__(self, raw: NDArray[np.integer]) -> NDArray[np.int64]:
        """Times in µs of the next values [n]."""
        found = raw.astype(np.int64)
        if len(found):
            last = int(found[0]) if self.us is None else self.us >> self._shift
            steps = np.diff(found, prepend=last % self._range)
            wraps, late = steps <= self._most - self._range, steps >= self._range - self._most
            found += self._range * (last // self._range + np.cumsum(wraps) - np.cumsum(late))
            gaps = steps[wraps] + self._range
            self.wraps += int(np.count_nonzero(gaps > 1))
            self.gap_us = max(self.gap_us, int(gaps.max(initial=0)) << self._shift)
            self.stepped |= bool((np.diff(found, prepend=last) < 0).any())
            self.us = int(found[-1]) << self._shift
        return found << self._shift


class Evt2Words:
    """EVT2, words of 32 bits; or EVT2.1, pairs of such a word and a mask of pixels.

    Args:
        pairs: true for EVT2.1.
        legacy: true if the word comes first, as from an IMX636, false if the mask does; `None` = as the first show.
    """

    def __init__(self, *, pairs: bool = False, legacy: bool | None = None) -> None:
        self.clock, self.dropped, self.undefined = HighClock(28, 6), 0, 0
        self.size, self._legacy = 8 if pairs else 4, legacy

    def decode(self, data: memoryview) -> Found:
        words, masks = self._parts(data)
        of_events = words < 2 << 28
        others, at = np.flatnonzero(~of_events), np.flatnonzero(of_events)  # faster than an index of truth values
        events = words[at]
        kinds, start = words[others] >> 28, self.clock.us
        high = kinds == HIGH
        before = (others - np.arange(len(others)))[high]  # number of events in front of each TIME_HIGH
        t = _spread(start or 0, self.clock(words[others[high]] & 0xFFF_FFFF), before, len(events))
        t += events >> 22 & 0x3F
        x, y, p = events >> 11 & 0x7FF, (events & 0x7FF).astype(np.uint16), (events >> 28).astype(np.uint8)
        unknown = 0 if start is not None else int(before[0]) if len(before) else len(events)
        if masks is not None:
            counts = _population(masks := masks[at])
            x, unknown = _columns(x, masks, counts), counts[:unknown].sum()
            t, y, p = np.repeat(t, counts), np.repeat(y, counts), np.repeat(p, counts)
        self.dropped += int(unknown)
        self.undefined += int(np.count_nonzero((kinds < 8) | (kinds == 9) | (kinds - 11 < 3)))
        return t[unknown:], x[unknown:], y[unknown:], p[unknown:]

    def skip(self, data: memoryview) -> int:
        if self.clock.us is None:
            return len(self.decode(data)[0])
        words, masks = self._parts(data)
        self.clock(words[np.flatnonzero(words >> 28 == HIGH)] & 0xFFF_FFFF)
        of_events = words < 2 << 28
        return int(np.count_nonzero(of_events) if masks is None else _population(masks[of_events]).sum())

    def _parts(self, data: memoryview) -> tuple[NDArray[np.uint32], NDArray[np.uint32] | None]:
        """Words, and the masks of pixels of pairs."""
        words = np.frombuffer(data, "<u4")
        if self.size == 4:
            return words, None
        if self._legacy is None:  # bits of a mask now and then look like a kind that there is not
            halves = words[:8192:2] >> 28, words[1:8192:2] >> 28
            first, second = ((np.isin(half, (0, 1, 8, 10, 14, 15)).sum(), (half == HIGH).sum()) for half in halves)
            self._legacy = first > second if first != second else None
        return words[not self._legacy :: 2].copy(), words[bool(self._legacy) :: 2].copy()


class Evt3Words:
    """EVT3: words of 16 bits. An event, or a vector of up to 12, has the row and the time that were set last."""

    size = 2

    def __init__(self) -> None:
        self.clock, self.dropped, self.undefined = HighClock(12, 12), 0, 0
        self._us, self._row, self._column, self._p = 0, NO_ROW, NO_COLUMN, 0  # column and polarity of the next vector

    def decode(self, data: memoryview) -> Found:
        words = np.frombuffer(data, "<u2")
        kinds, counts = (words >> 12).astype(np.uint8), np.take(EVENTS_OF, words)
        until = np.cumsum(counts, dtype=np.int64)  # number of events up to each word
        total = int(until[-1]) if len(until) else 0
        t, unknown = self._times(words, kinds, until, total)
        at = np.flatnonzero(kinds <= OTHER_ROW)
        rows = np.where(kinds[at] == OTHER_ROW, NO_ROW, words[at] & 0x7FF).astype(np.uint16)
        y, self._row = _spread(self._row, rows, until[at], total), int(rows[-1]) if len(rows) else self._row
        x, p = self._pixels(words, kinds, counts)
        self.undefined += int(np.count_nonzero((kinds == 9) | (kinds - 11 < 3)))
        if unknown or y.max(initial=0) == NO_ROW or x.min(initial=0) < 0:
            known = (y != NO_ROW) & (x >= 0) & (np.arange(total) >= unknown)
            self.dropped += total - int(np.count_nonzero(known))
            t, x, y, p = t[known], x[known], y[known], p[known]
        return t, x, y, p

    def _times(self, words: Any, kinds: Any, until: Any, total: int) -> tuple[NDArray[np.int64], int]:
        """Times of the events, and the number of the first of them whose time is unknown."""
        at = np.flatnonzero((kinds == LOW) | (kinds == HIGH))
        high, start, values = kinds[at] == HIGH, self.clock.us, (words[at] & 0xFFF).astype(np.int64)
        bases = self.clock(values[high])
        unknown = 0 if start is not None else int(until[at[high][0]]) if len(bases) else total
        values[high] = 0  # the lower part, until it is set; but a repeated TIME_HIGH changes nothing
        values += np.concatenate([[start or 0], bases])[np.cumsum(high)]
        changed = np.ones(len(at), bool)
        changed[high] = np.diff(bases, prepend=-1 if start is None else start) != 0
        at, values = at[changed], values[changed]
        t, self._us = _spread(self._us, values, until[at], total), int(values[-1]) if len(values) else self._us
        return t, unknown

    def _pixels(self, words: Any, kinds: Any, counts: Any) -> tuple[NDArray[np.integer], NDArray[np.uint8]]:
        """Columns of the events, negative where unknown, and their polarities."""
        of_events = (kinds == SINGLE) | (kinds >> 1 == VECTOR >> 1)
        rows, at = np.flatnonzero(of_events), np.flatnonzero(kinds == BASE)
        events, of = words[rows], kinds[rows]
        x, p, single = events & 0x7FF, (events >> 11 & 1).astype(np.uint8), of == SINGLE
        if len(at) or not single.all():
            before, counts = np.cumsum(of_events)[at], counts[rows]  # number of event words in front of each base
            moved = np.concatenate([[0], np.cumsum(WIDTH_OF[of])])
            bases, signs = (words[at] & 0x7FF) - moved[before], (words[at] >> 11 & 1).astype(np.uint8)
            x = np.where(single, x, _spread(self._column, bases, before, len(events)) + moved[:-1])
            p = np.repeat(np.where(single, p, _spread(self._p, signs, before, len(events))), counts)
            x = _columns(x, np.take(PIXELS_OF, events), counts)
            self._column = min(int(bases[-1] if len(at) else self._column) + int(moved[-1]), 1 << 20)
            self._p = int(signs[-1]) if len(at) else self._p
        return x, p

    def skip(self, data: memoryview) -> int:
        words = np.frombuffer(data, "<u2")
        kinds, before = (words >> 12).astype(np.uint8), self.clock.us
        unbased = (kinds >> 1 == VECTOR >> 1).any() and (self._column < 0 or not (kinds == BASE).any())
        if before is None or self._row == NO_ROW or unbased or (kinds == OTHER_ROW).any():
            return len(self.decode(data)[0])
        # The words that set the state last are decoded; of those in front of them only the clock.
        last = [len(words) - 1 - int((kinds == kind)[::-1].argmax()) for kind in (ROW, BASE, LOW) if kind in kinds]
        begin = min(last, default=0)
        self.clock(words[np.flatnonzero(kinds[:begin] == HIGH)] & 0xFFF)
        self._us = self._us if self.clock.us == before else self.clock.us or 0
        self.decode(data[self.size * begin :])
        return int(np.take(EVENTS_OF, words).sum())


def _spread(first: int, values: NDArray[Any], at: NDArray[np.integer], total: int) -> NDArray[Any]:
    """[total] the value in force: `first`, and from row `at[i]` on `values[i]`."""
    return np.repeat(np.concatenate([np.array([first], values.dtype), values]), np.diff(at, prepend=0, append=total))


def _columns(x: NDArray[np.integer], masks: NDArray[np.unsignedinteger], counts: NDArray[Any]) -> NDArray[np.int64]:
    """Columns of the pixels of vectors: [n] masks of pixels from columns `x` on, with `counts` pixels each."""
    pixels = np.unpackbits(masks.view(np.uint8), bitorder="little").view(bool)
    return np.flatnonzero(pixels) + np.repeat(x - 8 * masks.itemsize * np.arange(len(x)), counts)


def _population(masks: NDArray[np.uint32]) -> NDArray[np.uint8]:
    return POPULATION[masks & 0xFFFF] + POPULATION[masks >> 16]
