"""Live sources on the command line: the options that `watch` and `edge` share, and the cameras of a live watch."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, sleep
from typing import TYPE_CHECKING, Annotated, Any

import typer

from crossdraft.checks import is_live, positive
from crossdraft.cli.options import RecordingClock, RecordingFile, size_of
from crossdraft.errors import CrossdraftError

if TYPE_CHECKING:
    from crossdraft.events import Events
    from crossdraft.streams import SlidingWindows, StreamWindow, Watch
    from crossdraft.streams.live.events import LiveEvents


LiveHost = Annotated[
    list[str] | None,
    typer.Option("--live-host", metavar="HOST", help="A host beside this one where a camera may be; repeatable."),
]


@dataclass(frozen=True, slots=True)
class LiveOptions:
    """Options for live sources."""

    live_host: LiveHost = None
    clock_offset: Annotated[
        float | None,
        typer.Option(
            metavar="S", help="What the live events' clock shows at a frame, less the frame's own; default: measured."
        ),
    ] = None
    signal_timeout: Annotated[
        float, typer.Option(metavar="S", help="Seconds without data after which a camera has no signal.")
    ] = 2.0

    def check(self, camera: RecordingFile) -> None:
        """Raise CrossdraftError if an option is given that live events, or events of a file, do not use."""
        live, clock = is_live(camera.events), camera.clock is not RecordingClock.AUTO
        for option, given in (("--clock", clock), ("--format", camera.kind), ("--time-unit", camera.time_unit)):
            if live and given:
                raise CrossdraftError(f"{option} is about a file with events; --events names a live source.")
        if self.clock_offset is not None and not live:
            raise CrossdraftError("--clock-offset is about live events; name their source with --events live:….")


class LiveCameras:
    """A camera and an event camera beside it, one of which may be none or no live source; they run within a context.

    Attributes:
        events: of the event camera; `None` = there is none.

    Raises:
        CrossdraftError: an invalid address.
    """

    newest = True  # of the windows that fall due after a gap

    def __init__(self, video: str | None, camera: RecordingFile, live: LiveOptions, length_s: float) -> None:
        from crossdraft.streams.live.address import live_address
        from crossdraft.streams.live.frames import LiveFrames
        from crossdraft.streams.live.read import open_events

        timeout_s, hosts = positive("--signal-timeout", live.signal_timeout), live.live_host or ()
        self.events: LiveEvents | None = None
        self._frames: Any = None
        if is_live(camera.events):
            given = {"sensor": size_of(camera.sensor), "offset_s": live.clock_offset, "signal_timeout_s": timeout_s}
            self.events = open_events(str(camera.events), length_s, hosts=hosts, **given)
        if video is not None and is_live(video):
            address = live_address(video, "video", hosts)
            self._frames = LiveFrames(address, keep_s=length_s + 1.0, signal_timeout_s=timeout_s)
        self._held, self._length_s, self._began_at = ExitStack(), length_s, perf_counter()

    def __enter__(self) -> "LiveCameras":
        with self._held:
            zero_s = 0.0
            if self._frames is not None:
                self._held.callback(self._frames.close)
                self._frames.reader.start()
                self._began_at, zero_s = self._frames.zero_at, self._frames.zero_s
            if self.events is not None:
                self._held.callback(self.events.reader.close)
                self.events.reader.start()
                self.events.align(self._began_at, zero_s)
            self._held = self._held.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._held.close()

    def seen(self, path: Path) -> tuple[bool, "Events | None"]:
        """Return the newest window's events; its frames are written to an mp4, if there is a camera, as the flag says.

        Raises:
            CrossdraftError: a source has no signal.
        """
        from crossdraft.video import write_mp4

        sources = [one for one in (self._frames, self.events and self.events.reader) if one is not None]
        for source in sources:
            if (state := source.status().state) != "live":
                raise CrossdraftError(f"A camera shows nothing now ({state}); ask again once it does.")
        sleep(max(0.0, self._began_at + self._length_s - perf_counter()) if sources else 0.0)
        end_s, clip = perf_counter() - self._began_at, self._frames.newest(self._length_s) if self._frames else []
        if clip:
            end_s, rate = clip[-1].time_s, (len(clip) - 1) / (clip[-1].time_s - clip[0].time_s or 1.0)
            height, width = (side // 2 * 2 for side in clip[0].pixels.shape[:2])
            write_mp4(path, (frame.pixels[:height, :width] for frame in clip), min(max(rate, 1.0), 1000.0))
        return bool(clip), self.events and self.events.between(end_s - self._length_s, end_s)

    def first(self, windows: "SlidingWindows") -> "StreamWindow":
        """Return the first window, to warm up an engine."""
        while (frame := self._frames.take(10.0)) is not None:
            for window in windows.add_frame(frame.time_s, frame.pixels, frame.at):
                return window
        raise CrossdraftError("No window came to be: the camera has no signal.")

    def feeding(
        self, windows: "SlidingWindows", watch: "Watch", *, seconds: float | None, most: int | None
    ) -> AbstractContextManager[None]:
        """Feed a watch with what comes from now on."""
        from crossdraft.streams.live.feed import watching

        while self._frames.take(0) is not None:  # of before the engine was there
            pass
        self._frames.reader.dropped = 0
        return watching(self._frames, windows, watch, seconds=seconds, most=most)

    def to_json(self) -> dict[str, Any]:
        """The sources and their state, as plain values; nothing where none is live."""
        from crossdraft.streams.live.feed import sources_json

        found = sources_json(self._frames, self.events)
        return {"live": found} if found else {}


def live_sample(
    source: Path, seconds: float, hosts: list[str] | None, sensor: str | None
) -> tuple["Events | None", dict[str, Any]]:
    """Return the events of so many seconds, and the state of the source; fewer if it has ended, or on Ctrl-C.

    Raises:
        CrossdraftError: an invalid address, or the first events do not come.
    """
    from crossdraft.streams.live.read import open_events
    from crossdraft.streams.live.source import POLL_S

    events = open_events(str(source), positive("--seconds", seconds), hosts=hosts or (), sensor=size_of(sensor))
    events.reader.start()
    with closing(events.reader), suppress(KeyboardInterrupt):
        begun = perf_counter()
        events.align(begun)
        while (left_s := begun + seconds - perf_counter()) > 0 and events.reader.status().state != "ended":
            sleep(min(left_s, POLL_S))
    return events.between(-seconds, 2 * seconds), events.to_json()


def live_parts(
    source: Path, fps: float, seconds: float | None, hosts: list[str] | None, sensor: str | None
) -> Iterator["Events"]:
    """Yield the events of each 1/fps seconds as they come, for so many seconds or until the source has ended.

    Raises:
        CrossdraftError: an invalid address, or the first events do not come.
    """
    from crossdraft.events import Events
    from crossdraft.streams.live.read import open_events

    events = open_events(str(source), 1 / fps, hosts=hosts or (), sensor=size_of(sensor))
    events.reader.start()
    with closing(events.reader):
        begun, number, size = perf_counter(), 0, None
        events.align(begun)
        while (seconds is None or number < seconds * fps) and events.reader.status().state != "ended":
            number += 1
            sleep(max(0.0, begun + (number + 1) / fps - perf_counter()))  # a part later, as some events come late
            if (part := events.between((number - 1) / fps, number / fps)) is not None:
                size = part.width, part.height
            if size is not None:
                yield Events.empty(*size) if part is None else part
