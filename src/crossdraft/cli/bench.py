"""`crossdraft bench`: how fast, against what, and is it still the same text."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from crossdraft.errors import CrossdraftError

if TYPE_CHECKING:
    from rich.console import Console

    from crossdraft.bench.cores import Cores

app = typer.Typer(help="How fast, against what, and is it still the same text.")

Pairs = Annotated[int, typer.Option(help="(scene, question) pairs, each about a held-out scene of its own.")]
MaxTokens = Annotated[int, typer.Option("--max-new-tokens", help="Longest answer, in tokens.")]
Kinds = Annotated[str | None, typer.Option(help="Kinds of question, comma-separated; all by default.")]
Json = Annotated[
    Path | None, typer.Option("--json", metavar="FILE", help="Write the report as JSON ('-' = stdout).")
]
TargetDir = Annotated[str, typer.Option("--target", help="'reference', or the folder of a checkpoint.")]
EventDir = Annotated[
    str, typer.Option("--event", help="Event drafter: 'event', or the folder of an EventGPT.")
]
BlindDir = Annotated[
    str, typer.Option("--blind", help="Its blind twin: 'blind', or the folder of an EventGPT.")
]
Device = Annotated[str | None, typer.Option(help="Of the target; CUDA if there is a GPU, else CPU.")]
Dtype = Annotated[str | None, typer.Option(help="float32, bfloat16 …; float32 on a CPU, bfloat16 on a GPU.")]
DraftDevice = Annotated[str | None, typer.Option(help="Of the drafter; the target's by default.")]
TargetCores = Annotated[
    str | None, typer.Option(help="CPU cores of the target, as 0 or 0-3; by default one.")
]
DraftCores = Annotated[
    str | None, typer.Option(help="CPU cores of a drafter's own process; by default one other.")
]


@app.callback(invoke_without_command=True)
def bench(
    ctx: typer.Context,
    methods: Annotated[str | None, typer.Option(help="Contestants, comma-separated; all by default.")] = None,
    pairs: Pairs = 40,
    repeats: Annotated[int, typer.Option(help="Runs of each pair.")] = 3,
    warm_ups: Annotated[int, typer.Option(help="Pairs answered before the clock starts.")] = 3,
    max_new_tokens: MaxTokens = 96,
    temperature: Annotated[float, typer.Option(help="0 = greedy.")] = 0.0,
    answers: Annotated[str, typer.Option(help="long (about 60 tokens) or any.")] = "long",
    kinds: Kinds = None,
    files: Annotated[
        bool, typer.Option("--files", help="Count reading the clip's files too, for everybody.")
    ] = False,
    json_file: Json = None,
    plot_file: Annotated[
        Path | None, typer.Option("--plot", metavar="PNG", help="Draw the time per stage.")
    ] = None,
    target: TargetDir = "reference",
    event: EventDir = "event",
    blind: BlindDir = "blind",
    device: Device = None,
    dtype: Dtype = None,
    draft_device: DraftDevice = None,
    target_cores: TargetCores = None,
    draft_cores: DraftCores = None,
) -> None:
    """Race the engine against itself without a drafter, a blind drafter and Hugging Face generate, interleaved.

    Methods: target, hf, hf-lookup, hf-assisted, blind, event-inline, event. On a CPU each side gets one core: the
    target and Hugging Face in this process, a drafter of its own process on another.
    """
    if ctx.invoked_subcommand is not None:
        return
    from crossdraft.bench.contestants import Models
    from crossdraft.bench.plot import plot
    from crossdraft.bench.report import tables, to_json
    from crossdraft.bench.suite import Suite, check_methods, run_suite, runs_of
    from crossdraft.bench.workload import Workload

    _quiet()
    with TemporaryDirectory(prefix="crossdraft-") if files else nullcontext() as folder:
        suite = Suite(
            models=Models(target, event, blind, device, dtype, draft_device),
            work=Workload(
                pairs, answers, _list(kinds), max_new_tokens, temperature, Path(folder) if folder else None
            ),
            methods=check_methods(methods),
            repeats=repeats,
            cores=_cores(device, target_cores, draft_cores),
            warm_ups=warm_ups,
        )
        with _progress("measuring", runs_of(suite)) as tick:
            report = run_suite(suite, tick)
    _write(to_json(report), json_file)
    if plot_file is not None:
        plot(report, plot_file)
    _console(json_file).print(*tables(report))


@app.command()
def identity(
    pairs: Pairs = 300,
    max_new_tokens: MaxTokens = 96,
    kinds: Kinds = None,
    json_file: Json = None,
    target: TargetDir = "reference",
    event: EventDir = "event",
    blind: BlindDir = "blind",
    device: Device = None,
    dtype: Dtype = "float32",
    target_cores: TargetCores = None,
    draft_cores: DraftCores = None,
) -> None:
    """Check that every placement, and batches that join and leave, give the target's own tokens. Exit 1 if not."""
    from rich.table import Table

    from crossdraft.bench.contestants import Models
    from crossdraft.bench.cores import pinned
    from crossdraft.bench.environment import environment
    from crossdraft.bench.identity import check_identity, open_checks
    from crossdraft.bench.suite import describe
    from crossdraft.bench.workload import Workload, items

    _quiet()
    work = Workload(pairs, "any", _list(kinds), max_new_tokens)
    models, cores = Models(target, event, blind, device, dtype), _cores(device, target_cores, draft_cores)
    with pinned(None if cores is None else cores.target):
        adapter = models.load_target()
        with (
            open_checks(adapter, models, cores) as checks,
            _progress("comparing", pairs * len(checks)) as tick,
        ):
            check_identity(adapter, checks, items(work), tick)
    rows = Table("checked against the target alone", "identical")
    for check in checks:
        rows.add_row(check.name, f"{check.equal}/{check.total}")
    report = {
        "environment": environment(),
        "workload": describe(work),
        "checks": [check.to_json() for check in checks],
    }
    _write(report, json_file)
    _console(json_file).print(rows)
    if any(check.divergences or check.notes for check in checks):
        raise typer.Exit(1)


