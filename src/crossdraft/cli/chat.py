"""`crossdraft chat`: load a pair once, then ask about a clip again and again."""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from crossdraft.cli.ask import (
    AsJson,
    Device,
    DraftCores,
    DraftDevice,
    Drafter,
    Dtype,
    EventFile,
    Fps,
    Frames,
    NoColour,
    Placement,
    TargetCores,
    TargetDir,
    Video,
)
from crossdraft.cli.inputs import (
    Clock,
    EventsEnd,
    EventsStart,
    EventWindows,
    Format,
    Part,
    SensorSize,
    check_files,
    check_values,
    size_of,
)
from crossdraft.errors import CrossdraftError

if TYPE_CHECKING:
    from rich.console import Console

    from crossdraft.api import Engine, Request
    from crossdraft.cli.session import Setup
    from crossdraft.events import Excerpt

app = typer.Typer(help="Ask about a clip again and again; the models are loaded once.", add_completion=False)

PROMPT = "> "
COMMANDS = {
    "/help": "show these commands",
    "/video FILE": "ask about another clip; its event recording is to be named anew",
    "/events FILE": "use another event recording; /events none: use none",
    "/drafter": "show which drafter runs, and where",
    "/quit": "leave; so does Ctrl-D. Ctrl-C cancels the answer that is being written",
}


@dataclass
class Chat:
    """What the questions are about."""

    engine: "Engine"
    setup: "Setup"
    request: "Request"  # the clip, and how to answer; each question replaces its prompt
    reader: "Reader"
    failures: int = field(default=0)


@dataclass(frozen=True)
class Reader:
    """How event recordings are read: as `check_files`."""

    clock: Clock
    kind: str | None
    sensor: tuple[int, int] | None
    part: Part

    def excerpt(self, video: Path, events: Path | None) -> "Excerpt | None":
        """The part of the recording that the video shows, after both were looked at."""
        return check_files(video, events, self.clock, self.kind, self.sensor, self.part)


@app.command()
def chat(
    video: Video,
    events: EventFile = None,
    clock: Annotated[Clock, typer.Option(help="What the events' times count from.")] = Clock.AUTO,
    kind: Format = None,
    sensor: SensorSize = None,
    events_start: EventsStart = None,
    events_end: EventsEnd = None,
    events_windows: EventWindows = 1,
    target: TargetDir = "reference",
    drafter: Drafter = None,
    placement: Placement = None,
    target_cores: TargetCores = None,
    draft_cores: DraftCores = None,
    device: Device = None,
    draft_device: DraftDevice = None,
    dtype: Dtype = None,
    frames: Frames = None,
    fps: Fps = None,
    max_new_tokens: Annotated[
        int | None, typer.Option(help="Longest answer, in tokens; by default as the checkpoint says, else 128.")
    ] = None,
    as_json: AsJson = False,
    no_color: NoColour = False,
) -> None:
    """Answer questions about a clip, one a line, until the input ends; /help lists the commands.

    Questions may also be piped in; the exit status is then 2 if one of them could not be answered.
    """
    check_values(
        drafter=drafter,
        placement=placement,
        target_cores=target_cores,
        draft_cores=draft_cores,
        device=device,
        draft_device=draft_device,
        dtype=dtype,
        frames=frames,
        fps=fps,
        max_new_tokens=max_new_tokens,
    )
    reader = Reader(clock, kind, size_of(sensor), Part(events_start, events_end, events_windows))
    excerpt = reader.excerpt(video, events)

    from crossdraft.api import Request
    from crossdraft.cli.session import Setup, opened

    request = Request("Describe the clip.", video, excerpt, max_new_tokens)
    setup = Setup(
        target,
        drafter,
        placement,
        device=device,
        dtype=dtype,
        draft_device=draft_device,
        target_cores=target_cores,
        draft_cores=draft_cores,
        num_frames=frames,
        fps=fps,
    ).chosen(events=events is not None)
    setup.tell()
    with opened(setup, request) as engine:
        talk = Chat(engine, setup, request, reader)
        _loop(talk, as_json=as_json, no_color=no_color)
    if talk.failures and not sys.stdin.isatty():
        raise typer.Exit(2)


