"""`crossdraft train ctpd`: a language model of another vocabulary, tuned on its target's answers."""

from pathlib import Path
from typing import Annotated

import typer

from crossdraft.cli.options import AsJson, LocalTarget


def ctpd(
    capture: Annotated[Path, typer.Option(help="What to learn from: a folder of `crossdraft capture`.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Recipe overrides, such as optim.steps=500")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="Recipe file; the shipped one by default.")] = None,
    validation: Annotated[
        Path | None, typer.Option(help="Capture of other clips: checks and the final measurement use it.")
    ] = None,
    target: LocalTarget = "reference",
    model: Annotated[
        str, typer.Option(help="The drafter that learns: 'text', or the folder of a causal language model.")
    ] = "text",
    out: Annotated[Path, typer.Option(help="Folder for the new drafter.")] = Path("runs/heads/ctpd"),
    as_json: AsJson = False,
) -> None:
    """Tune a language model of another vocabulary by spans of text that both tokenizers share (CTPD: Nguyen 2026)."""
    from crossdraft.cli.reporting import hush, report
    from crossdraft.load import target_fingerprint
    from crossdraft_lab.train.align.spans import RECIPE, SpanInputs, SpanRecipe, tune_by_spans
    from crossdraft_lab.train.capture.store import CaptureStore
    from crossdraft_lab.train.core.recipe import read_section

    hush()
    reference = target == "reference" and model == "text"
    recipe = read_section(SpanRecipe, config or RECIPE, overrides or (), ("reference", reference))
    digest = target_fingerprint(target)
    store = CaptureStore.open(capture, digest)
    back = None if validation is None else CaptureStore.open(validation, digest)
    figures = tune_by_spans(SpanInputs(recipe, target, model, store, back, out))
    drafter = out / "drafter"
    line = f"The drafter lies in {drafter}; --drafter takes it as model:dir={drafter}."
    report({"out": str(drafter), **figures}, line, as_json=as_json)
