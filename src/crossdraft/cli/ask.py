"""`crossdraft ask`: a question about a clip; each part of the answer is shown with its origin."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from crossdraft.bench.outputs import check_outputs
from crossdraft.cli.drafters import show_drafters
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
    refuse_without_events,
    size_of,
)
from crossdraft.cli.outputs import Force
from crossdraft.errors import CrossdraftError

if TYPE_CHECKING:
    from rich.console import Console

    from crossdraft.cli.compare import Comparison
    from crossdraft.drawing.figures import Baseline
    from crossdraft.engine.request import Answer, Request
    from crossdraft.engine.target import Target

app = typer.Typer(help="Ask a question about a clip.", add_completion=False)

Video = Annotated[Path, typer.Option(help="The clip, a video file.")]
EventFile = Annotated[
    Path | None, typer.Option("--events", help="What an event camera saw of the same moment (DSEC .h5, .npy, …).")
]
TargetDir = Annotated[
    str,
    typer.Option(
        "--target", help="'reference', the folder of a Hugging Face checkpoint, or the id of one in the local cache."
    ),
]


def _help_wanted(drafter: str | None) -> str | None:
    """`--drafter help` lists the drafters, whatever else was given."""
    if drafter == "help":
        show_drafters()
        raise typer.Exit
    return drafter


Drafter = Annotated[
    str | None,
    typer.Option(
        help="glance, event, eagle2, union:memory,ngram … (crossdraft drafters lists them), none, or the folder of an "
        "EventGPT. Default for the reference target: glance with events, else eagle2; for others: union:memory,ngram.",
        callback=_help_wanted,
        is_eager=True,
    ),
]
Placement = Annotated[
    str | None,
    typer.Option(help="Where the drafter runs: inline or process; by default in a process if a core is free for it."),
]
Hidden = Annotated[
    str, typer.Option(help="When an inline drafter makes the hidden draft: auto, before, beside (the prefill) or off.")
]
TargetCores = Annotated[
    str | None, typer.Option(help="CPU cores of the target, such as 0,2-3; by default all but one.")
]
DraftCores = Annotated[str | None, typer.Option(help="CPU cores of the drafter's process; by default one.")]
Device = Annotated[str | None, typer.Option(help="Device of the target; by default CUDA if there is a GPU.")]
DraftDevice = Annotated[str | None, typer.Option(help="Device of the drafter; by default the target's.")]
Dtype = Annotated[str | None, typer.Option(help="float32, bfloat16 …; by default float32 on a CPU, bfloat16 on a GPU.")]
Frames = Annotated[
    int | None,
    typer.Option("--frames", help="Frames of the clip that the target reads; the checkpoint's own number by default."),
]
Fps = Annotated[float | None, typer.Option("--fps", help="In place of --frames: frames for each second of the clip.")]
MaxNewTokens = Annotated[
    int | None, typer.Option(help="Longest answer, in tokens; by default as the checkpoint says, else 128.")
]
Compare = Annotated[
    bool, typer.Option("--compare", help="Also run the target alone: are the tokens identical, and the speedup?")
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
    drafter: Drafter = None,
    placement: Placement = None,
    ahead: Annotated[
        str,
        typer.Option(
            help="Parallel drafting, while the target verifies: off, pipespec, pearl, ssd, spare or auto; "
            "in a process only."
        ),
    ] = "auto",
    hidden: Hidden = "auto",
    target_cores: TargetCores = None,
    draft_cores: DraftCores = None,
    device: Device = None,
    draft_device: DraftDevice = None,
    dtype: Dtype = None,
    frames: Frames = None,
    fps: Fps = None,
    max_new_tokens: MaxNewTokens = None,
    temperature: Annotated[
        float | None, typer.Option(help="0 = greedy. This and the next: by default as the checkpoint says.")
    ] = None,
    top_k: Annotated[int | None, typer.Option(help="Draw from the k likeliest tokens; 0 = all.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Draw from the likeliest tokens of this mass; 1 = all.")] = None,
    min_p: Annotated[float | None, typer.Option(help="Least likelihood, relative to the likeliest token.")] = None,
    repetition_penalty: Annotated[float | None, typer.Option(help="Above 1: repeat less.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of a sampled answer; random by default.")] = None,
    stop: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="Text that ends the answer; repeatable. By default the checkpoint's."),
    ] = None,
    rule: Annotated[
        str | None,
        typer.Option(
            help="Acceptance rule, such as typical:eps=0.1, or for chains block (--drafter eagle2:tree=chain); the "
            "exact one by default."
        ),
    ] = None,
    logprobs: Annotated[bool, typer.Option("--logprobs", help="Show the log-probability of each token.")] = False,
    compare: Compare = False,
    trace: Annotated[Path | None, typer.Option(help="Write the timeline as a Chrome/Perfetto trace (.json).")] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            help="Draw the answer and its timeline beside the target alone, which is run for it (.svg, .png)."
        ),
    ] = None,
    force: Force = False,
    as_json: AsJson = False,
    no_color: NoColour = False,
) -> None:
    """Answer a question about a clip by speculative decoding; the answer is the target's own.

    A drafter proposes tokens while the target reads the clip and afterwards; the target verifies them.
    """
    _check_pictures(plot, trace)
    check_outputs(plot, trace, force=force)
    check_values(
        drafter=drafter,
        placement=placement,
        ahead=ahead,
        hidden=hidden,
        target_cores=target_cores,
        draft_cores=draft_cores,
        device=device,
        draft_device=draft_device,
        dtype=dtype,
        frames=frames,
        fps=fps,
        max_new_tokens=max_new_tokens,
        rule=rule,
    )
    part = Part(events_start, events_end, events_windows)
    if events is None:
        refuse_without_events(clock, kind, size_of(sensor), part)
    excerpt = check_files(video, events, clock, kind, size_of(sensor), part)
    if compare and drafter == "none":
        raise CrossdraftError("--compare runs the target alone, and so does --drafter none; leave one of them out.")

    from crossdraft.engine.request import Request
    from crossdraft.engine.sampling import Sampling

    sampling = Sampling(temperature, top_k, top_p, min_p, repetition_penalty, None, seed)
    request = Request(question, video, excerpt, max_new_tokens, sampling, tuple(stop) if stop else None, logprobs)
    # Behind what can be refused without them: these take seconds.
    from crossdraft.cli.compare import compare as run_compare
    from crossdraft.cli.compare import target_alone
    from crossdraft.cli.session import Setup, opened, stream, view_for
    from crossdraft.cli.view.terminal import coloured, console_for
    from crossdraft.drawing.save import save_timeline
    from crossdraft.files import atomic_path

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
        num_frames=frames,
        fps=fps,
    ).chosen(events=events is not None)
    if not as_json:
        setup.tell()
    colour = coloured(wanted=not no_color and not as_json)
    console = console_for(colour=colour)
    with opened(setup, request) as engine:
        answer = stream(engine, request, view_for(console, as_json=as_json))
        comparison = run_compare(engine, request, answer) if compare else None
        timed, baseline = typical(answer, comparison)
        if not as_json:
            show(console, timed, engine.target, baseline)
        if as_json:
            found = report(request, timed, engine.target, comparison) | {"drafter": setup.drafter}
            typer.echo(json.dumps(found, ensure_ascii=False, indent=1))
        elif comparison is not None:
            console.print(f"\n{comparison.sentence()}", markup=False, soft_wrap=True)
        if plot is not None and baseline is None and setup.drafter != "none":
            baseline = target_alone(engine, request)
    if trace is not None:
        with atomic_path(trace) as path:
            timed.timeline.save_chrome(path)
        typer.echo(f"wrote {trace}", err=True)
    if plot is not None:
        save_timeline(plot, question, timed, baseline)
        typer.echo(f"wrote {plot}", err=True)


def _check_pictures(plot: Path | None, trace: Path | None) -> None:
    from crossdraft.drawing.save import check_picture

    if plot is not None:
        check_picture(plot)
    if trace is not None and trace.suffix.lower() != ".json":
        raise CrossdraftError(f"--trace writes JSON; name a file that ends in .json, not {trace}.")


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
    from rich.table import Column, Table
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
        if console.is_terminal:  # a long value goes on below itself
            row = Table.grid(Column(width=margin, style="dim"), Column())
            row.add_row(what, value)
            console.print(row)
        else:
            console.print(what.ljust(margin) + value, markup=False, soft_wrap=True)
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
