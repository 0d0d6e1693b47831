"""`crossdraft train`: from a recipe to the reference pair."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Train models from recipes.", no_args_is_help=True)


@app.callback()
def train() -> None:
    """Train models from recipes."""


@app.command()
def reference(
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Recipe overrides, e.g. target.train.0.questions=6."),
    ] = None,
    recipe: Annotated[
        Path | None, typer.Option(help="Recipe file; the shipped pair's own by default.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for cache, checkpoints and models.")] = Path(
        "runs/reference"
    ),
    stage: Annotated[
        list[str] | None,
        typer.Option(help="Stage to run; repeatable. All of them, 'ship' excepted, by default."),
    ] = None,
) -> None:
    """Train the target, its event drafter and the blind twin; every stage resumes where it stopped."""
    from crossdraft.train.recipe import REFERENCE_RECIPE, load_recipe
    from crossdraft.train.reference import STAGES, Reference, run_stages

    settings = load_recipe(recipe or REFERENCE_RECIPE, overrides or ())
    run_stages(Reference(settings, out), stage or STAGES[:-1])
