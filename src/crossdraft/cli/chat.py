"""`crossdraft chat`: loads a pair once, then answers questions about a clip."""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from crossdraft.cli.options import AsJson, NoColour, PairOptions, RecordingOptions, option_groups
from crossdraft.errors import CrossdraftError

if TYPE_CHECKING:
    from rich.console import Console

    from crossdraft.api import Engine, Request

app = typer.Typer(help="Ask about a clip again and again; the models are loaded once.", add_completion=False)

PROMPT = "> "
COMMANDS = {
    "/help": "show these commands",
    "/image FILE": "show an image, too; /image none: show none",
    "/video FILE": "ask about another clip; its event recording is to be named anew",
    "/events FILE": "use another event recording; /events none: use none",
    "/drafter": "show which drafter runs, and where",
    "/quit": "leave; so does Ctrl-D. Ctrl-C cancels the answer that is being written",
}


@dataclass
class Chat:
    """A chat: the subject of its questions, and the display of answers."""

    engine: "Engine"
    pair: PairOptions
    recording: RecordingOptions  # how recordings are read; `/events` names another
    request: "Request"  # the clip, and how to answer; each question replaces its prompt
    console: "Console"
    as_json: bool
    failures: int = 0

    @property
    def video(self) -> Path | None:
        """The clip that is asked about, if there is one."""
        return None if self.request.video is None else Path(str(self.request.video))

    def show(self, plain: dict[str, object], *lines: str) -> None:
        """Print plain values as a line of JSON, or lines for people."""
        if self.as_json:
            print(json.dumps(plain, ensure_ascii=False), flush=True)
        else:
            self.console.print(*lines, sep="\n", markup=False, soft_wrap=True)


@app.command()
@option_groups
def chat(
    recording: RecordingOptions,
    pair: PairOptions,
    video: Annotated[Path | None, typer.Option(help="The clip, a video file.")] = None,
    image: Annotated[Path | None, typer.Option(help="An image (PNG, JPEG, WebP, BMP).")] = None,
    as_json: AsJson = False,
    no_color: NoColour = False,
) -> None:
    """Answer questions, about clips, images or in words, one a line, until the input ends; /help lists the commands.

    Questions may also be piped in; the exit status is then 2 if one of them could not be answered.
    """
    if video is None and image is None and pair.target == "reference":
        raise CrossdraftError(
            "There is nothing to ask about; name a clip with --video, or an image with --image. Conversations in text "
            "alone are for crossdraft ask."
        )
    pair.check(events=recording.events is not None, shows=video is not None or image is not None)
    excerpt, image = recording.excerpt(video), None if image is None else _checked(image)

    from crossdraft.cli.reporting import import_engine

    import_engine()
    from crossdraft.api import Request
    from crossdraft.cli.session import opened, with_drafter
    from crossdraft.cli.view import answer_console

    request = Request("Describe the clip.", video, excerpt, pair.max_new_tokens, image=image)
    pair = with_drafter(pair, events=recording.events is not None)
    with opened(pair, request) as engine:
        talk = Chat(engine, pair, recording, request, answer_console(plain=no_color or as_json), as_json)
        _loop(talk)
    if talk.failures and not sys.stdin.isatty():
        raise typer.Exit(2)


def _checked(image: Path) -> Path:
    """Return the path of an image; CrossdraftError if it cannot be read."""
    from crossdraft.video.image import check_image_file

    check_image_file(str(image))
    return image


def _loop(talk: Chat) -> None:
    """Answer lines until the input ends; an error in one line is reported, and the next one is read."""
    from crossdraft.cli.main import complain

    if sys.stdin.isatty() and not talk.as_json:
        about = "" if talk.video is None else f" about {talk.video}"
        talk.show({}, f"Ask{about}. /help lists the commands.")
    for line in lines():
        try:
            if line == "/quit":
                return
            if line.startswith("/"):
                command(talk, line)
            else:
                answer(talk, line)
        except CrossdraftError as error:
            talk.failures += 1
            complain(str(error))
            if talk.as_json:
                talk.show({"question": line, "error": str(error)})
        except KeyboardInterrupt:
            print("(cancelled)", file=sys.stderr)


def lines() -> Iterator[str]:
    """Yield the lines that are typed or piped in, without empty ones; Ctrl-C at the prompt begins a new line."""
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


def answer(talk: Chat, question: str) -> None:
    """Answer one question: streamed, with a line of figures below; or as a line of JSON."""
    from crossdraft.cli.ask import report
    from crossdraft.cli.session import stream
    from crossdraft.cli.view import say, show_notes
    from crossdraft.drawing.figures import one_line

    request = replace(talk.request, prompt=question)
    found = stream(talk.engine, request, None if talk.as_json else talk.console)
    if talk.as_json:
        talk.show(report(request, found, talk.engine))
        return
    say(talk.console, one_line(found), "dim")
    show_notes(talk.console, found.notes)


def command(talk: Chat, line: str) -> None:
    """Run one of `COMMANDS`; if answers are shown as JSON, its output is, too.

    Raises:
        CrossdraftError: an unknown command, or a file that cannot be used; nothing changes then.
    """
    name, _, rest = line.partition(" ")
    rest = rest.strip()
    if name == "/help":
        talk.show({"commands": COMMANDS}, *(f"{what:<14}{meaning}" for what, meaning in COMMANDS.items()))
    elif name == "/drafter":
        from crossdraft.cli.session import described

        sentence = described(talk.pair, talk.engine)
        talk.show({"drafter": talk.pair.drafter, "described": sentence}, sentence)
    elif name == "/video":
        if not rest:
            raise CrossdraftError("/video lacks a file; write /video clip.mp4.")
        video = Path(rest).expanduser()
        replace(talk.recording, events=None).excerpt(video)
        talk.request = replace(talk.request, video=video, events=None)
    elif name == "/image":
        if not rest:
            raise CrossdraftError("/image lacks a file; write /image picture.png, or /image none.")
        talk.request = replace(talk.request, image=None if rest == "none" else _checked(Path(rest).expanduser()))
    elif name == "/events":
        if not rest:
            raise CrossdraftError("/events lacks a file; write /events clip.h5, or /events none.")
        recording = replace(talk.recording, events=None if rest == "none" else Path(rest).expanduser())
        talk.request = replace(talk.request, events=recording.excerpt(talk.video))
    else:
        raise CrossdraftError(f"There is no command {name}; /help lists those there are.")
