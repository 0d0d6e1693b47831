"""`crossdraft train`: trains the reference pair, or a head for a target, from a recipe; exports heads."""

from pathlib import Path
from typing import Annotated

import typer

from crossdraft.cli.options import AsJson, Device, LocalTarget, check_models, check_values
from crossdraft_lab.cli.recipe import RecipeCommand, recipe_command
from crossdraft_lab.cli.train_spans import ctpd

app = typer.Typer(help="Train models from recipes; export heads.", no_args_is_help=True, add_completion=False)

Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Recipe overrides, such as optim.steps=500")
]


@app.command(cls=recipe_command("reference.recipe", "ReferenceRecipe"))
def reference(
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Recipe overrides, e.g. target.train.0.questions=6."),
    ] = None,
    recipe: Annotated[Path | None, typer.Option(help="Recipe file; the shipped pair's own by default.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for cache, checkpoints and models.")] = Path("runs/reference"),
    stage: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Stage to run; repeatable. All of them, 'ship' excepted, by default."),
    ] = None,
) -> None:
    """Train the target, its event drafter and the ablation without events; every stage resumes where it stopped."""
    from crossdraft_lab.train.reference.recipe import REFERENCE_RECIPE, load_recipe
    from crossdraft_lab.train.reference.run import ReferenceRun
    from crossdraft_lab.train.reference.stages import STAGES, run_stages

    settings = load_recipe(recipe or REFERENCE_RECIPE, overrides or ())
    run_stages(ReferenceRun(settings, out), stage or STAGES[:-1])


