"""`crossdraft watch`: standing questions on a sliding window of a replayed stream."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from crossdraft.cli.options import AsJson, NoColour, PairOptions, RecordingFile, RecordingOptions, Video, option_groups
from crossdraft.cli.watch_server import ReplayOptions, ServerOptions, watch_at
from crossdraft.cli.watch_view import WatchView
from crossdraft.errors import CrossdraftError

if TYPE_CHECKING:
    from crossdraft.events import Excerpt
    from crossdraft.streams import SlidingWindows, StreamWindow

app = typer.Typer(help="Ask about a stream again and again.", add_completion=False)


@app.command(context_settings={"allow_extra_args": True})  # to say where a question belongs
@option_groups
def watch(
    ctx: typer.Context,
    video: Video,
    camera: RecordingFile,
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

    With --server the clip is pushed to a server as a live stream, frame by frame in real time, and answered there.
    """
    if ctx.args:
        raise CrossdraftError(f"'{ctx.args[0][:80]}' is no option; a standing question follows --ask, each its own.")
    if not ask:
        raise CrossdraftError('There is no question; add one with --ask "What is ahead?".')
    every_s, length_s = stream.check()
    pair.check(events=camera.events is not None)
    recording = RecordingOptions(camera.events, camera.clock, camera.kind, camera.sensor)
    recording.refuse_unused()
    remote.check(pair)
    excerpt = recording.excerpt(video)
    if remote.server is not None:
        _check_recording(video, stream, length_s, every_s, excerpt)
        watch_at(remote, video, excerpt, ask, stream, pair, as_json=as_json, no_color=no_color)
        return

    from crossdraft.cli.reporting import import_engine

    import_engine()
    from crossdraft.api import Request
    from crossdraft.cli.session import opened, with_drafter
    from crossdraft.cli.view import answer_console
    from crossdraft.streams import (
        RecordedEvents,
        ReplayClock,
        SlidingWindows,
        Watch,
        Windowing,
        ask_engine,
        frames_per_window,
        replaying,
    )
    from crossdraft.video.clip import DEFAULT_FRAMES

    questions = [Request(question, max_new_tokens=pair.max_new_tokens) for question in ask]
    events = None if excerpt is None else RecordedEvents(excerpt)
    frames = pair.options.num_frames or DEFAULT_FRAMES
    first = _first(video, SlidingWindows(Windowing(every_s, length_s, frames), events))
    _check_recording(video, stream, length_s, every_s, excerpt)
    pair = with_drafter(pair, events=excerpt is not None, quiet=as_json)
    warm_up = replace(questions[0], video=first.frames, events=first.events)
    with opened(pair, warm_up) as engine:
        windowing = Windowing(every_s, length_s, frames_per_window(engine.target, length_s))
        watching, clock = Watch(ask_engine(engine), questions), ReplayClock(stream.speed)
        shown = WatchView(answer_console(plain=no_color or as_json), ask, as_json=as_json)
        windows = SlidingWindows(windowing, events)
        with replaying(video, windows, watching, clock, seconds=stream.seconds, most=stream.windows):
            try:
                for window in watching.answers(
                    lambda window, index, piece: shown.piece(window.number, window.end_s, index, piece.text)
                ):
                    shown.answered(window)
            except KeyboardInterrupt:
                shown.end_line()
        status = engine.prefill_status
    prefill = {} if status is None else {"speculative_prefill": status.to_json()}
    shown.summary(watching.summary.to_json(), {"target": pair.target, "drafter": pair.drafter, **prefill})


def _first(video: Path, windows: "SlidingWindows") -> "StreamWindow":
    """Read the first window of a clip as fast as possible, as a check that there is one and to warm up the engine.

    Raises:
        CrossdraftError: the clip cannot be read, or is shorter than a window.
    """
    from crossdraft.streams import ReplayClock, replay
    from crossdraft.video import iter_frames

    found: list[StreamWindow] = []
    with closing(iter_frames(video)) as frames:
        replay(frames, windows, found.append, ReplayClock(wait=lambda _: False), most=1)
    return found[0]


def _check_recording(
    video: Path, stream: ReplayOptions, length_s: float, every_s: float, excerpt: "Excerpt | None"
) -> None:
    """Refuse a recording that ends before the last window begins, so that this window would have no events."""
    from crossdraft.streams import Windowing
    from crossdraft.video import probe

    span = None if excerpt is None else excerpt.time_span()
    seconds = probe(video).seconds
    if excerpt is None or seconds <= 0:
        return
    seconds = seconds if stream.seconds is None else min(seconds, stream.seconds)
    windowing = Windowing(every_s, length_s)
    count = max(1, windowing.count(seconds))
    last = windowing.begins((count if stream.windows is None else min(count, stream.windows)) - 1)
    end = -1.0 if span is None else (span[1] - (excerpt.start_us or 0)) / 1e6
    if end < last:
        found = "has no events in the time of the clip" if span is None else f"ends at {end:.3f} s"
        raise CrossdraftError(
            f"The recording {excerpt.path} {found}, and the last window of {video} begins at {last:.3f} s; give a "
            "recording of all of it, or end earlier (--seconds)."
        )
