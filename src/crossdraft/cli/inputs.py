"""Look at a clip's files before anything slow happens: are they there, readable, and of the same moment?"""

from enum import StrEnum
from pathlib import Path

from crossdraft.errors import CrossdraftError

HOUR_US = 3_600_000_000


class Clock(StrEnum):
    """What the times of an event recording count from."""

    AUTO = "auto"
    VIDEO = "video"
    OWN = "own"


def check_files(video: Path, events: Path | None, clock: Clock) -> None:
    """Raise one clear sentence unless a video, and an event recording if given, can be read and overlap in time.

    A video's times begin at 0. An event recording's may count from there too (clips made by crossdraft do), or from
    anywhere else (DSEC's: since the sensor was switched on). No format says which, so `auto` takes times that begin
    beyond an hour for a clock of their own, and compares the others with the video's; `own` compares nothing.

    Raises:
        CrossdraftError: a file is missing, empty or unreadable, there are no events, or they lie outside the video.
    """
    from crossdraft.video import probe

    seconds = probe(video).seconds
    if events is None:
        return
    start_us = first_event_us(events)
    unrelated = clock is Clock.OWN or (clock is Clock.AUTO and start_us > HOUR_US)
    if not unrelated and 0 < seconds * 1e6 < start_us:
        raise CrossdraftError(
            f"No overlap in time: the events of {events} begin {start_us / 1e6:.3f} s after the video, which lasts "
            f"{seconds:.3f} s; give recordings of the same moment, or --clock own if the events' times do not "
            "count from the video's start."
        )


def first_event_us(events: Path) -> int:
    """Time of the first event in µs; no more than that is read.

    Raises:
        CrossdraftError: as `read_events`, or there is no event.
    """
    from crossdraft.events import iter_events

    for chunk in iter_events(events):
        if len(chunk):
            return chunk.t0
    raise CrossdraftError(f"{events} holds no events; record or simulate some (crossdraft events simulate).")
