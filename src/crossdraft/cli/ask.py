"""`crossdraft ask`: a question about a clip, answered while you watch who wrote what."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from crossdraft.cli.inputs import (
    Clock,
    EventsEnd,
    EventsStart,
    EventWindows,
    Format,
    Part,
    SensorSize,
    check_files,
    size_of,
)
from crossdraft.drafters.spec import parse
from crossdraft.errors import CrossdraftError

if TYPE_CHECKING:
    from rich.console import Console

    from crossdraft.cli.compare import Comparison
    from crossdraft.drawing.figures import Baseline
    from crossdraft.engine.request import Answer, Request
    from crossdraft.engine.target import Target

app = typer.Typer(help="Ask a question about a clip.")

Video = Annotated[Path, typer.Option(help="The clip, a video file.")]
EventFile = Annotated[
    Path | None,
    typer.Option("--events", help="What an event camera saw of the same moment (DSEC .h5, .npy, …)."),
]
TargetDir = Annotated[
    str, typer.Option("--target", help="'reference', or the folder of a Hugging Face checkpoint.")
]
Drafter = Annotated[
    str,
    typer.Option(
        help="event, blind, text, ngram, memory:folder=DIR, union:event,memory …, none, or the folder of an EventGPT."
    ),
]
Placement = Annotated[
    str | None, typer.Option(help="inline or process; by default a process if a core is free for it.")
]
Hidden = Annotated[str, typer.Option(help="Inline, draft for the prefill: auto, before, beside or off.")]
TargetCores = Annotated[
    str | None, typer.Option(help="CPU cores of the target, such as 0,2-3; by default all but one.")
]
DraftCores = Annotated[str | None, typer.Option(help="CPU cores of the drafter's process; one by default.")]
Device = Annotated[str | None, typer.Option(help="Of the target; CUDA if there is a GPU, else CPU.")]
DraftDevice = Annotated[str | None, typer.Option(help="Of the drafter; the target's by default.")]
Dtype = Annotated[str | None, typer.Option(help="float32, bfloat16 …; float32 on a CPU, bfloat16 on a GPU.")]
Compare = Annotated[
    bool, typer.Option("--compare", help="Also run the target alone: same tokens? how much faster?")
]
AsJson = Annotated[bool, typer.Option("--json", help="Everything as JSON on standard output, nothing else.")]
NoColour = Annotated[bool, typer.Option("--no-color", help="Plain text, no escape codes.")]


@app.command()
def ask(
    question: Annotated[str, typer.Argument(help="What to ask, in plain words.", show_default=False)],
    video: Video,
    events: EventFile = None,
    clock: Annotated[Clock, typer.Option(help="What the events' times count from.")] = Clock.AUTO,
    kind: Format = None,
    sensor: SensorSize = None,
    events_start: EventsStart = None,
    events_end: EventsEnd = None,
    events_windows: EventWindows = 1,
    target: TargetDir = "reference",
    drafter: Drafter = "event",
    placement: Placement = None,
    ahead: Annotated[
        str,
        typer.Option(
            help="What a drafter in its own process does during a check: off, pipespec, pearl, ssd, spare."
        ),
    ] = "auto",
    hidden: Hidden = "auto",
    target_cores: TargetCores = None,
    draft_cores: DraftCores = None,
    device: Device = None,
    draft_device: DraftDevice = None,
    dtype: Dtype = None,
    max_new_tokens: Annotated[int, typer.Option(help="Longest answer, in tokens.")] = 128,
    temperature: Annotated[float, typer.Option(help="0 = greedy.")] = 0.0,
    top_k: Annotated[int, typer.Option(help="Draw from the k likeliest tokens; 0 = all.")] = 0,
    top_p: Annotated[float, typer.Option(help="Draw from the likeliest tokens of this mass; 1 = all.")] = 1.0,
    min_p: Annotated[float, typer.Option(help="Least likelihood, relative to the likeliest token.")] = 0.0,
    repetition_penalty: Annotated[float, typer.Option(help="Above 1: repeat less.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Of the draws.")] = 0,
    stop: Annotated[list[str] | None, typer.Option(help="Text that ends the answer; repeatable.")] = None,
    rule: Annotated[
        str | None,
        typer.Option(help="Acceptance rule, such as block or typical:eps=0.1; the exact one by default."),
    ] = None,
    logprobs: Annotated[
        bool, typer.Option("--logprobs", help="Show the log-probability of each token.")
    ] = False,
    compare: Compare = False,
    trace: Annotated[
        Path | None, typer.Option(help="Write the timeline as a Chrome/Perfetto trace (.json).")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the answer and its timeline (.svg).")] = None,
    as_json: AsJson = False,
    no_color: NoColour = False,
) -> None:
    """Answer a question about a clip: a fast model drafts while the slow one still reads, which then checks."""
    _check_suffix("--plot", plot, ".svg")
    _check_suffix("--trace", trace, ".json")
    part = Part(events_start, events_end, events_windows)
    excerpt = check_files(video, events, clock, kind, size_of(sensor), part)
    if compare and drafter == "none":
        raise CrossdraftError(
            "--compare runs the target alone, and so does --drafter none; leave one of them out."
        )
    if events is None and "event" in parse(drafter).names:
        raise CrossdraftError(
            "The event drafter needs an event recording; give one with --events, or --drafter none."
        )

    from crossdraft.api import Request
    from crossdraft.cli.compare import compare as run_compare
    from crossdraft.cli.compare import target_alone
    from crossdraft.cli.session import Setup, opened, stream
    from crossdraft.cli.view.terminal import PlainView, SilentView, TerminalView, coloured, console_for
    from crossdraft.drawing.save import save_timeline
    from crossdraft.engine.sampling import Sampling
    from crossdraft.files import atomic_path

    sampling = Sampling(temperature, top_k, top_p, min_p, repetition_penalty, (), seed)
    request = Request(question, video, excerpt, max_new_tokens, sampling, tuple(stop or ()), logprobs)
    setup = Setup(
        target,
        drafter,
        placement,
        ahead,
        hidden,
        device,
        dtype,
        draft_device,
        target_cores,
        draft_cores,
        rule,
    )
    colour = coloured(wanted=not no_color and not as_json)
    console = console_for(colour=colour)
    with opened(setup, request) as engine:
        view = SilentView() if as_json else TerminalView(console) if colour else PlainView()
        answer = stream(engine, request, view)
        comparison = run_compare(engine, request, answer) if compare else None
        timed, baseline = typical(answer, comparison)
        if not as_json:
            show(console, timed, engine.target, baseline)
        if as_json:
            typer.echo(
                json.dumps(report(request, timed, engine.target, comparison), ensure_ascii=False, indent=1)
            )
        elif comparison is not None:
            console.print(f"\n{comparison.sentence()}", markup=False, soft_wrap=True)
        if plot is not None and baseline is None and drafter != "none":
            baseline = target_alone(engine, request)
    if trace is not None:
        with atomic_path(trace) as path:
            timed.timeline.save_chrome(path)
        typer.echo(f"wrote {trace}", err=True)
    if plot is not None:
        save_timeline(plot, question, timed, baseline)
        typer.echo(f"wrote {plot}", err=True)


def _check_suffix(option: str, path: Path | None, suffix: str) -> None:
    if path is not None and path.suffix.lower() != suffix:
        raise CrossdraftError(
            f"{option} writes {suffix[1:].upper()}; name a file that ends in {suffix}, not {path}."
        )


def typical(answer: "Answer", comparison: "Comparison | None") -> "tuple[Answer, Baseline | None]":
    """The answer whose figures are shown, and the target alone.

    After a comparison these are its runs of median time, so that every time that is shown is of the same runs; but a
    sampled answer is shown with its own figures, because the runs behind the comparison said something else.
    """
    if comparison is None or comparison.drafted is None or comparison.drafted.tokens != answer.tokens:
        return answer, None
    return comparison.drafted, comparison.baseline


def show(console: "Console", answer: "Answer", target: "Target", baseline: "Baseline | None" = None) -> None:
    """Everything below the answer: tokens by origin, figures, timeline, notes."""
    from rich.text import Text

    from crossdraft.cli.view.growing import legend
    from crossdraft.cli.view.lanes import timeline_text
    from crossdraft.drawing.figures import figures

    if console.is_terminal:
        console.print(legend(answer))
    console.print()
    shown = figures(answer, baseline)
    margin = max(len(what) for what, _ in shown) + 2
    for what, value in shown:
        console.print(Text(what.ljust(margin), "dim") + Text(value), soft_wrap=True)
    console.print()
    console.print(timeline_text(answer, console.width, baseline), soft_wrap=True)
    if answer.logprobs is not None:
        pairs = zip(answer.tokens, answer.logprobs, strict=True)
        shown = "  ".join(f"{target.decode([token])!r} {value:.3f}" for token, value in pairs)
        console.print(f"\n{shown}", markup=False, soft_wrap=True)
    for note in answer.notes:
        console.print(Text(note, "yellow"), soft_wrap=True)


def report(
    request: "Request", answer: "Answer", target: "Target", comparison: "Comparison | None"
) -> dict[str, object]:
    """What `--json` prints."""
    from crossdraft.cli.view.summary import record

    words = [target.decode([token]) for token in answer.tokens] if request.logprobs else None
    found: dict[str, object] = {"question": request.prompt, "video": str(request.video)}
    found["events"] = None if request.events is None else str(request.events)
    found |= record(answer, words)
    if comparison is not None:
        found["compare"] = comparison.to_json()
    return found