@app.command()
def acceptance(
    pairs: Pairs = 100,
    nodes: Annotated[int, typer.Option(help="Length of the chain offered in every round.")] = 8,
    max_new_tokens: MaxTokens = 96,
    answers: Annotated[str, typer.Option(help="long or any.")] = "any",
    kinds: Kinds = None,
    json_file: Json = None,
    target: TargetDir = "reference",
    event: EventDir = "event",
    blind: BlindDir = "blind",
    device: Device = None,
    dtype: Dtype = None,
) -> None:
    """Compare τ of the event drafter with τ of its blind twin under the same rounds: does seeing help?"""
    from rich.table import Table

    from crossdraft.bench.acceptance import compare_acceptance
    from crossdraft.bench.contestants import Models
    from crossdraft.bench.environment import environment
    from crossdraft.bench.suite import describe
    from crossdraft.bench.workload import Workload, items

    _quiet()
    work = Workload(pairs, answers, _list(kinds), max_new_tokens)
    models = Models(target, event, blind, device, dtype)
    adapter = models.load_target()
    with _progress("accepting", 2 * pairs) as tick:
        found = compare_acceptance(adapter, models, list(items(work)), nodes, tick)
    rows = Table("kind", "τ event", "τ blind", "ratio")
    for kind, (seeing, unseeing) in found.by_kind.items():
        rows.add_row(kind, f"{seeing:.2f}", f"{unseeing:.2f}", f"{seeing / unseeing:.2f}")
    rows.add_row("all", f"{found.event.tau.value:.2f}", f"{found.blind.tau.value:.2f}", str(found.ratio))
    _write({"environment": environment(), "workload": describe(work), **found.to_json()}, json_file)
    _console(json_file).print(rows)


@app.command(
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}
)
def scale(ctx: typer.Context) -> None:
    """Measure shapes of any size with random weights, on CPU and CUDA; see `crossdraft bench scale --help`."""
    from crossdraft.bench.scale import main

    main(ctx.args, prog="crossdraft bench scale")


@app.command(
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}
)
def events(ctx: typer.Context) -> None:
    """Time event frames, slices of a recording, and the simulator; see `crossdraft bench events --help`."""
    from crossdraft.bench.events import main

    raise typer.Exit(main(ctx.args))


def _cores(device: str | None, target: str | None, draft: str | None) -> "Cores | None":
    """One core for each side on a CPU; on a GPU only what was asked for."""
    import torch

    from crossdraft.bench.cores import choose_cores

    on_cpu = device == "cpu" or (device is None and not torch.cuda.is_available())
    return choose_cores(target, draft) if on_cpu or target or draft else None


def _list(text: str | None) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",")) if text else ()


def _quiet() -> None:
    """Hugging Face's advice on its own defaults is no part of the report."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


@contextmanager
def _progress(what: str, total: int) -> Iterator[Callable[[str], None]]:
    """A bar on stderr; the yielded function counts one more, done by the one it names."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    # Drawn between two runs only: a bar that refreshes itself does so in a thread, beside what is being measured.
    with Progress(*columns, console=Console(stderr=True), auto_refresh=False) as bar:
        task = bar.add_task(what, total=total)

        def tick(name: str) -> None:
            bar.update(task, advance=1, description=f"{what} {name}", refresh=True)

        yield tick


def _console(json_file: Path | None) -> "Console":
    """Where the tables go: stdout, or stderr if the JSON goes there. Into a file they are as wide as they need."""
    from rich.console import Console

    console = Console(stderr=json_file == Path("-"))
    return console if console.is_terminal else Console(stderr=json_file == Path("-"), width=110)


def _write(report: dict[str, object], path: Path | None) -> None:
    if path is None:
        return
    text = json.dumps(report, indent=1, default=_unknown, ensure_ascii=False) + "\n"
    if path == Path("-"):
        typer.echo(text, nl=False)
        return
    from crossdraft.files import atomic_path

    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _unknown(value: object) -> object:
    raise CrossdraftError(f"The report holds a {type(value).__name__}, which JSON cannot.")