@app.command()
def export(
    head: Annotated[str, typer.Argument(help="Folder of a head, or the name of a shipped one.")],
    out: Annotated[Path, typer.Argument(help="New folder, written whole or not at all.")],
    layout: Annotated[str, typer.Option("--as", help="eagle, speculators, medusa or dflash.")],
    target: LocalTarget = "reference",
    name: Annotated[
        str | None, typer.Option(help="Name of the target in the files: a hub id or path; by default its folder.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write a head in another project's layout, read it back, and succeed only if its logits are the same."""
    from crossdraft.cli.head import folder_of, report_conversion, target_and_host
    from crossdraft_lab.train.heads.export import export_head

    done = export_head(folder_of(head), out, layout, target_and_host(target, name)[1])
    read_back = f"- Read back: the maximum absolute difference of the logits is {done.difference:.1e}."
    notes = (f"- {note}" for note in done.notes)
    report_conversion(done, out, f"{done.network} in the layout of {done.layout}", read_back, *notes, as_json=as_json)


@app.command(cls=recipe_command("heads.medusa2", "JointRecipe"))
def medusa2(
    overrides: Overrides = None,
    config: Annotated[Path | None, typer.Option(help="Recipe file; the shipped one by default.")] = None,
    head: Annotated[
        Path | None, typer.Option(help="A trained head of this target to begin with; by default the shipped medusa.")
    ] = None,
    online: Annotated[int, typer.Option(help="Generate training data from this many scenes during training.")] = 0,
    target: Annotated[
        str, typer.Option(help="'reference', or the folder of a Hugging Face checkpoint; it is not touched.")
    ] = "reference",
    out: Annotated[Path, typer.Option(help="Folder for the new target and its head.")] = Path("runs/heads/medusa2"),
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Medusa-2 (Cai et al. 2024): train a target and its head jointly. The result is another target."""
    from crossdraft.cli.reporting import hush, report
    from crossdraft_lab.train.core.recipe import read_section
    from crossdraft_lab.train.heads.medusa2 import JOINT_RECIPE, JointRecipe, train_medusa2

    hush()
    recipe = read_section(JointRecipe, config or JOINT_RECIPE, overrides or ())
    figures = train_medusa2(recipe, out, online, target, head, device)
    report(
        {"out": str(out), **figures},
        f"The new target lies in {out / 'target'}, its head in {out / 'head'}; its answers differ a little from the "
        f"old one's: read {out / 'head' / 'README.md'} before it replaces it.",
        as_json=as_json,
    )


@app.command(cls=recipe_command("align.tuned", "TuneRecipe"))
def l6(
    capture: Annotated[Path, typer.Option(help="What to learn from: a folder of `crossdraft capture`.")],
    overrides: Overrides = None,
    config: Annotated[Path | None, typer.Option(help="Recipe file; the shipped one by default.")] = None,
    validation: Annotated[
        Path | None, typer.Option(help="Capture of other clips: checks and the final measurement use it.")
    ] = None,
    target: LocalTarget = "reference",
    event: Annotated[str, typer.Option(help="The drafter that learns: 'foreign', 'event', or a folder.")] = "event",
    out: Annotated[Path, typer.Option(help="Folder for the new drafter.")] = Path("runs/heads/l6"),
    device: Annotated[
        str | None, typer.Option(help="Device of the drafter and the target's head; the CPU by default.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Tune a foreign drafter on its target's answers (LoRA: Hu et al. 2022). The result is another drafter."""
    check_values(device=device)
    check_models(target, event)
    from datetime import timedelta

    from crossdraft.checkpoints.locate import EVENT_MODELS
    from crossdraft.cli.reporting import hush, report
    from crossdraft.load import target_fingerprint
    from crossdraft_lab.train.align.tuned import RECIPE, TuneInputs, TuneRecipe, tune_drafter
    from crossdraft_lab.train.capture.store import CaptureStore
    from crossdraft_lab.train.core.dist import init_distributed
    from crossdraft_lab.train.core.recipe import read_section

    hush()
    reference = target == "reference" and event in EVENT_MODELS
    recipe = read_section(TuneRecipe, config or RECIPE, overrides or (), ("reference", reference))
    digest = target_fingerprint(target)
    store = CaptureStore.open(capture, digest)
    back = None if validation is None else CaptureStore.open(validation, digest)
    # The first process saves and measures alone; the others wait for it.
    with init_distributed(device or "cpu", timedelta(days=7)) as (ranks, where):
        figures = tune_drafter(TuneInputs(recipe, target, event, store, back, out, str(where)), ranks)
    drafter = out / "drafter"
    report({"out": str(drafter), **figures}, f"The drafter lies in {drafter}; --drafter takes it.", as_json=as_json)


@app.command("judge")
def token_classifier(
    clips: Annotated[
        int,
        typer.Option(
            help="Training scenes; the last fifth decides on the penalty, as many test scenes give the figures."
        ),
    ] = 120,
    questions: Annotated[int, typer.Option(help="Questions about each scene.")] = 4,
    seed: Annotated[int, typer.Option(help="Seed of questions and drafted tokens.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder.")] = Path("runs/judge"),
    as_json: AsJson = False,
) -> None:
    """Train a judge of drafted tokens for the reference pair, on labels that scenes give. Its rule is lossy."""
    from crossdraft.cli.reporting import hush, report
    from crossdraft_lab.train.heads.token_classifier import ClassifierRecipe, train_classifier

    recipe = ClassifierRecipe(clips, questions, seed=seed)
    hush()
    figures = train_classifier(recipe, out)
    report(
        {"out": str(out), **figures}, f"The judge lies in {out}; --rule takes it as judge:dir={out}", as_json=as_json
    )


def head(
    context: typer.Context,
    overrides: Overrides = None,
    config: Annotated[Path | None, typer.Option(help="Recipe file; the shipped one of that name by default.")] = None,
    capture: Annotated[Path | None, typer.Option(help="What to learn from: a folder of `crossdraft capture`.")] = None,
    validation: Annotated[
        Path | None,
        typer.Option(
            "--validation",
            "--kept-back",
            help="Validation capture, of other clips: checks and the final measurement use it.",
        ),
    ] = None,
    target: LocalTarget = "reference",
    out: Annotated[Path | None, typer.Option(help="Folder; runs/heads/METHOD by default.")] = None,
    device: Device = None,
    online: Annotated[
        int, typer.Option(help="Without a capture: generate training data from this many scenes during training.")
    ] = 0,
    event: Annotated[
        str,
        typer.Option(
            help="The event model of adapters, event_medusa, fast and glance: 'event', 'foreign' or a folder."
        ),
    ] = "event",
    as_json: AsJson = False,
) -> None:
    """Train a head on a target's answers; an interrupted run is resumed."""
    check_values(device=device)
    check_models(target, event, shows=capture is None)
    from crossdraft.checkpoints.locate import EVENT_MODELS
    from crossdraft.cli.reporting import hush, report
    from crossdraft_lab.train.heads.recipe import load_head_recipe
    from crossdraft_lab.train.heads.run import train_recipe

    hush()
    name = str(context.info_name)
    reference = target == "reference" and event in EVENT_MODELS
    recipe = load_head_recipe(config or name, overrides or (), reference=reference)
    folder = out or Path("runs/heads") / name
    figures = train_recipe(recipe, folder, target, device, capture, validation, online, event)
    line = f"It lies in {folder / 'head'}; {_taken(recipe.network, folder / 'head', event)}."
    report({"out": str(folder / "head"), **figures}, line, as_json=as_json)


app.command(cls=recipe_command("align.spans", "SpanRecipe"))(ctpd)


def _taken(network: str, folder: Path, event: str) -> str:
    """Name the option that takes the head in that folder."""
    from crossdraft.methods import METHODS
    from crossdraft_lab.networks import ALIGNED, PACKERS, VISION_ADAPTERS, task_of

    if network in PACKERS:
        return f"bench compression takes it as --compress {network}:dir={folder}"
    model = f",model={event}" if event != "event" and task_of(network) in {"events", "alignment", "vision"} else ""
    methods = [name for name, method in METHODS.items() if method.network == network]
    methods += ["aligned"] * (network in ALIGNED) + ["predicted"] * (network in VISION_ADAPTERS)
    if not methods:
        return f"no drafter serves the network '{network}' yet: give it a record (docs/adding_a_head.md)"
    return "--drafter takes it as " + " or ".join(f"{name}:dir={folder}{model}" for name in methods)


def _about(recipe: Path) -> str:
    """Text before a shipped recipe's first colon: the drafter that it trains, and the paper."""
    return recipe.read_text(encoding="utf-8").partition(":")[0].lstrip("# ") + "."


for _recipe in sorted((Path(__file__).parents[1] / "train" / "recipes" / "heads").glob("*.yaml")):
    app.command(_recipe.stem, cls=RecipeCommand, help=_about(_recipe))(head)
