"""`crossdraft edge`: draft beside the event camera for a target in the cloud."""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from crossdraft.checkpoints.files import check_tokenizer
from crossdraft.checkpoints.locate import TARGETS, shipped_or_found
from crossdraft.checks import is_live, whole
from crossdraft.cli.live import LiveCameras, LiveOptions
from crossdraft.cli.options import (
    MAX_SECONDS,
    AsJson,
    NoColour,
    RecordingFile,
    check_values,
    duration,
    option_groups,
    size_of,
)
from crossdraft.errors import CrossdraftError
from crossdraft.side_text import read_text

if TYPE_CHECKING:
    from rich.console import Console

    from crossdraft.edge.client import EdgeAnswer, EdgeClient, Show
    from crossdraft.edge.frames import Welcome
    from crossdraft.edge.tls import TlsFiles
    from crossdraft.engine.drafter import Drafter
    from crossdraft.engine.request import Request
    from crossdraft.events import Excerpt

app = typer.Typer(help="Draft beside an event camera for a target in the cloud.", add_completion=False)

WARM_UP_NODES = 8
TOP_K = 64  # entries of each distribution that are sent
KNOWN_THERE = re.compile(r"(file|https?|data):|file-[0-9a-f]{32}$", re.IGNORECASE)  # what a server knows a clip by


@dataclass(frozen=True, slots=True)
class CloudOptions:
    """Options for reaching the target and sampling the answer."""

    server: Annotated[str, typer.Option(help="The server, ws://HOST:PORT or wss://HOST.")]
    key: Annotated[str | None, typer.Option(envvar="CROSSDRAFT_KEY", help="API key.", show_envvar=True)] = None
    model: Annotated[str | None, typer.Option(help="Name of the model there; by default what the server says.")] = None
    max_new_tokens: Annotated[int | None, typer.Option(help="Longest answer, in tokens.")] = None
    temperature: Annotated[float, typer.Option(help="0 = greedy.")] = 0.0
    top_k: Annotated[int | None, typer.Option(help="Draw from the k likeliest tokens; 0 = all.")] = None
    top_p: Annotated[float | None, typer.Option(help="Draw from the likeliest tokens of this mass; 1 = all.")] = None
    draft_top_k: Annotated[
        int,
        typer.Option(
            help="Where the server believes distributions (edge:draws=yes): those of the k likeliest tokens; 0 = all."
        ),
    ] = TOP_K
    ca: Annotated[
        Path | None, typer.Option(help="Authorities of the server's certificate, PEM; default: the system's.")
    ] = None
    cert: Annotated[Path | None, typer.Option(help="The edge's own certificate, PEM, for mutual TLS.")] = None
    cert_key: Annotated[Path | None, typer.Option(help="Its key; by default in the same file.")] = None
    patience: Annotated[float, typer.Option(metavar="S", help="Seconds for which a cut connection is tried anew.")] = 30


