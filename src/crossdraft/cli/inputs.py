"""Look at a clip's files before anything slow happens: are they there, readable, and of the same moment?"""

import math
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from crossdraft.bench.cores import choose_cores
from crossdraft.checks import choice, positive, whole
from crossdraft.errors import CrossdraftError
from crossdraft.methods import check_spec, read_spec

if TYPE_CHECKING:
    from crossdraft.events import Excerpt

Format = Annotated[
    str | None,
    typer.Option(
        "--format",
        help="Format: dsec, m3ed, mvsec, eventgpt, e2vid, dat, aedat2, aedat4 or evt; by default by content.",
    ),
]
SensorSize = Annotated[
    str | None, typer.Option("--sensor", metavar="WxH", help="Sensor size, where the file does not say.")
]

EventsStart = Annotated[
    float | None,
    typer.Option(
        "--events-start",
        help="Read all events from this second of the clip on; by default the last 50 ms to 1 s, as the model wants.",
    ),
]
EventsEnd = Annotated[
    float | None, typer.Option("--events-end", help="Read no events from this second of the clip on.")
]
EventWindows = Annotated[
    int,
    typer.Option(
        "--events-windows", min=1, help="Divide what is read into so many windows, spread evenly over the clip."
    ),
]

# As `api.PLACEMENTS`, `engine.ahead.POLICIES` and `engine.placement.HIDDEN_MODES`, which take seconds to import.
PLACEMENTS = ("inline", "process")
AHEAD = ("auto", "off", "pipespec", "pearl", "ssd", "spare")
HIDDEN = ("auto", "before", "beside", "off")

HOUR_US = 3_600_000_000
MAX_SECONDS = 1e9  # 31 years; in µs it fits in int64


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


@dataclass(frozen=True, slots=True)
class Part:
    """Which part of a clip's events a drafter reads; see `--events-start`, `--events-end`, `--events-windows`."""

    start_s: float | None = None
    end_s: float | None = None
    windows: int = 1

    def __post_init__(self) -> None:
        for option, second in (("--events-start", self.start_s), ("--events-end", self.end_s)):
            if second is not None and not 0 <= second <= MAX_SECONDS:  # NaN is in no order with anything
                raise CrossdraftError(
                    f"{option} is {second:g} s; give seconds since the clip's beginning, 0 to {MAX_SECONDS:g}."
                )
        if self.start_s is not None and self.end_s is not None and self.end_s <= self.start_s:
            raise CrossdraftError(
                f"--events-end ({self.end_s:g} s) must lie behind --events-start ({self.start_s:g} s)."
            )

    def of(self, clip: "Excerpt") -> "Excerpt":
        """The part of a clip's events.

        From a start on, all up to the end is read; without one, as much before the end as the drafter was made for.
        """
        begin = clip.start_us or 0
        start = clip.start_us if self.start_s is None else begin + round(self.start_s * 1e6)
        end = clip.end_us if self.end_s is None else begin + round(self.end_s * 1e6)
        if clip.end_us is not None and start is not None and start >= clip.end_us:
            raise CrossdraftError(
                f"--events-start is {self.start_s:g} s, but the clip lasts {(clip.end_us - begin) / 1e6:.3f} s."
            )
        whole = self.start_s is not None
        return replace(clip, start_us=start, end_us=end, whole=whole, windows=self.windows)