def _loop(talk: Chat, *, as_json: bool, no_color: bool) -> None:
    """Read a line, do what it says; a bad one costs a sentence and nothing else."""
    from crossdraft.cli.main import complain
    from crossdraft.cli.view.terminal import coloured, console_for

    colour = coloured(wanted=not no_color and not as_json)
    console = console_for(colour=colour)
    if sys.stdin.isatty() and not as_json:
        console.print(f"Asking about {talk.request.video}. /help lists the commands.", markup=False, soft_wrap=True)
    for line in lines():
        try:
            if line == "/quit":
                return
            if line.startswith("/"):
                command(talk, line, console, as_json=as_json)
            else:
                answer(talk, line, console, as_json=as_json)
        except CrossdraftError as error:
            talk.failures += 1
            complain(str(error))
            if as_json:
                print(json.dumps({"question": line, "error": str(error)}, ensure_ascii=False), flush=True)
        except KeyboardInterrupt:
            print("(cancelled)", file=sys.stderr)


def lines() -> Iterator[str]:
    """What is typed or piped in, without empty lines; Ctrl-C at the prompt begins a new line."""
    typed = sys.stdin.isatty()
    if typed:
        import readline  # noqa: F401 - gives `input` a history and its keys
    while True:
        try:
            line = input(PROMPT if typed else "").strip()
        except EOFError:
            if typed:
                print(file=sys.stderr)
            return
        except KeyboardInterrupt:
            if not typed:
                raise
            print(file=sys.stderr)
            continue
        if line:
            yield line


def answer(talk: Chat, question: str, console: "Console", *, as_json: bool) -> None:
    """One question: streamed, with a line of figures below; or a line of JSON."""
    from crossdraft.cli.ask import report
    from crossdraft.cli.session import stream, view_for
    from crossdraft.drawing.figures import one_line

    request = replace(talk.request, prompt=question)
    found = stream(talk.engine, request, view_for(console, as_json=as_json))
    if as_json:
        print(json.dumps(report(request, found, talk.engine.target, None), ensure_ascii=False), flush=True)
        return
    console.print(one_line(found), style="dim", markup=False, soft_wrap=True)
    for note in found.notes:
        console.print(note, style="yellow", markup=False, soft_wrap=True)


def command(talk: Chat, line: str, console: "Console", *, as_json: bool) -> None:
    """One of `COMMANDS`; what it shows is a line of JSON, too, where the answers are.

    Raises:
        CrossdraftError: an unknown one, or a file that cannot be used; everything then stays as it was.
    """
    name, _, rest = line.partition(" ")
    rest = rest.strip()
    if name == "/help":
        shown = [f"{what:<14}{meaning}" for what, meaning in COMMANDS.items()]
        _show({"commands": COMMANDS} if as_json else shown, console)
    elif name == "/drafter":
        said = talk.setup.described(talk.engine)
        _show({"drafter": talk.setup.drafter, "described": said} if as_json else [said], console)
    elif name == "/video":
        if not rest:
            raise CrossdraftError("/video lacks a file; write /video clip.mp4.")
        video = Path(rest).expanduser()
        talk.reader.excerpt(video, None)
        talk.request = replace(talk.request, video=video, events=None)
    elif name == "/events":
        if not rest:
            raise CrossdraftError("/events lacks a file; write /events clip.h5, or /events none.")
        events = None if rest == "none" else Path(rest).expanduser()
        video = Path(str(talk.request.video))
        talk.request = replace(talk.request, events=talk.reader.excerpt(video, events))
    else:
        raise CrossdraftError(f"There is no command {name}; /help lists those there are.")


def _show(what: dict[str, object] | list[str], console: "Console") -> None:
    """Plain values as a line of JSON, or lines for people."""
    if isinstance(what, dict):
        print(json.dumps(what, ensure_ascii=False), flush=True)
    else:
        console.print(*what, sep="\n", markup=False, soft_wrap=True)