@app.command()
@option_groups
def edge(
    cloud: CloudOptions,
    camera: RecordingFile,
    live: LiveOptions,
    prompt: Annotated[list[str], typer.Option("--prompt", metavar="QUESTION", help="What to ask; repeatable.")],
    video: Annotated[
        str | None,
        typer.Option(
            help="The clip: a file here, which is uploaded, and deleted there at the end; what the server calls it "
            "(file:NAME, an id); or a camera, live:udp://HOST:PORT."
        ),
    ] = None,
    window: Annotated[
        str, typer.Option(metavar="TIME", help="What a question shows of cameras, up to now, as 500ms or 1s.")
    ] = "1s",
    prediction: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="What the answers may be, or nearly so; sent with each question."),
    ] = None,
    drafter: Annotated[str, typer.Option(help="What drafts here: event, ngram …; none.")] = "event",
    target: Annotated[str, typer.Option(help="The target's folder, of which the tokenizer is read; or reference.")] = (
        "reference"
    ),
    device: Annotated[str | None, typer.Option(help="Device of the drafter.")] = None,
    as_json: AsJson = False,
    no_color: NoColour = False,
) -> None:
    """Ask a server about a clip, and draft here from what an event camera saw: what is drafted is on its way at once.

    The answer is the target's own, whatever is drafted. A connection that is cut is made anew, and the answer goes on.
    --events may name a folder: the newest recording in it is read. --events and --video take cameras, too, as
    live:tcp://127.0.0.1:7777 and live:udp://127.0.0.1:5000: each question is about what they saw last.
    """
    check_values(device=device, max_new_tokens=cloud.max_new_tokens)
    whole("--draft-top-k", cloud.draft_top_k, 0)
    if not 0 <= cloud.patience <= MAX_SECONDS:  # also refuses NaN
        raise CrossdraftError(f"--patience is {cloud.patience:g} s; give seconds, 0 to {MAX_SECONDS:g}.")
    _check_sources(video, camera, live)
    length_s = duration("--window", window)
    excerpt = None if is_live(camera.events) else _excerpt(camera, video)
    check_tokenizer(shipped_or_found(target, TARGETS))
    _check_drafter(drafter, target, events=camera.events is not None)
    from crossdraft.engine.sampling import Sampling

    drawn = Sampling(cloud.temperature, cloud.top_k, cloud.top_p)
    said = {} if prediction is None else {"prediction": {"type": "content", "content": read_text(prediction)}}
    from crossdraft.cli.reporting import hush
    from crossdraft.cli.view import answer_console, say, show_notes
    from crossdraft.edge.client import EdgeClient
    from crossdraft.edge.frames import CHAT_BYTES, fingerprint_of
    from crossdraft.edge.tls import TlsFiles
    from crossdraft.engine.request import Request
    from crossdraft.load import text_reader, tokenizer_of

    if len(json.dumps(said)) > CHAT_BYTES // 2:
        raise CrossdraftError(f"--prediction is of more than {CHAT_BYTES // 2:,} bytes in JSON; give a shorter one.")
    hush()
    tokenizer = tokenizer_of(target)
    fingerprint, console = fingerprint_of(tokenizer.get_vocab()), answer_console(plain=no_color or as_json)
    tls, patience_s, top_k = TlsFiles(cloud.ca, cloud.cert, cloud.cert_key), cloud.patience, cloud.draft_top_k
    with (
        EdgeClient(
            cloud.server, cloud.key, drafter, fingerprint, patience_s=patience_s, draft_top_k=top_k, tls=tls
        ) as client,
        _interruptible(client, prompt, as_json=as_json) as answered,
    ):
        try:
            welcome = client.open()
        except (OSError, EOFError) as error:
            raise CrossdraftError(
                f"The server {cloud.server} cannot be reached ({error}); check the address."
            ) from None
        drafts = None if drafter == "none" else _drafter(drafter, target, device, welcome)
        reads = text_reader(target, welcome.reserved) if drafts is not None and drafts.needs.prompt else None
        with (
            _clip(cloud, video, tls) as clip,
            LiveCameras(video, camera, live, length_s) as cameras,
            TemporaryDirectory() as folder,
        ):
            own, file = None if is_live(video) else video, Path(folder, "clip.mp4")
            events = excerpt or cameras.seen(file)[1]
            if drafts is not None and (events is not None or camera.events is None):
                _warm_up(drafts, Request(prompt[0], events=events, max_new_tokens=cloud.max_new_tokens))
            for question in prompt:
                written, events = cameras.seen(file)
                # The video is only the clip's name here: a drafter may have memorised something about the same clip.
                request = Request(question, own, excerpt or events, cloud.max_new_tokens, drawn)
                if reads is not None:
                    request = replace(request, prompt_ids=reads(request))
                with (
                    _clip(cloud, str(file), tls) if written else nullcontext(clip) as asked,
                    _shown(console, as_json=as_json, tokenizer=tokenizer) as show,
                ):
                    answer = client.ask(_chat(cloud, welcome.model, question, asked) | said, request, drafts, show)
                answered.append(answer)
                if as_json:
                    typer.echo(json.dumps(report(question, answer) | cameras.to_json(), ensure_ascii=False))
                else:
                    for line in figures(answer):
                        say(console, line)
                    show_notes(console, answer.notes)