def check_values(
    *,
    placement: str | None = None,
    dtype: str | None = None,
    draft_device: str | None = None,
    device: str | None = None,
    target_cores: str | None = None,
    draft_cores: str | None = None,
    frames: int | None = None,
    fps: float | None = None,
    max_new_tokens: int | None = None,
    ahead: str = "auto",
    hidden: str = "auto",
    rule: str | None = None,
    drafter: str | None = None,
) -> None:
    """Refuse what the values tell by themselves, before models and what they need are imported, which takes seconds.

    Raises:
        CrossdraftError: an unknown name, or a number out of range.
    """
    if placement is not None:
        choice("--placement", placement, PLACEMENTS)
    choice("--ahead", ahead, AHEAD)
    choice("--hidden", hidden, HIDDEN)
    if frames is not None:
        whole("--frames", frames)
    if fps is not None:
        positive("--fps", fps)
    if max_new_tokens is not None:
        whole("--max-new-tokens", max_new_tokens)
    if drafter not in (None, "none"):
        check_spec(read_spec(drafter))
    if target_cores or draft_cores:
        choose_cores(target_cores, draft_cores, all_target=True)
    if dtype is not None or rule is not None or device is not None or draft_device is not None:
        _check_names(dtype, rule, {"--device": device, "--draft-device": draft_device})


def _check_names(dtype: str | None, rule: str | None, devices: dict[str, str | None]) -> None:
    """What PyTorch alone is needed for."""
    import torch

    from crossdraft.dtypes import dtype_name
    from crossdraft.engine.rules import check_rule

    if dtype is not None:
        dtype_name(dtype, "--dtype")
    check_rule(rule)
    for option, device in devices.items():
        try:
            known = device is None or torch.device(device)
        except RuntimeError:
            known = None
        if known is None:
            raise CrossdraftError(f"{option} is '{device}', no device of PyTorch; try cpu or cuda.")


def refuse_without_events(clock: Clock, kind: str | None, sensor: tuple[int, int] | None, part: Part) -> None:
    """Options that say how a recording is read would change nothing without one.

    Raises:
        CrossdraftError: one of them is given.
    """
    given = {
        "--clock": clock is not Clock.AUTO,
        "--format": kind is not None,
        "--sensor": sensor is not None,
        "--events-start": part.start_s is not None,
        "--events-end": part.end_s is not None,
        "--events-windows": part.windows != 1,
    }
    for option, is_given in given.items():
        if is_given:
            raise CrossdraftError(f"{option} is about an event recording; name one with --events, too.")


def check_files(
    video: Path,
    events: Path | None,
    clock: Clock,
    kind: str | None = None,
    sensor: tuple[int, int] | None = None,
    part: Part | None = None,
) -> "Excerpt | None":
    """Raise one clear sentence unless a video, and an event recording if given, can be read and overlap in time.

    A video's times begin at 0. An event recording's may count from there too (clips made by crossdraft do), or from
    anywhere else (DSEC's: since the sensor was switched on). No format says which, so `auto` takes times that begin
    beyond an hour for a clock of their own, and compares the others with the video's; `own` compares nothing.

    Args:
        kind, sensor: of the recording, where its file does not say; as `format` and `sensor` of `read_events`.
        part: what of it the drafter reads; by default the end, as much as the model was made for.

    Returns:
        The part of the recording that the video shows: its span on the video's clock; on a clock of its own, as much as
        the video is long, from the first event on. Or what `part` takes of that.

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
    if not unrelated and 0 < seconds * 1e6 < first:
        raise CrossdraftError(
            f"No overlap in time: the events of {events} begin {first / 1e6:.3f} s after the video, which lasts "
            f"{seconds:.3f} s; give recordings of the same moment, or --clock own if the events' times do not "
            "count from the video's start."
        )
    start = first if unrelated else 0
    end = start + math.ceil(seconds * 1e6) if seconds > 0 else None  # else the container does not say
    return (part or Part()).of(Excerpt(events, start, end, kind, sensor))


def first_event_us(events: Path, kind: str | None = None, sensor: tuple[int, int] | None = None) -> int:
    """Time of the first event in µs; no more than that is read.

    Raises:
        CrossdraftError: as `read_events`, or there is no event.
    """
    from crossdraft.events.read import first_time

    first = first_time(events, format=kind, sensor=sensor)
    if first is None:
        raise CrossdraftError(f"{events} holds no events; record or simulate some (crossdraft events simulate).")
    return first
