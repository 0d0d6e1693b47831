"""`crossdraft bench raw`: how many events a second of Prophesee RAW one core decodes, by our readers and by faery's.

The events of a window are repeated for some seconds. Vectors need events of one time, row and polarity: for them times
are cut to 64 µs. faery reads neither EVT2.1 nor a stream in memory: both programs read a file, from the page cache.
"""

import importlib
import importlib.util
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crossdraft.events import Events, concatenate, iter_events
from crossdraft_lab.bench.common import check_repeats
from crossdraft_lab.bench.events import repeated, window_of
from crossdraft_lab.bench.statistics import Quartiles, quartiles

ROWS = 4


@dataclass(frozen=True, slots=True)
class RawRate:
    """Million events a second of one encoding.

    Args:
        name, events, words: the encoding; number of events and of words.
        mev_s, faery_mev_s: by our reader, and by faery; `None` = it is not installed, or does not read it.
    """

    name: str
    events: int
    words: int
    mev_s: Quartiles
    faery_mev_s: Quartiles | None


def run_raw(recording: Path | None, seconds: float, repeats: int, tick: Callable[[str], None]) -> list[RawRate]:
    """Measure all encodings on one core; `tick` is called with the name of each. Errors as `window_of`."""
    check_repeats(repeats, "measurement")
    events, cores = concatenate(list(repeated(window_of(recording), seconds))), os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        return [_measured(name, *encoded, repeats, tick) for name, encoded in encodings(events).items()]
    finally:
        os.sched_setaffinity(0, cores)


def encodings(events: Events) -> dict[str, tuple[NDArray[Any], bool]]:
    """Words of the events by name, and whether faery reads them."""
    t, x, y, p = (getattr(events, name).astype(np.int64) for name in "txyp")
    new = np.diff(t, prepend=-1) != 0
    row = new | (np.diff(y, prepend=-1) != 0)
    single = _with_clock(
        np.stack([6 << 12 | t & 0xFFF, y, 2 << 12 | p << 11 | x], 1), [new, row, new | True], t >> 12, 12
    )
    packed = _with_clock((p << 28 | (t & 63) << 22 | x << 11 | y)[:, None], [new | True], t >> 6, 28)
    order = np.lexsort((x, p, y, t >> 6))
    t, x, y, p = t[order] >> 6 << 6, x[order], y[order], p[order]
    first = np.flatnonzero(np.diff(((t * 2 + p) * 2048 + y) * 64 + (x >> 5), prepend=-1))
    masks = np.bitwise_or.reduceat(1 << (x & 31), first)
    t, x, y, p = t[first], x[first] >> 5 << 5, y[first], p[first]
    new, every = np.diff(t, prepend=-1) != 0, np.ones(len(t), bool)
    row = new | (np.diff(y, prepend=-1) != 0)
    many = masks & masks - 1 != 0  # one pixel is sent as such, more as a base and 12, 12 and 8 pixels
    base = p << 11 | np.where(many, 3 << 12 | x, 2 << 12 | x + np.log2(masks).astype(int))
    parts = [
        6 << 12 | t & 0xFFF,
        y,
        base,
        4 << 12 | masks & 0xFFF,
        4 << 12 | masks >> 12 & 0xFFF,
        5 << 12 | masks >> 24,
    ]
    pairs = _with_clock((p << 60 | (t & 63) << 54 | x << 43 | y << 32 | masks)[:, None], [every], t >> 6, 60)
    return {
        "EVT2": (packed.astype("<u4"), True),
        "EVT2.1": (pairs.astype("<u8"), False),
        "EVT3": (single.astype("<u2"), True),
        "EVT3, vectors": (
            _with_clock(np.stack(parts, 1), [new, row, every, many, many, many], t >> 12, 12).astype("<u2"),
            True,
        ),
    }


def _with_clock(words: NDArray[Any], wanted: Sequence[NDArray[np.bool_]], high: NDArray[Any], bit: int) -> NDArray[Any]:
    """Flatten the wanted words [n, m], with every TIME_HIGH, of a kind at `bit`, in front of the first it is of."""
    chosen = np.stack(wanted, 1)
    starts = np.concatenate([[0], np.cumsum(chosen.sum(1))])
    every = np.arange(high[0], high[-1] + 1)
    value = (
        every & 0xFFF if bit == 12 else (every & 0xFFF_FFFF) << max(0, bit - 28)
    ) | -8 << bit  # 8, but within int64
    return np.insert(words[chosen], starts[np.searchsorted(high, every)], value)


def _measured(name: str, words: NDArray[Any], by_faery: bool, repeats: int, tick: Callable[[str], None]) -> RawRate:
    version = name[3:].split(",", maxsplit=1)[0]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.raw"
        path.write_bytes(f"% evt {version}\n% geometry 2048x2048\n% end\n".encode() + words.tobytes())
        count, ours = _rate(lambda: sum(map(len, iter_events(path))), repeats)
        other = by_faery and importlib.util.find_spec("faery") is not None
        faery: Any = importlib.import_module("faery") if other else None
        theirs = _rate(lambda: sum(map(len, faery.events_stream_from_file(path))), repeats)[1] if other else None
    tick(name)
    return RawRate(name, count, len(words), ours, theirs)


def _rate(work: Callable[[], int], repeats: int) -> tuple[int, Quartiles]:
    count, rates = work(), []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        rates.append(count / (time.perf_counter() - start) / 1e6)
    return count, quartiles(rates)


def raw_json(rates: Sequence[RawRate]) -> dict[str, object]:
    """Plain values."""
    return {"encodings": [asdict(rate) for rate in rates]}


def raw_lines(rates: Sequence[RawRate]) -> list[str]:
    """The result for people."""
    return [
        f"{one.name}: {one.mev_s.median:.0f} Mev/s ({one.mev_s.q1:.0f} to {one.mev_s.q3:.0f}), faery "
        f"{'-' if one.faery_mev_s is None else format(one.faery_mev_s.median, '.0f')}; {one.events:,} events, "
        f"{one.words / one.events:.2f} words each"
        for one in rates
    ]