@contextmanager
def _interruptible(client: "EdgeClient", prompt: list[str], *, as_json: bool) -> "Iterator[list[EdgeAnswer]]":
    """Yield a list for the answers; on Ctrl-C, say how many there are, and what came of the next."""
    answered: list[EdgeAnswer] = []
    try:
        yield answered
    except KeyboardInterrupt:
        part, count = client.answer, len(answered)
        begun = part.total_s > 0 and all(part is not one for one in answered)
        if begun and as_json:
            typer.echo(json.dumps(report(prompt[count], part) | {"finish": "interrupted"}, ensure_ascii=False))
        came = f"; {len(part.tokens)} tokens of the next came" if begun else ""
        typer.echo(f"Interrupted: {count} of {len(prompt)} questions were answered{came}.", err=True)
        raise


def _check_sources(video: str | None, camera: RecordingFile, live: LiveOptions) -> None:
    """Refuse options that the source does not use, and a clip that is neither here nor known to the server."""
    live.check(camera)
    if video is None or is_live(video) or Path(video).is_file() or KNOWN_THERE.match(video):
        return
    raise CrossdraftError(
        f"There is no file {video} here; check the path, or name what the server has: file:NAME, or an upload's id."
    )


@contextmanager
def _clip(cloud: CloudOptions, video: str | None, tls: "TlsFiles") -> "Iterator[str | None]":
    """Yield the clip's name in requests; a local file is on the server while the context is open."""
    if video is None or not Path(video).is_file():
        yield None if is_live(video) else video
        return
    from crossdraft.edge.upload import uploaded

    with uploaded(cloud.server, cloud.key, Path(video), tls) as kept:
        yield kept


def _excerpt(camera: RecordingFile, video: str | None) -> "Excerpt | None":
    """Excerpt of the recording that a clip shows; without a local clip, the recording's end."""
    from crossdraft.cli.options import RecordingOptions

    path = camera.events
    if path is not None and path.is_dir():
        from crossdraft.events.read import BY_CONTENT, SUFFIXES

        named = [one for one in path.iterdir() if one.suffix.lower() in SUFFIXES.keys() | BY_CONTENT.keys()]
        files = [one for one in named if one.is_file() and not one.name.startswith(".")]
        if not files:
            raise CrossdraftError(f"The folder {path} holds no recording, by the names of its files; give the file.")
        path = max(files, key=lambda one: one.stat().st_mtime_ns)
    recording = RecordingOptions(path, *astuple(camera)[1:])
    recording.refuse_unused()
    if video is not None and Path(video).is_file():
        return recording.excerpt(Path(video))
    from crossdraft.events import Excerpt

    size = size_of(camera.sensor)
    return None if path is None else Excerpt(path, format=camera.kind, sensor=size, time_unit=camera.time_unit)


def _check_drafter(drafter: str, target: str, *, events: bool) -> None:
    from crossdraft.methods import METHODS, check_drafter_files, check_spec, placements, read_spec

    if drafter == "none":
        return
    spec = read_spec(drafter)
    check_spec(spec)
    if "edge" not in placements(spec):
        raise CrossdraftError(
            f"The drafter {drafter} reads the target, its passes or the clip, which are not here; try event."
        )
    if not events and any("events" in METHODS[name].senses for name in spec.names if name in METHODS):
        raise CrossdraftError(f"The drafter {drafter} needs an event recording; give one with --events.")
    check_drafter_files(spec, target)


