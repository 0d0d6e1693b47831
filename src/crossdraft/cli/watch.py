"""`crossdraft watch`: standing questions on a sliding window of a replayed stream."""

import json
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from crossdraft.checks import positive, whole
from crossdraft.cli.options import (
    AsJson,
    NoColour,
    PairOptions,
    RecordingFile,
    RecordingOptions,
    Video,
    duration,
    option_groups,
)
from crossdraft.errors import CrossdraftError

if TYPE_CHECKING:
    from rich.console import Console

    from crossdraft.engine.request import Piece
    from crossdraft.events import Excerpt
    from crossdraft.streams import AnsweredWindow, SlidingWindows, StreamWindow, Watch

app = typer.Typer(help="Ask about a stream again and again.", add_completion=False)


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """Which windows, and how the clip is replayed."""

    every: Annotated[str, typer.Option(metavar="TIME", help="From window to window, as 500ms or 0.5s.")] = "500ms"
    window: Annotated[str, typer.Option(metavar="TIME", help="What a window shows, up to its last frame.")] = "1s"
    speed: Annotated[float, typer.Option(help="1 = in real time, 2 = twice as fast.")] = 1.0
    windows: Annotated[
        int | None, typer.Option(metavar="N", help="End after so many windows, dropped ones included.")
    ] = None
    seconds: Annotated[float | None, typer.Option(metavar="S", help="End after so many seconds of the stream.")] = None

    def check(self) -> tuple[float, float]:
        """Seconds from window to window, and of a window.

        Raises:
            CrossdraftError: a value without sense.
        """
        every_s, length_s = duration("--every", self.every), duration("--window", self.window)
        positive("--speed", self.speed)
        if self.windows is not None:
            whole("--windows", self.windows)
        if self.seconds is not None:
            positive("--seconds", self.seconds)
            if self.seconds < length_s:
                raise CrossdraftError(
                    f"--seconds is {self.seconds:g}, and the first window is due after {length_s:g} s (--window)."
                )
        return every_s, length_s


@app.command()
@option_groups
def watch(
    video: Video,
    camera: RecordingFile,
    stream: ReplayOptions,
    pair: PairOptions,
    ask: Annotated[
        list[str] | None, typer.Option("--ask", metavar="QUESTION", help="A standing question; repeatable.")
    ] = None,
    as_json: AsJson = False,
    no_color: NoColour = False,
) -> None:
    """Answer standing questions about a sliding window of a clip, which is replayed in real time, until it ends.

    The latest window wins: one that falls due while another is answered replaces the one that waits, which is counted
    as dropped. A line that begins with ! says that an answer changed. Ctrl-C ends it, with the summary.
    """
    if not ask:
        raise CrossdraftError('There is no question; add one with --ask "What is ahead?".')
    every_s, length_s = stream.check()
    pair.check()
    recording = RecordingOptions(camera.events, camera.clock, camera.kind, camera.sensor)
    recording.refuse_unused()
    excerpt = recording.excerpt(video)

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
    first = _first(video, SlidingWindows(Windowing(every_s, length_s, pair.frames or DEFAULT_FRAMES), events))
    _check_recording(video, stream, length_s, every_s, excerpt)
    pair = with_drafter(pair, events=excerpt is not None, quiet=as_json)
    if len(ask) == 1 and pair.cache_bytes is None:  # no other question comes about a window: nothing need be kept of it
        pair = replace(pair, cache_bytes=0)
    with opened(pair, replace(questions[0], video=first.frames, events=first.events)) as engine:
        windowing = Windowing(every_s, length_s, frames_per_window(engine.target, length_s))
        watching, clock = Watch(ask_engine(engine), questions), ReplayClock(stream.speed)
        shown = _View(answer_console(plain=no_color or as_json), ask, as_json=as_json)
        windows = SlidingWindows(windowing, events)
        with replaying(video, windows, watching, clock, seconds=stream.seconds, most=stream.windows):
            try:
                for window in watching.answers(shown.piece):
                    shown.answered(window)
            except KeyboardInterrupt:
                shown.end_line()
    shown.summary(watching, pair)


def _first(video: Path, windows: "SlidingWindows") -> "StreamWindow":
    """The first window of a clip, read as fast as it can be: whether there is one, and what the engine is warmed with.

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
    """Refuse a recording that ends before the last window begins, so that none of its events would be in that."""
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


class _View:
    """What is shown: for each answer a line that grows; or a line of JSON for each window."""

    def __init__(self, console: "Console", questions: list[str], *, as_json: bool) -> None:
        self._console = console
        self._questions = questions
        self._as_json = as_json
        self._line: tuple[int, int] | None = None  # window and question whose line is being written
        self._noted: set[str] = set()

    def piece(self, window: "StreamWindow", index: int, piece: "Piece") -> None:
        """A piece of an answer has appeared."""
        if self._as_json:
            return
        text = " ".join(piece.text.splitlines())
        if self._line != (window.number, index):
            self.end_line()
            self._line, text = (window.number, index), text.lstrip()
            which = f"{index + 1}. " if len(self._questions) > 1 else ""
            self._print(f"{window.end_s:8.2f} s {which}", "dim")
        self._print(text)

    def answered(self, window: "AnsweredWindow") -> None:
        """All questions about a window have been answered."""
        if self._as_json:
            print(json.dumps(window.to_json(), ensure_ascii=False), flush=True)
            return
        first, last = window.answers[0].first_s, window.answers[-1].whole_s
        self._print(f"  ({1e3 * first:.0f} to {1e3 * last:.0f} ms)", "dim")
        self.end_line()
        for one in window.answers:
            for note in sorted({*one.answer.notes} - self._noted):  # each once
                self._print(f"{note}\n", "yellow")
                self._noted.add(note)
            if one.changed:
                self._print(f"! {window.end_s:6.2f} s {one.question} changed, it was: {one.before}\n", "bold yellow")

    def end_line(self) -> None:
        """End the line that is being written, if there is one, as Ctrl-C does."""
        if self._line is not None:
            self._print("\n")
            self._line = None

    def summary(self, watching: "Watch", pair: PairOptions) -> None:
        """How it went."""
        found = watching.summary
        if self._as_json:
            plain = {"summary": {"target": pair.target, "drafter": pair.drafter, **found.to_json()}}
            print(json.dumps(plain, ensure_ascii=False), flush=True)
            return
        self._print("\n" + "\n".join(found.sentences()) + "\n")

    def _print(self, text: str, style: str | None = None) -> None:
        self._console.print(text, style=style, markup=False, soft_wrap=True, end="")
        self._console.file.flush()
