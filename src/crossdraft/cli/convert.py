"""`crossdraft convert`: foreign checkpoints to folders that `--target` and `--drafter` load."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from crossdraft.cli.options import AsJson
from crossdraft.errors import CrossdraftError

app = typer.Typer(help="Convert checkpoints of other projects.", no_args_is_help=True, add_completion=False)


@app.callback()
def convert() -> None:
    """Convert checkpoints of other projects."""


@app.command()
def eventgpt(
    source: Annotated[Path, typer.Argument(help="Official checkpoint folder: config.json, tokenizer, weights.")],
    destination: Annotated[Path, typer.Argument(help="New folder, written whole or not at all.")],
    num_frames: Annotated[int, typer.Option(min=1, help="Event frames of one window.")] = 5,
    vision_config: Annotated[
        Path | None,
        typer.Option(help="Vision encoder's config.json, if its heads are not 64 wide as OpenAI CLIP's are."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Convert an official EventGPT checkpoint (safetensors or PyTorch, in shards or not) and say what was decided."""
    if not source.is_dir():
        raise CrossdraftError(f"Cannot read {source}: it is no folder; give a complete checkpoint folder.")

    from rich.progress import Progress

    from crossdraft.cli.bars import Bar
    from crossdraft.cli.reporting import report
    from crossdraft.models.eventgpt import convert_eventgpt

    with Bar(*Progress.get_default_columns()) as progress:
        task = progress.add_task("reading")

        def on_shard(what: str, done: int, total: int) -> None:
            progress.update(task, description=f"{what} weights", completed=done, total=total)

        done = convert_eventgpt(
            source, destination, num_event_frames=num_frames, vision_config=vision_config, on_shard=on_shard
        )
    line = f"{done.destination}: {done.tensors} tensors, {done.parameters:,} parameters, {done.dtype}"
    decisions = [f"- {sentence}" for sentence in done.decisions()]
    report(asdict(done) | {"decisions": done.decisions()}, line, *decisions, as_json=as_json)
