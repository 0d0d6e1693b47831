"""Parts of a recording: a span, spans in seconds, and the windows that a model reads."""

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from numbers import Real
from pathlib import Path
from typing import Self, TypeVar

from crossdraft.checks import whole
from crossdraft.errors import CrossdraftError
from crossdraft.events.limits import DEFAULT_LIMITS, EventLimits
from crossdraft.events.read import checked_chunks, gathered, recording_path
from crossdraft.events.stream import LAST_US, Events, Newest, Sensor, Window

HOUR_US = 3_600_000_000
MAX_SECONDS = 1e9  # 31 years; in µs, added to any time in a recording, it fits in int64


@dataclass(frozen=True, slots=True)
class Excerpt:
    """A span of a recording, read lazily: the moment that a clip shows.

    Args:
        path: the recording; a `str` becomes a `Path`.
        start_us, end_us, format, sensor, limits, time_unit: as in `read_events`.
        whole: true if a model reads all of it, not only as much of its end as the model was made for.
        windows: number of windows to divide it into, spread evenly from the first event to the last.

    Raises:
        CrossdraftError: less than one window, or an invalid path.
    """

    path: Path
    start_us: int | None = None
    end_us: int | None = None
    format: str | None = None
    sensor: Sensor | None = None
    whole: bool = False
    windows: int = 1
    limits: EventLimits = DEFAULT_LIMITS
    time_unit: str | None = None

    def __post_init__(self) -> None:
        # A `str` in a request's fields is plain text; only a `Path` is a file, recognised by its bytes.
        object.__setattr__(self, "path", recording_path(self.path))
        whole("The number of event windows", self.windows)

    @classmethod
    def in_seconds(
        cls,
        path: str | os.PathLike[str],
        start_s: float | None = None,
        end_s: float | None = None,
        *,
        format: str | None = None,  # noqa: A002 (the word that users look for)
        sensor: Sensor | None = None,
        limits: EventLimits = DEFAULT_LIMITS,
        time_unit: str | None = None,
    ) -> Self:
        """Make a span from seconds since the recording's first event.

        Raises:
            CrossdraftError: an invalid span, an error of reading, or a recording without events.
        """
        recording = cls(recording_path(path), format=format, sensor=sensor, limits=limits, time_unit=time_unit)
        if start_s is None and end_s is None:
            return recording
        for name, second in (("start", start_s), ("end", end_s)):
            if second is None:
                continue
            if not isinstance(second, Real) or not 0 <= second <= MAX_SECONDS:  # also refuses NaN
                raise CrossdraftError(
                    f"The {name} of the span is {second!r:.40} s; give seconds since the first event, 0 to "
                    f"{MAX_SECONDS:g}."
                )
        first = recording.first_time()
        if first is None:
            raise CrossdraftError(f"{path} holds no events.")
        start, end = (None if s is None else first + round(s * 1e6) for s in (start_s, end_s))
        return replace(recording, start_us=start, end_us=end)

    def part(self, start_s: float | None = None, end_s: float | None = None) -> Self:
        """Part from one second of this span to another; with a given start, all of it is read.

        Raises:
            CrossdraftError: the part begins behind the span's end, or ends before it begins.
        """
        begin = self.start_us or 0
        start = begin if start_s is None else begin + round(start_s * 1e6)
        end = self.end_us if end_s is None else min(begin + round(end_s * 1e6), self.end_us or LAST_US)
        if self.end_us is not None and start >= self.end_us:
            raise CrossdraftError(
                f"The events are to begin at {start_s:g} s, but the clip lasts {(self.end_us - begin) / 1e6:.3f} s; "
                "give an earlier start."
            )
        if end is not None and end <= start:
            raise CrossdraftError(f"The events are to end at {end_s:g} s, before they begin; give a later end.")
        return replace(self, start_us=start, end_us=end, whole=start_s is not None)

    def chunks(self, newest: Newest | None = None) -> Iterator[Events]:
        """Yield consecutive chunks of the span, at least one; errors as `read_events`."""
        window = Window(self.start_us, self.end_us, newest)
        return checked_chunks(self.path, self.format, self.sensor, window, self.limits, self.time_unit)

    def read(self, newest: Newest | None = None) -> Events:
        """Read all events of the span, or the newest of them; errors as `read_events`."""
        return gathered(self.chunks(newest or Newest()), self.path, self.limits, newest)

    def first_time(self) -> int | None:
        """Time in µs of the first event, or `None`; nothing behind its chunk is read."""
        return next((chunk.t0 for chunk in self.chunks() if len(chunk)), None)

    def time_span(self) -> tuple[int, int] | None:
        """Times in µs of the first and last event, or `None`. Of HDF5 and structured arrays only the ends are read."""
        first = self.first_time()
        return None if first is None else (first, self.read(Newest(most=1)).t0)

    def read_windows(self, size: Newest) -> tuple[Events, ...]:
        """Read the windows for a model, in time order.

        Args:
            size: size that the model was made for: time, fewest and most events of all windows together. If the excerpt
                is read whole, only `least` counts.

        Raises:
            CrossdraftError: as `read_events`.
        """
        if self.whole:
            size = Newest(least=size.least)
        span = self.time_span() if self.windows > 1 else None
        if span is None:
            return (self.read(size),)
        length = span[1] + 1 - span[0]
        share = _share(size, length, self.windows)
        first_end, last_end = span[0] + (share.us or length), span[1] + 1
        ends = [first_end + (last_end - first_end) * i // (self.windows - 1) for i in range(self.windows)]
        return tuple(replace(self, end_us=end).read(share) for end in ends)

    def __str__(self) -> str:
        return str(self.path)


@dataclass(frozen=True, slots=True)
class DecodedExcerpt(Excerpt):
    """A span of a recording that was decoded beforehand, as in another process; accepted wherever an `Excerpt` is.

    Args:
        path: path of a file of plain columns (`npy.column_header`).
        digest: digest of the file's content, so that it need not be hashed.
        notes: what the reader noted of the recording.
    """

    path: Path = field(compare=False)
    time_unit: str | None = "us"
    digest: bytes = field(kw_only=True)
    notes: tuple[str, ...] = field(default=(), kw_only=True)

    def chunks(self, newest: Newest | None = None) -> Iterator[Events]:
        return (chunk.noting(self.notes) for chunk in Excerpt.chunks(self, newest))


RecordingT = TypeVar("RecordingT", bound=Excerpt)


def shown_in(recording: RecordingT, first_us: int, seconds: float, clock: str = "auto") -> RecordingT:
    """Part of a recording that a clip shows.

    A clip's times begin at 0. A recording's may do so, too, or count from another time (DSEC's: since the sensor was
    switched on). No format states which, so `auto` treats times that begin beyond an hour as a clock of their own, and
    compares others with the clip's; with `own`, and without a clip, nothing is compared.

    Args:
        recording: the whole recording.
        first_us: time of its first event in µs.
        seconds: length of the clip; 0 = unknown, or no clip.
        clock: `auto`, `video` or `own`.

    Returns:
        The clip's span on its own clock; on a clock of the recording's own, a span of the clip's length from the first
        event on.

    Raises:
        CrossdraftError: recording and clip do not overlap in time.
    """
    unrelated = clock == "own" or (clock == "auto" and first_us > HOUR_US)
    if not unrelated and 0 < seconds * 1e6 < first_us:
        raise CrossdraftError(
            f"No overlap in time: the events of {recording} begin {first_us / 1e6:.3f} s after the video, which lasts "
            f"{seconds:.3f} s; give recordings of the same moment, or clock=own if the events' times do not count "
            "from the video's start."
        )
    begin = first_us if unrelated else 0
    return replace(recording, start_us=begin, end_us=begin + math.ceil(seconds * 1e6) if seconds > 0 else None)


def _share(size: Newest, length: int, windows: int) -> Newest:
    """Share of a span of `length` µs for each of several windows."""
    us = length if size.us is None else min(size.us, length)
    least = -(-size.least // windows)
    most = None if size.most is None else max(size.most // windows, least, 1)
    return Newest(max(us // windows, 1), least, most)
