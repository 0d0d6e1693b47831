"""Decoder for Prophesee's ECF (event compression format), the codec of chunks in their HDF5 files: filter 0x8ECF.

Written after the published codec, github.com/prophesee-ai/hdf5_ecf (Apache-2.0), whose decoder does not look where a
chunk ends; this one refuses a chunk that is cut off or says more than it holds.

A chunk, little-endian: uint32 `count << 2 | packing`, uint64 time of the first event in µs, then the columns:

1. times, in bytes `step << 4 | run`: `run` events, `step` µs later than the ones before. A run of 15 stands for a
   uint16 that follows; a step of 15 makes the byte four bits of a larger step, lowest first.
2. packing 2: y (11 bits), x (11), p (1) of four events in three uint32, and nothing else.
3. otherwise rows, in uint16 `y << 5 | run`; a run of 31 stands for a uint16 that follows.
4. packing 1: x and p (12 bits) of four events in three uint16. Packing 0: uint16 `x << 5 | mask`, where the mask, from
   its highest bit on, says which of the five columns behind x follow in the same word; then bytes `p << 7 | run`, where
   a run of 127 stands for a uint16 that follows.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import h5py

FILTER = 0x8ECF  # its number in HDF5
MOST_EVENTS = 65_535  # in a chunk: the published codec's limit
MOST_BYTES = 28  # of an event: 16 steps of time and a run of 3 bytes, a row of 4, a column of 2, a polarity of 3
EVENT = np.dtype(
    {"names": ["x", "y", "p", "t"], "formats": ["<u2", "<u2", "<i2", "<i8"], "offsets": [0, 2, 4, 8], "itemsize": 16}
)
_BITS = np.array([mask.bit_count() for mask in range(32)])


def stored_events(table: "h5py.Dataset") -> "Callable[[int, int], NDArray[Any]]":
    """Make a function that reads the records of rows [i, j); it raises ValueError if a chunk of ECF is damaged."""
    settings = table.id.get_create_plist()
    filters = [settings.get_filter(index)[0] for index in range(settings.get_nfilters())]
    if FILTER not in filters:
        return lambda i, j: table[i:j]
    if filters != [FILTER] or table.dtype != EVENT or table.chunks is None:
        raise ValueError("it holds events of ECF in another layout than x, y, p, t of 16 bytes")
    size = table.chunks[0]

    @lru_cache(maxsize=4)  # a search ends among the rows that are read next
    def chunk(begin: int) -> "NDArray[Any]":
        skipped, stored = table.id.read_direct_chunk((begin,))
        events = np.frombuffer(stored, EVENT) if skipped & 1 else decode(stored)
        if len(events) < min(size, len(table) - begin):
            raise ValueError(f"the chunk at event {begin:,} holds too few events")
        return events

    def rows(i: int, j: int) -> "NDArray[Any]":
        begins = range(i // size * size, j, size)
        return np.concatenate([np.empty(0, EVENT), *(chunk(at)[max(i - at, 0) : min(j - at, size)] for at in begins)])

    return rows


def decode(chunk: bytes) -> "NDArray[Any]":
    """Decode a chunk; return its events as records `EVENT` [N]; raise ValueError if it is damaged or cut off."""
    head = int.from_bytes(chunk[:4], "little")
    count, packing = head >> 2, head & 3
    if len(chunk) < 12 or count > MOST_EVENTS:
        raise ValueError(f"a chunk of {len(chunk):,} bytes states {count:,} events; the codec allows {MOST_EVENTS:,}")
    words = np.frombuffer(chunk, np.uint8)[: 12 + MOST_BYTES * (count + 3)]
    events = np.empty(count, EVENT)
    if count:
        used = 12 + _times(words[12:], int.from_bytes(chunk[4:12], "little"), events["t"])
        _pixels(words[used:], packing, events)
    return events


def _times(words: NDArray[np.uint8], first: int, t: NDArray[np.int64]) -> int:
    """Fill the times; return the number of bytes that they take."""
    starts, runs, used = _runs(words, 4, len(t))
    heads = words[starts]
    steps = (heads >> 4).astype(np.uint64)
    parts = np.flatnonzero(steps == 15)  # four bits of a larger step each; neighbours belong to one step
    if len(parts):
        fresh = np.diff(parts, prepend=-2) != 1
        place = parts - parts[fresh][np.cumsum(fresh) - 1]
        if place.max() > 15:
            raise ValueError("a step of time in a chunk has more than 64 bits")
        steps[parts] = (heads[parts] & 15).astype(np.uint64) << (4 * place.astype(np.uint64))
    t[:] = np.repeat(np.cumsum(steps) + np.uint64(first), runs).view(np.int64)
    return used


def _runs(words: NDArray[Any], bits: int, count: int) -> tuple[NDArray[np.intp], NDArray[np.int64], int]:
    """Find the words that begin a run, in their lowest `bits`, until `count` events are full; 4 bits mean times.

    Return their places, their runs' lengths, and the number of words that all of them take.
    """
    size = 2 // words.itemsize  # words of a number that follows
    part = count // 4 + 64  # mostly enough; what is behind them are other columns
    while True:
        heads = words[:part]
        run = heads & (1 << bits) - 1
        escaped = run == (1 << bits) - 1
        if bits == 4:
            larger = heads >> 4 == 15
            escaped &= ~larger
            run[larger] = 0
        begins, lengths = _resolved(heads, escaped, run, size)
        starts = np.flatnonzero(begins)
        sums = np.cumsum(lengths[starts])
        last = int(np.searchsorted(sums, count))
        if last < len(starts) and sums[last] == count:
            starts = starts[: last + 1]
            return starts, lengths[starts], int(starts[-1]) + 1 + size * bool(escaped[starts[-1]])
        if last < len(starts) or part >= len(words):
            raise ValueError("a chunk's runs do not add up to its events")
        part *= 4


def _resolved(
    words: NDArray[Any], escaped: NDArray[np.bool_], run: NDArray[Any], size: int
) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """True for each word that begins a run, up to a number that is cut off, and the run's length."""
    # What follows an escaped word is a number, whatever it looks like; only close neighbours can hide each other.
    found = np.flatnonzero(escaped)
    true = np.ones(len(found), bool)
    for place in np.flatnonzero(np.diff(found, prepend=-1 - size) <= size):
        last = place - 1
        while not true[last]:
            last -= 1
        true[place] = found[place] - found[last] > size
    found = found[true]
    end = int(next(iter(found[found + size >= len(words)]), len(words)))
    found = found[found < end]
    begins = np.ones(end, bool)
    lengths = run[:end].astype(np.int64)
    lengths[found] = 0
    for part in range(size):
        begins[found + 1 + part] = False
        lengths[found] |= words[found + 1 + part].astype(np.int64) << (8 * part)
    return begins, lengths


