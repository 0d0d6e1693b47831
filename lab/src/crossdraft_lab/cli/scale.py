"""`crossdraft scale`: tools to try large models here, without trained weights."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from crossdraft.cli.options import AsJson, Force

app = typer.Typer(
    help="Checkpoints of any size with random weights, for trying what fits.",
    no_args_is_help=True,
    add_completion=False,
)


@app.callback()
def scale() -> None:
    """Checkpoints of any size with random weights, for trying what fits."""


@app.command()
def checkpoint(
    out: Annotated[Path, typer.Argument(help="New folder, written whole or not at all.", show_default=False)],
    config: Annotated[
        str,
        typer.Option(
            help="video-llava-7b, -0.5b, -small or -tiny; eventgpt-7b, -small or -tiny, in the official layout that "
            "crossdraft convert eventgpt reads."
        ),
    ],
    seed: Annotated[int, typer.Option(min=0, help="Seed of the weights.")] = 0,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Write a checkpoint with the files, names and tokens of the real one, and random weights in bfloat16.

    It answers nonsense. What it takes to load and to run is the real one's.
    """
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn

    from crossdraft.cli.bars import Bar
    from crossdraft.cli.reporting import report
    from crossdraft_lab.bench.scale_checkpoint import write_checkpoint

    with Bar(TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn()) as bar:
        task = bar.add_task("planning", total=None)
        written = write_checkpoint(
            config,
            out,
            seed=seed,
            force=force,
            start=lambda total: bar.update(task, total=total),
            on_bytes=lambda file, count: bar.update(task, description=file, advance=count),
        )
    files = "1 file" if written.shards == 1 else f"{written.shards} files"
    line = (
        f"{out}: {written.config} with random weights, {written.parameters:,} parameters in {written.tensors} tensors, "
        f"{written.bytes / 1e9:.2f} GB in {files}"
    )
    report(asdict(written), line, as_json=as_json)


@app.command()
def adapters(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Adapters and packers; by default all of them.")
    ] = None,
    config: Annotated[str, typer.Option(help="video-llava-7b, 0.5b, or the path of a config.json.")] = "video-llava-7b",
    drafter: Annotated[str, typer.Option(help="eventgpt-7b, small, or the path of a config.json.")] = "eventgpt-7b",
    budget: Annotated[float, typer.Option(min=0, help="Seconds for each measurement.")] = 3.0,
    as_json: AsJson = False,
) -> None:
    """Measure the size and time of adapters for models of this size, with random weights, on one core.

    Each is made, trained for a step, stored, loaded and timed, one after the other.
    """
    from crossdraft.cli.reporting import console_for, hush, report, track
    from crossdraft.engine.fast.pinning import one_thread
    from crossdraft_lab.bench.common import table
    from crossdraft_lab.bench.scale_models import DRAFTERS, TARGETS, shape_of
    from crossdraft_lab.train.heads.scale import NAMES, PairShapes, network_costs

    hush()
    shapes = PairShapes(shape_of(config, TARGETS), shape_of(drafter, DRAFTERS))
    with one_thread():
        found = list(track(network_costs(shapes, names or NAMES, budget), "measuring", len(names or NAMES)))
    if as_json:
        report([one.to_json() for one in found], as_json=True)
        return
    shown = table(None, "network", ("parameters", "GB stored", "ms a token", "ms a clip"))
    for one in found:
        took = f"{one.seconds * 1e3:.1f}"
        times = (took, "") if one.per == "token" else ("", took)
        shown.add_row(one.network, f"{one.parameters / 1e6:.1f} M", f"{one.stored_bytes / 1e9:.3f}", *times)
    console_for(as_json=False).print(shown)