def _drafter(name: str, target: str, device: str | None, welcome: "Welcome") -> "Drafter[Any]":
    from crossdraft.methods import build
    from crossdraft.records import DrafterContext

    context = DrafterContext(
        target, device=device, vocab_size=welcome.vocabulary, eos=welcome.eos, banned=welcome.reserved
    )
    return build(name, context)


def _warm_up(drafter: "Drafter[Any]", request: "Request") -> None:
    """Draft once and drop the draft, so that first-time costs are paid before the first question."""
    from crossdraft.engine.drafter import Budget

    states = drafter.begin([request])
    drafter.propose(states, [Budget(WARM_UP_NODES)])
    drafter.end(states)


def _chat(cloud: CloudOptions, model: str, question: str, video: str | None) -> dict[str, object]:
    """Make the body of `/v1/chat/completions`."""
    content: list[object] = [] if video is None else [{"type": "video_url", "video_url": {"url": video}}]
    content.append({"type": "text", "text": question})
    given = {"max_tokens": cloud.max_new_tokens, "top_k": cloud.top_k, "top_p": cloud.top_p}
    return {
        "model": cloud.model or model,
        "messages": [{"role": "user", "content": content}],
        "temperature": cloud.temperature,
        **{name: value for name, value in given.items() if value is not None},
    }


@contextmanager
def _shown(console: "Console", *, as_json: bool, tokenizer: Any) -> "Iterator[Show]":
    """Show pieces on a console as they come; provisional ones have only tokens."""
    from crossdraft.cli.view import live_view
    from crossdraft.engine.detokenize import AnswerText, TokenText
    from crossdraft.engine.request import Origin, Piece

    provisional = AnswerText(TokenText(lambda ids: str(tokenizer.decode(list(ids), skip_special_tokens=True))))
    with live_view(None if as_json else console) as add:

        def show(origin: Origin, tokens: tuple[int, ...], text: str) -> None:
            said = provisional.push(tokens) if origin is Origin.PROVISIONAL else text
            add(Piece(tokens, said, origin))

        yield show


def report(question: str, answer: "EdgeAnswer") -> dict[str, object]:
    """Report for `--json` on an answer."""
    return {"question": question, **vars(answer)}


def figures(answer: "EdgeAnswer") -> list[str]:
    """Figures of an answer, in lines for people."""

    def ms(seconds: float | None) -> str:
        return "none" if seconds is None else f"{1e3 * seconds:.0f} ms"

    metrics = answer.report.get("metrics", {})
    drafts, frames = answer.sent["draft"], answer.frames["draft"]
    hidden, accepted = (metrics.get(f"hidden_{what}_tokens", 0) for what in ("draft", "accepted"))
    link = answer.report.get("edge", {})
    first = f"first provisional {ms(answer.first_provisional_s)}, first final {ms(answer.first_s)}"
    sent = f"sent {sum(answer.sent.values()):,} bytes, {drafts:,} of them drafts in {frames} frames"
    lines = [
        f"{first}, all {ms(answer.total_s)}, {len(answer.tokens)} tokens",
        f"accepted {accepted} of {hidden} tokens that were drafted while the target read; {_link(link)}",
        f"{sent}; received {sum(answer.received.values()):,}; cuts: {answer.cuts}",
    ]
    return [*lines, *([f"The edge drafted no more: {answer.drafter_error}"] if answer.drafter_error else [])]


def _link(link: Mapping[str, Any]) -> str:
    """Describe the connection as the cloud measured it, and the policy that follows from that."""
    rate = link.get("mbit_s")
    known = "no bound seen" if rate is None else f"{rate:g} Mbit/s"
    times = ", ".join(f"{name} {link.get(f'{key}_ms')} ms" for name, key in (("round trip", "rtt"), ("reply", "reply")))
    return f"{times}, {known}; policy: {link.get('policy')}"
