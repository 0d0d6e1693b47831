"""Event recordings in memory.

An event camera has no frames: each pixel reports, on its own, the moment its brightness rose (p = 1) or
fell (p = 0) by a set step. A recording is therefore four parallel columns and the size of the sensor.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import index
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from crossdraft.checks import described, whole
from crossdraft.errors import CrossdraftError
from crossdraft.events.clock import EXPONENTS, SPELLED

RESTART_US = 1_000_000  # a longer step back is more than packets in disorder
WRAP_EDGE_US = 60_000_000  # how far from the ends of its range a camera's 32-bit clock may be before and after a wrap
LAST_US = 1 << 62  # beyond any clock (146 thousand years); the sum of two such times fits in int64
Sensor = tuple[int, int]  # width, height
Columns = tuple[ArrayLike, ArrayLike, ArrayLike, ArrayLike]  # x, y, t, p as found, unchecked


@dataclass(frozen=True, slots=True, eq=False)
class Events:
    """N events, sorted by time.

    Use `Events.checked` for data of unknown origin. The plain constructor only compares dtypes and lengths,
    so that it is cheap for inner loops, which guarantee the rest.

    Attributes:
        x: column, uint16 [N], 0 <= x < width.
        y: row, uint16 [N], 0 <= y < height.
        t: time in µs, int64 [N], never decreasing. Absolute if the source's times are.
        p: polarity, uint8 [N]: 1 brighter (ON), 0 darker (OFF).
        width: sensor columns.
        height: sensor rows.
        notes: what the reader repaired or left out, a sentence each, without the recording's path.
    """

    x: NDArray[np.uint16]
    y: NDArray[np.uint16]
    t: NDArray[np.int64]
    p: NDArray[np.uint8]
    width: int
    height: int
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        wanted = {"x": np.uint16, "y": np.uint16, "t": np.int64, "p": np.uint8}
        for name, dtype in wanted.items():
            column: Any = getattr(self, name)
            if getattr(column, "dtype", None) != dtype or column.shape != (len(self.t),):
                raise CrossdraftError(
                    f"Event column {name} must be {np.dtype(dtype).name} of length {len(self.t)}, "
                    f"not {described(column)}; build events with Events.checked."
                )

    @staticmethod
    def checked(
        x: ArrayLike, y: ArrayLike, t: ArrayLike, p: ArrayLike, width: int, height: int, source: object = "events"
    ) -> "Events":
        """Normalise and validate columns of any integer or float dtype.

        Polarity may be bool, 0/1 or -1/+1. Time must be whole or fractional µs and never decrease.

        Args:
            source: name of the data in messages, for instance its path.

        Raises:
            CrossdraftError: columns of different lengths, events outside the sensor, out of order, with a
                time that is not finite or reaches 2**62 µs, or with another polarity.
        """
        xs, ys, ts, ps = (_column(value, name, source) for name, value in zip("xytp", (x, y, t, p), strict=True))
        if any(column.shape != ts.shape or column.ndim != 1 for column in (xs, ys, ts, ps)):
            shapes = ", ".join(str(column.shape) for column in (xs, ys, ts, ps))
            raise CrossdraftError(f"{source}: the columns x, y, t, p differ in length ({shapes}); the file is damaged.")
        check_numbers({"x": xs.dtype, "y": ys.dtype, "t": ts.dtype, "p": ps.dtype}, source)
        width, height = checked_sensor((width, height), source)
        if not (0 < width <= 65536 and 0 < height <= 65536):
            raise CrossdraftError(f"{source}: a sensor of {width}x{height} pixels is impossible; give the true size.")
        _check_inside(xs, ys, width, height, source)
        times = whole_times(ts, source)
        check_sorted(times, source)
        return Events(
            xs.astype(np.uint16, copy=False),
            ys.astype(np.uint16, copy=False),
            times,
            normalise_polarity(ps, source),
            width,
            height,
        )

    @staticmethod
    def empty(width: int, height: int) -> "Events":
        """Make an empty recording of a sensor of this size."""
        return Events(
            np.empty(0, np.uint16), np.empty(0, np.uint16), np.empty(0, np.int64), np.empty(0, np.uint8), width, height
        )

    def __len__(self) -> int:
        return len(self.t)

    @property
    def nbytes(self) -> int:
        """Bytes of the four columns; 13 for an event."""
        return self.x.nbytes + self.y.nbytes + self.t.nbytes + self.p.nbytes

    @property
    def t0(self) -> int:
        """Time of the first event in µs; 0 when there is none."""
        return int(self.t[0]) if len(self.t) else 0

    @property
    def duration_us(self) -> int:
        """Time from the first to the last event in µs."""
        return int(self.t[-1] - self.t[0]) if len(self.t) else 0

    def slice(self, t0: int, t1: int) -> "Events":
        """Events with t0 <= t < t1 (µs), as views: nothing is copied."""
        return Window(t0, t1).clip(self)

    def take(self, rows: "slice | NDArray[np.intp]") -> "Events":
        """Return the events of ascending `rows`, so that they stay ordered in time."""
        return Events(self.x[rows], self.y[rows], self.t[rows], self.p[rows], self.width, self.height, self.notes)

    def noting(self, notes: Iterable[str]) -> "Events":
        """Add notes to these events; a repeated note stands once."""
        joined = tuple(dict.fromkeys((*self.notes, *notes)))
        return self if joined == self.notes else replace(self, notes=joined)


@dataclass(frozen=True, slots=True)
class Newest:
    """The newest events of a span: those of its last `us` µs, but at least `least` and at most `most` of them.

    Args:
        us: length in µs, counted back from the last event of the span; None for no limit.
        least: number of events that are taken even if they are older.
        most: largest number of events; None for no limit.
    """

    us: int | None = None
    least: int = 0
    most: int | None = None

    def __post_init__(self) -> None:
        for name in ("us", "least", "most"):
            if (value := getattr(self, name)) is not None:
                whole(f"Newest.{name}", value, least=-LAST_US)
        if (self.us is not None and self.us < 1) or (self.most is not None and self.most < max(1, self.least)):
            raise CrossdraftError(
                f"A window of {self.us} µs and {self.least} to {self.most} events holds nothing; make it larger."
            )

    def first(self, t: NDArray[np.int64]) -> int:
        """Row at which the newest of these sorted times begin."""
        begin = 0 if self.us is None or not len(t) else int(np.searchsorted(t, int(t[-1]) + 1 - self.us))
        begin = min(begin, max(0, len(t) - self.least))
        return begin if self.most is None else max(begin, len(t) - self.most)

    def of(self, events: Events) -> Events:
        """Newest of these events, as views."""
        return events.take(slice(self.first(events.t), None))


@dataclass(frozen=True, slots=True)
class Window:
    """A half-open span of absolute time in µs; None leaves a side open.

    Args:
        start_us, end_us: the span.
        newest: newest events of the span that are wanted; None for all. A reader may return more.
    """

    start_us: int | None = None
    end_us: int | None = None
    newest: Newest | None = None

    def __post_init__(self) -> None:
        for name in ("start_us", "end_us"):
            if (value := getattr(self, name)) is not None:
                whole(name, value, least=-LAST_US)

    def clip(self, events: Events) -> Events:
        """Events inside the span, as views."""
        first = 0 if self.start_us is None else np.searchsorted(events.t, self.start_us)
        last = len(events) if self.end_us is None else np.searchsorted(events.t, self.end_us)
        return events.take(slice(int(first), max(int(first), int(last))))

    def ends_before(self, t: NDArray[np.int64]) -> bool:
        """True if no event after these sorted times can be inside the span."""
        return self.end_us is not None and len(t) > 0 and bool(t[-1] >= self.end_us)


def concatenate(chunks: Sequence[Events], source: object = "the joined chunks") -> Events:
    """Join consecutive chunks of one recording.

    Raises:
        CrossdraftError: no chunk, different sensors, or a chunk that begins before the previous one ends.
    """
    if not chunks:
        raise CrossdraftError("There are no event chunks to join.")
    if len(chunks) == 1:
        return chunks[0]
    first = chunks[0]
    if any((c.width, c.height) != (first.width, first.height) for c in chunks):
        raise CrossdraftError("Event chunks of different sensor sizes cannot be joined; bring them to one size first.")
    t = np.concatenate([c.t for c in chunks])
    check_sorted(t, source)
    return Events(
        np.concatenate([c.x for c in chunks]),
        np.concatenate([c.y for c in chunks]),
        t,
        np.concatenate([c.p for c in chunks]),
        first.width,
        first.height,
    ).noting(note for chunk in chunks for note in chunk.notes)


def batches(chunks: Iterable[Events], size: int, source: object = "the joined chunks") -> Iterator[Events]:
    """Join small consecutive chunks into ones of at least `size` events; yields at least one; the last may be smaller.

    Raises:
        CrossdraftError: no chunk, or an error of `concatenate`.
    """
    held: list[Events] = []
    count = given = 0
    for chunk in chunks:
        held.append(chunk)
        count += len(chunk)
        if count >= size:
            yield concatenate(held, source)
            held, count, given = [], 0, given + 1
    if held or not given:
        yield concatenate(held, source)


def check_sorted(t: NDArray[np.int64], source: object, first: int = 0) -> None:
    """Raise CrossdraftError at the first time that decreases; `first` is the row of the first time, for the message."""
    backward = t[1:] < t[:-1]
    if backward.any():
        row = int(backward.argmax()) + 1
        back = int(t[row - 1]) - int(t[row])
        remedy = "sort the recording by time."
        if back >= RESTART_US:
            remedy = f"a camera that is restarted does this, so divide the recording there, or {remedy}"
        raise CrossdraftError(
            f"{source}: events out of order: event {first + row} is {back} µs earlier than the one "
            f"before it ({np.count_nonzero(backward)} such places); {remedy}"
        )


def unwrap_time(
    t: NDArray[np.integer], bits: int, source: object, first: int = 0, edge_us: int | None = None
) -> NDArray[np.int64]:
    """Undo the overflow of an unsigned `bits`-wide µs counter.

    An overflow goes back by more than half the counter's range; with `edge_us`, it also leaves the last `edge_us` of
    the range and lands in the first. Any other step back is disorder, or a camera that was restarted.
    A silence longer than the whole range leaves no trace in the data and is lost.

    Args:
        t: raw counter values [N].
        bits: width of the counter, for instance 16 (wraps after 65.5 ms) or 32 (71.6 min).
        first: row of the recording at which these values begin, for the error message.
        edge_us: length of the range's first and last part in µs; `None` for no such bound.

    Raises:
        CrossdraftError: events out of order.
    """
    span = 1 << bits
    raw = t.astype(np.int64)
    wraps = np.diff(raw) < -(span // 2)
    if edge_us is not None:
        wraps &= (raw[:-1] >= span - edge_us) & (raw[1:] < edge_us)
    if wraps.any():
        raw[1:] += span * np.cumsum(wraps)
    check_sorted(raw, source, first)
    return raw


def checked_sensor(sensor: object, source: object) -> Sensor:
    """Return (width, height) of a sensor as two whole numbers.

    Raises:
        CrossdraftError: `sensor` is no such pair.
    """
    pair = tuple(sensor) if isinstance(sensor, tuple | list) else ()
    if len(pair) != 2 or any(isinstance(side, bool) or not hasattr(side, "__index__") for side in pair):
        shown = "x".join(map(str, pair)) if len(pair) == 2 else repr(sensor)
        raise CrossdraftError(f"{source}: a sensor of {shown:.60} is no (width, height) in whole pixels; give the two.")
    return index(pair[0]), index(pair[1])


def _column(value: ArrayLike, name: str, source: object) -> NDArray[Any]:
    """Convert a column to an array; raise CrossdraftError if it is none, or masks some of its values."""
    if isinstance(value, np.ma.MaskedArray) and value.mask.any():
        raise CrossdraftError(f"{source}: column {name} has masked values, which are no events; take them out.")
    try:
        return np.asarray(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise CrossdraftError(
            f"{source}: column {name} is {described(value)}, which NumPy makes no array of; give a row of numbers."
        ) from None


def check_numbers(columns: Mapping[str, np.dtype[Any]], source: object) -> None:
    """Refuse columns of events that are not numeric, before anything is computed from them.

    Raises:
        CrossdraftError: a column has text, bytes, dates, durations, complex numbers, records or objects; or a column
            other than the polarity `p` has truth values.
    """
    for name, dtype in columns.items():
        if dtype.kind not in ("iufb" if name == "p" else "iuf"):
            raise CrossdraftError(
                f"{source}: column {name} is of {dtype}, no whole or fractional numbers; save it as int64."
            )


def normalise_polarity(p: NDArray[np.generic], source: object) -> NDArray[np.uint8]:
    """Convert bool, 0/1 or -1/+1 to uint8 0/1; raise CrossdraftError for anything else."""
    if p.dtype == np.bool_:
        return p.astype(np.uint8)
    with np.errstate(invalid="ignore"):  # values outside int8 are found by comparison
        signed = p.astype(np.int8, copy=False)
    if not len(p):
        return signed.astype(np.uint8)
    if (signed != p).any() or signed.min() < -1 or signed.max() > 1:
        found = f"{p.min()}..{p.max()}"
        raise CrossdraftError(f"{source}: polarity must be 0/1 or -1/+1, not {found}; leave out other signals.")
    if signed.min() < 0:
        if (signed == 0).any():
            raise CrossdraftError(f"{source}: polarity mixes -1, 0 and +1; the file is damaged.")
        return (signed > 0).astype(np.uint8)
    return signed.astype(np.uint8)


def whole_times(t: NDArray[np.generic], source: object, unit: str = "us") -> NDArray[np.int64]:
    """Convert times in a unit to int64 µs, after a check: a cast would turn an invalid time into a plausible one.

    Raises:
        CrossdraftError: a time is not finite, or reaches 2**62, as a number or in µs.
    """
    scale = 10 ** max(EXPONENTS[unit], 0)
    # NaN propagates to min and max, and comparisons with it are false.
    if len(t) and not (t.min().item() * scale > -LAST_US and t.max().item() * scale < LAST_US):
        raise CrossdraftError(
            f"{source}: times reach {t.min()}..{t.max()} {SPELLED[unit]}; they must be finite numbers below 2**62 µs, "
            "so drop those events."
        )
    if t.dtype.kind == "f":
        return np.rint(t if unit == "us" else t.astype(np.float64) * 10.0 ** EXPONENTS[unit]).astype(np.int64)
    whole = t.astype(np.int64, copy=False)
    return whole // 1000 if unit == "ns" else whole * scale if scale > 1 else whole


def _check_inside(x: NDArray[np.generic], y: NDArray[np.generic], width: int, height: int, source: object) -> None:
    for name, column, size in (("x", x, width), ("y", y, height)):
        if len(column) and not (column.min() >= 0 and column.max() < size):
            advice = (
                "if the sensor has another size, or the file another format, say so (sensor=…, format=…), else it is "
                "damaged, so copy it again."
            )
            if 0 <= x.min() <= x.max() < height and 0 <= y.min() <= y.max() < width:
                advice = "all would fit the other way round: swap x and y, or the sensor's sides (sensor=…)."
            found = f"{column.min()}..{column.max()}"
            raise CrossdraftError(f"{source}: {name} reaches {found}, outside the {width}x{height} sensor; {advice}")
        if column.dtype.kind == "f" and (column != np.rint(column)).any():
            raise CrossdraftError(f"{source}: {name} is fractional; give raw events, not rectified ones.")