def _pixels(words: NDArray[np.uint8], packing: int, events: "NDArray[Any]") -> None:
    """Fill x, y and p."""
    count = len(events)
    if packing & 2:
        packed = _unpacked(words, np.dtype("<u4"), count)
        events["y"], events["x"], events["p"] = packed >> 12 & 0x7FF, packed >> 1 & 0x7FF, packed & 1
        return
    rows = words[: len(words) // 2 * 2].view("<u2")
    starts, runs, used = _runs(rows, 5, count)
    events["y"] = np.repeat(rows[starts] >> 5, runs)
    rest = words[2 * used :]
    if packing & 1:
        packed = _unpacked(rest, np.dtype("<u2"), count)
        events["x"], events["p"] = packed >> 1, packed & 1
        return
    used = 2 * _columns(rest[: len(rest) // 2 * 2].view("<u2"), events["x"])
    polarity = rest[used:]
    starts, runs, _ = _runs(polarity, 7, count)
    events["p"] = np.repeat(polarity[starts] >> 7, runs)


def _unpacked(words: NDArray[np.uint8], word: np.dtype[Any], count: int) -> NDArray[Any]:
    """Split numbers of three quarters of a word each, four in three words."""
    whole = 3 * -(-count // 4)
    if len(words) < whole * word.itemsize:
        raise ValueError("a chunk ends within its pixels")
    a, b, c = words[: whole * word.itemsize].view(word).astype(np.uint32).reshape(-1, 3).T
    part = 2 * word.itemsize  # bits of a third of a number
    low = np.uint32((1 << part) - 1)
    second, third = (a & low) | b >> 2 * part << part, (b & (1 << 2 * part) - 1) | c >> 3 * part << 2 * part
    return np.stack([a >> part, second, third, c & (1 << 3 * part) - 1], axis=1).reshape(-1)[:count]


def _columns(words: NDArray[np.uint16], x: NDArray[np.uint16]) -> int:
    """Fill x from words of a column and a mask; return the number of words that they take."""
    used = int(np.searchsorted(np.cumsum(1 + _BITS[words & 31]), len(x))) + 1
    if used > len(words):
        raise ValueError("a chunk ends within its columns")
    shown = words[:used, None] >> np.arange(4, -1, -1) & 1  # the mask's bits [N, 5], highest first
    shown = np.concatenate([np.ones((used, 1), np.uint16), shown], axis=1).astype(bool)
    x[:] = ((words[:used, None] >> 5) + np.arange(6, dtype=np.uint16))[shown][: len(x)]  # padding follows the last
    return used
