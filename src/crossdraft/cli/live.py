"""Live sources on the command line: the options that `watch` and `edge` share, and the cameras of a live watch."""

from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from crossdraft.checks import positive
from crossdraft.cli.options import RecordingFile, size_of
from crossdraft.errors import CrossdraftError

if TYPE_CHECKING:
    from crossdraft.streams import SlidingWindows, StreamWindow, Watch
    from crossdraft.streams.live.events import LiveEvents


@dataclass(frozen=True, slots=True)
class LiveOptions:
    """Options for live sources."""

    live_host: Annotated[
        list[str] | None,
        typer.Option("--live-host", metavar="HOST", help="A host beside this one where a camera may be; repeatable."),
    ] = None
    clock_offset: Annotated[
        float | None,
        typer.Option(
            metavar="S", help="What the live events' clock shows at a frame, less the frame's own; default: measured."
        ),
    ] = None
    signal_timeout: Annotated[
        float, typer.Option(metavar="S", help="Seconds without data after which a camera has no signal.")
    ] = 2.0

    def events(self, camera: RecordingFile, length_s: float) -> "LiveEvents | None":
        """Make the source of live events that `--events` names, whose reader is to be started; `None` without one.

        Raises:
            CrossdraftError: it is no live address, or one that is not allowed.
        """
        from crossdraft.streams.live.read import open_events

        timeout_s, hosts = positive("--signal-timeout", self.signal_timeout), self.live_host or ()
        if camera.events is None:
            return None
        return open_events(
            str(camera.events), length_s, hosts=hosts, sensor=size_of(camera.sensor), offset_s=self.clock_offset,
            signal_timeout_s=timeout_s,
        )  # fmt: skip


class LiveCameras:
    """The camera of a live watch and the event camera beside it; they run within a context.

    Attributes:
        events: of the event camera; `None` = there is none.

    Raises:
        CrossdraftError: an invalid address.
    """

    newest = True  # of the windows that fall due after a gap

    def __init__(self, video: str, camera: RecordingFile, live: LiveOptions, length_s: float) -> None:
        from crossdraft.streams.live.address import live_address
        from crossdraft.streams.live.frames import LiveFrames

        self.events = live.events(camera, length_s)
        address = live_address(video, "video", live.live_host or ())
        self._frames = LiveFrames(address, signal_timeout_s=live.signal_timeout)
        self._held = ExitStack()

    def __enter__(self) -> "LiveCameras":
        with self._held:
            self._held.callback(self._frames.close)
            self._frames.start()
            if self.events is not None:
                self._held.callback(self.events.reader.close)
                self.events.reader.start()
                self.events.align(self._frames.zero_at, self._frames.zero_s)
            self._held = self._held.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._held.close()

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
        return watching(self._frames, windows, watch, seconds=seconds, most=most)

    def to_json(self) -> dict[str, Any]:
        """The sources and their state, as plain values."""
        video = {"video": self._frames.status().to_json()}
        return {"live": video if self.events is None else {**video, "events": self.events.to_json()}}
