"""`crossdraft scale`: what shows how large models behave here, without trained weights."""

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
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    from crossdraft.bench.scale_checkpoint import write_checkpoint
    from crossdraft.cli.reporting import report

    console = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
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
