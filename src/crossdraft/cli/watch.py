"""`crossdraft watch`: standing questions on a sliding window of a replayed clip, or of cameras."""

from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import astuple, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from crossdraft.checks import is_live
from crossdraft.cli.live import LiveCameras, LiveOptions
from crossdraft.cli.options import AsJson, NoColour, PairOptions, RecordingFile, RecordingOptions, option_groups
from crossdraft.cli.watch_server import ReplayOptions, ServerOptions, watch_at
from crossdraft.cli.watch_view import WatchView
from crossdraft.errors import CrossdraftError

if TYPE_CHECKING:
    from crossdraft.streams import SlidingWindows, StreamWindow, Watch

app = typer.Typer(help="Ask about a stream again and again.", add_completion=False)


@app.command(context_settings={"allow_extra_args": True})  # to say where a question belongs
@option_groups
def watch(
    ctx: typer.Context,
    video: Annotated[
        str, typer.Option(help="The clip, a video file; or a camera, live:udp://HOST:PORT (docs/streams).")
    ],
    camera: RecordingFile,
    live: LiveOptions,
    stream: ReplayOptions,
    pair: PairOptions,
    remote: ServerOptions,
    ask: Annotated[
        list[str] | None, typer.Option("--ask", metavar="QUESTION", help="A standing question; repeatable.")
    ] = None,
    as_json: AsJson = False,
    no_color: NoColour = False,
) -> None:
    """Answer standing questions about a sliding window of a clip, which is replayed in real time, until it ends.

    The latest window wins: one that falls due while another is answered replaces the one that waits, which is counted
    as dropped. A line that begins with ! says that an answer changed. Ctrl-C ends it, with the summary.

    --video and --events take cameras, too, as live:udp://127.0.0.1:5000 and live:tcp://127.0.0.1:7777.

    With --server the clip is pushed to a server as a live stream, frame by frame in real time, and answered there.
    """
    if ctx.args:
        raise CrossdraftError(f"'{ctx.args[0][:80]}' is no option; a standing question follows --ask, each its own.")
    if not ask:
        raise CrossdraftError('There is no question; add one with --ask "What is ahead?".')
    every_s, length_s = stream.check()
    pair.check(events=camera.events is not None)
    are_live = [is_live(source) for source in (video, camera.events) if source is not None]
    remote.check(pair, live=any(are_live))
    live.check(camera)
    if any(are_live) and stream.speed != 1:
        raise CrossdraftError("--speed is about a file, which is replayed; a live source comes in its own time.")
    if all(are_live):
        source = LiveCameras(video, camera, live, length_s)
    elif any(are_live):
        raise CrossdraftError("--video and --events must both be files or both be live:….")
    else:
        source = _Clip(Path(video), camera, stream)
        if remote.server is not None:
            source.check(every_s, length_s)
            watch_at(remote, source.video, source.excerpt, ask, stream, pair, as_json=as_json, no_color=no_color)
            return

    from crossdraft.cli.reporting import import_engine

    import_engine()
    from crossdraft.api import Request
    from crossdraft.cli.session import opened, with_drafter
    from crossdraft.cli.view import answer_console
    from crossdraft.streams import SlidingWindows, Watch, WatchSummary, Windowing, ask_engine, frames_per_window
    from crossdraft.video.clip import DEFAULT_FRAMES

    questions = [Request(question, max_new_tokens=pair.max_new_tokens) for question in ask]
    frames = pair.options.num_frames or DEFAULT_FRAMES
    shown = WatchView(answer_console(plain=no_color or as_json), ask, as_json=as_json)
    summary, prefill = WatchSummary(), {}
    try:
        with source:
            first = source.first(SlidingWindows(Windowing(every_s, length_s, frames), source.events))
            pair = with_drafter(pair, events=camera.events is not None, quiet=as_json)
            with opened(pair, replace(questions[0], video=first.frames, events=first.events)) as engine:
                windowing = Windowing(every_s, length_s, frames_per_window(engine.target, length_s))
                watching = Watch(ask_engine(engine), questions)
                summary = watching.summary
                windows = SlidingWindows(windowing, source.events, newest=source.newest)
                with source.feeding(windows, watching, seconds=stream.seconds, most=stream.windows):
                    try:
                        for window in watching.answers(
                            lambda window, index, piece: shown.piece(window.number, window.end_s, index, piece.text),
                            lambda there: shown.signal(source.to_json(), there=there),
                        ):
                            shown.answered(window.to_json())
                    except KeyboardInterrupt:
                        shown.end_line()
                prefill = {} if (status := engine.prefill_status) is None else {"speculative_prefill": status.to_json()}
    except KeyboardInterrupt:  # before the first window
        shown.end_line()
    shown.summary(summary.to_json() | source.to_json(), {"target": pair.target, "drafter": pair.drafter, **prefill})


class _Clip(nullcontext[None]):
    """A clip that is replayed, and a recording beside it."""

    newest = False

    def __init__(self, video: Path, camera: RecordingFile, stream: ReplayOptions) -> None:
        super().__init__()
        from crossdraft.streams import RecordedEvents

        recording = RecordingOptions(*astuple(camera))
        recording.refuse_unused()
        self.video, self.excerpt, self._stream = video, recording.excerpt(video), stream
        self.events = None if self.excerpt is None else RecordedEvents(self.excerpt)

    def feeding(
        self, windows: "SlidingWindows", watch: "Watch", *, seconds: float | None, most: int | None
    ) -> AbstractContextManager[None]:
        """Feed a watch with the clip, in its time."""
        from crossdraft.streams import ReplayClock, replaying

        return replaying(self.video, windows, watch, ReplayClock(self._stream.speed), seconds=seconds, most=most)

    def to_json(self) -> dict[str, object]:
        """Return no state: a file is as it is."""
        return {}

    def first(self, windows: "SlidingWindows") -> "StreamWindow":
        """Read the first window of the clip as fast as possible, to check that there is one and to warm up the engine.

        Raises:
            CrossdraftError: the clip cannot be read, or is shorter than a window.
        """
        from crossdraft.streams import ReplayClock, replay
        from crossdraft.video import iter_frames

        found: list[StreamWindow] = []
        with closing(iter_frames(self.video)) as frames:
            replay(frames, windows, found.append, ReplayClock(wait=lambda _: False), most=1)
        self.check(windows.windowing.every_s, windows.windowing.length_s)
        return found[0]

    def check(self, every_s: float, length_s: float) -> None:
        """Refuse a recording that ends before the last window begins, so that this window would have no events."""
        from crossdraft.streams import Windowing
        from crossdraft.video import probe

        excerpt, stream = self.excerpt, self._stream
        seconds = probe(self.video).seconds
        if excerpt is None or seconds <= 0:
            return
        seconds = seconds if stream.seconds is None else min(seconds, stream.seconds)
        windowing = Windowing(every_s, length_s)
        count = max(1, windowing.count(seconds))
        last = windowing.begins((count if stream.windows is None else min(count, stream.windows)) - 1)
        span = excerpt.time_span()
        end = -1.0 if span is None else (span[1] - (excerpt.start_us or 0)) / 1e6
        if end < last:
            found = "has no events in the time of the clip" if span is None else f"ends at {end:.3f} s"
            raise CrossdraftError(
                f"The recording {excerpt.path} {found}, and the last window of {self.video} begins at {last:.3f} s; "
                "give a recording of all of it, or end earlier (--seconds)."
            )
