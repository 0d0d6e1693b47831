"""Look at a clip's files before anything slow happens: are they there, readable, and of the same moment?"""

import math
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from crossdraft.errors import CrossdraftError

if TYPE_CHECKING:
    from crossdraft.events import Excerpt

Format = Annotated[
    str | None,
    typer.Option(
        "--format",
        help="Of the recording: dsec, m3ed, mvsec, eventgpt, e2vid, dat, aedat2, aedat4 or evt; by content if absent.",
    ),
]
SensorSize = Annotated[
    str | None, typer.Option("--sensor", metavar="WxH", help="Sensor size, where the file does not say.")
]

HOUR_US = 3_600_000_000


class Clock(StrEnum):
    """What the times of an event recording count from."""

    AUTO = "auto"
    VIDEO = "video"
    OWN = "own"


def size_of(text: str | None) -> tuple[int, int] | None:
    """(width, height) of "640x480"; None of None. CrossdraftError of anything else."""
    if text is None:
        return None
    width, _, height = text.lower().partition("x")
    if not all(side.isascii() and side.isdecimal() and len(side) < 10 for side in (width, height)):
        raise CrossdraftError(f"{text!r} is no size; write it like 640x480.")
    return int(width), int(height)


def check_files(
    video: Path,
    events: Path | None,
    clock: Clock,
    kind: str | None = None,
    sensor: tuple[int, int] | None = None,
) -> "Excerpt | None":
    """Raise one clear sentence unless a video, and an event recording if given, can be read and overlap in time.

    A video's times begin at 0. An event recording's may count from there too (clips made by crossdraft do), or from
    anywhere else (DSEC's: since the sensor was switched on). No format says which, so `auto` takes times that begin
    beyond an hour for a clock of their own, and compares the others with the video's; `own` compares nothing.

    Args:
        kind, sensor: of the recording, where its file does not say; as `format` and `sensor` of `read_events`.

    Returns:
        The part of the recording that the video shows: its span on the video's clock; on a clock of its own, as much as
        the video is long, from the first event on.

    Raises:
        CrossdraftError: a file is missing, empty or unreadable, there are no events, or they lie outside the video.
    """
    from crossdraft.events import Excerpt
    from crossdraft.video import probe

    seconds = probe(video).seconds
    if events is None:
        return None
    first = first_event_us(events, kind, sensor)
    unrelated = clock is Clock.OWN or (clock is Clock.AUTO and first > HOUR_US)
    if seconds <= 0:  # the container does not say
        return Excerpt(events, format=kind, sensor=sensor)
    if not unrelated and seconds * 1e6 < first:
        raise CrossdraftError(
            f"No overlap in time: the events of {events} begin {first / 1e6:.3f} s after the video, which lasts "
            f"{seconds:.3f} s; give recordings of the same moment, or --clock own if the events' times do not "
            "count from the video's start."
        )
    start = first if unrelated else 0
    return Excerpt(events, start, start + math.ceil(seconds * 1e6), kind, sensor)


def first_event_us(events: Path, kind: str | None = None, sensor: tuple[int, int] | None = None) -> int:
    """Time of the first event in µs; no more than that is read.

    Raises:
        CrossdraftError: as `read_events`, or there is no event.
    """
    from crossdraft.events import iter_events

    for chunk in iter_events(events, format=kind, sensor=sensor):
        if len(chunk):
            return chunk.t0
    raise CrossdraftError(f"{events} holds no events; record or simulate some (crossdraft events simulate).")
