"""A stretch of a recording, and the windows of it that a model reads."""

from dataclasses import dataclass
from pathlib import Path

from crossdraft.errors import CrossdraftError
from crossdraft.events.limits import DEFAULT_LIMITS, EventLimits
from crossdraft.events.read import read_events, span_of
from crossdraft.events.stream import Events, Newest, Sensor


@dataclass(frozen=True, slots=True)
class Excerpt:
    """A stretch of a recording that is read when somebody needs it: the moment that a clip shows.

    Args:
        path: the recording.
        start_us, end_us, format, sensor, limits: as in `read_events`.
        whole: a model reads all of it, rather than as much of its end as it was made for.
        windows: into how many windows that is divided, spread evenly from the first event to the last.

    Raises:
        CrossdraftError: less than one window.
    """

    path: Path
    start_us: int | None = None
    end_us: int | None = None
    format: str | None = None
    sensor: Sensor | None = None
    whole: bool = False
    windows: int = 1
    limits: EventLimits = DEFAULT_LIMITS

    def __post_init__(self) -> None:
        if self.windows < 1:
            raise CrossdraftError(f"The number of event windows is {self.windows}; it must be at least 1.")

    def read(self) -> Events:
        """All events of the stretch; errors as `read_events`."""
        return self._read(self.start_us, self.end_us, None)

    def read_windows(self, size: Newest) -> tuple[Events, ...]:
        """The windows that a model reads, in time order.

        Args:
            size: what the model was made for: time, fewest and most events of all windows together. Of an excerpt that
                is read whole, only `least` counts.

        Raises:
            CrossdraftError: as `read_events`.
        """
        if self.whole:
            size = Newest(least=size.least)
        if self.windows == 1:
            return (self._read(self.start_us, self.end_us, size),)
        span = span_of(
            self.path,
            format=self.format,
            sensor=self.sensor,
            start_us=self.start_us,
            end_us=self.end_us,
            limits=self.limits,
        )
        if span is None:
            return (self._read(self.start_us, self.end_us, size),)
        length = span[1] + 1 - span[0]
        share = _share(size, length, self.windows)
        first_end, last_end = span[0] + (share.us or length), span[1] + 1
        ends = [first_end + (last_end - first_end) * i // (self.windows - 1) for i in range(self.windows)]
        return tuple(self._read(self.start_us, end, share) for end in ends)

    def _read(self, start_us: int | None, end_us: int | None, newest: Newest | None) -> Events:
        return read_events(
            self.path,
            format=self.format,
            sensor=self.sensor,
            start_us=start_us,
            end_us=end_us,
            newest=newest,
            limits=self.limits,
        )

    def __str__(self) -> str:
        return str(self.path)


def _share(size: Newest, length: int, windows: int) -> Newest:
    """What each of several windows holds of a stretch of `length` µs."""
    us = length if size.us is None else min(size.us, length)
    least = -(-size.least // windows)
    most = None if size.most is None else max(size.most // windows, least, 1)
    return Newest(max(us // windows, 1), least, most)
