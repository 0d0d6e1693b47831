"""`crossdraft align`: one command from a target and an EventGPT to a drafter that predicts the target's answers."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from crossdraft.checks import choice, did_you_mean
from crossdraft.cli.options import AsJson, Device, Dtype, Quantize, check_models, check_values, option_groups
from crossdraft.errors import CrossdraftError
from crossdraft_lab.cli.recipe import recipe_command

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from crossdraft_lab.train.align.pair import AnswerSettings, Splits
    from crossdraft_lab.train.align.tuned import TuneRecipe
    from crossdraft_lab.train.capture.store import CaptureStore

app = typer.Typer(add_completion=False)

SCENES = "scenes"  # selects scenes in place of a list
TUNINGS = ("lora", "qlora", "full")
CLIPS, VALIDATION_CLIPS, TEST_CLIPS, PROMPTS = 1200, 64, 48, 4  # defaults for scenes
REPORT, ROWS = "align.json", "rows.json"  # the report, and its rows until it is complete
BEFORE, TUNED, WITH_MEMORY = "as it was", "tuned", "tuned, and memory:seed"  # rows of the report


@dataclass(frozen=True, slots=True)
class ClipOptions:
    """Clips to train, validate and measure on: lists, or scenes."""

    validation: Annotated[
        Path | None, typer.Option(metavar="LIST", help="Clips that choose the weights; for a list of your own.")
    ] = None
    test: Annotated[Path | None, typer.Option(metavar="LIST", help="Clips to measure on; likewise.")] = None
    clips: Annotated[int | None, typer.Option(min=1, help=f"Training scenes; {CLIPS} by default.")] = None
    validation_clips: Annotated[
        int | None, typer.Option(min=1, help=f"Validation scenes; {VALIDATION_CLIPS} by default.")
    ] = None
    test_clips: Annotated[int | None, typer.Option(min=1, help=f"Test scenes; {TEST_CLIPS} by default.")] = None
    prompts: Annotated[int | None, typer.Option(min=1, help=f"Questions about each scene; {PROMPTS} by default.")] = (
        None
    )
    prompt_noise: Annotated[float | None, typer.Option(help="Drop or replace up to this share of their words.")] = None
    seed: Annotated[int, typer.Option(help="Seed of the questions about scenes.")] = 0

    def splits(self, clips: str) -> "Splits":
        """Sources of the three splits."""
        from crossdraft_lab.train.align.pair import list_splits, scene_splits

        scenes = {name: getattr(self, name) for name in ("clips", "validation_clips", "test_clips", "prompts")}
        if clips == SCENES:
            if self.validation or self.test:
                raise CrossdraftError(
                    "--validation and --test are lists, and scenes have splits of their own; leave them out."
                )
            count, back = self.clips or CLIPS, self.validation_clips or VALIDATION_CLIPS
            return scene_splits(count, back, self.prompts or PROMPTS, self.seed, self.prompt_noise or 0.0)
        given = [name for name, value in (scenes | {"prompt_noise": self.prompt_noise}).items() if value is not None]
        if given:
            name = given[0].replace("_", "-")
            raise CrossdraftError(f"--{name} is for scenes, and {clips} is a list of other clips; leave one out.")
        return list_splits(Path(clips), self.validation, self.test)


@dataclass(frozen=True, slots=True)
class AnswerOptions:
    """Options of the target's answers, and of the devices."""

    captures: Annotated[
        Path | None, typer.Option(help="Folder of the captures train and validation; OUT/captures by default.")
    ] = None
    max_new_tokens: Annotated[int, typer.Option(help="Longest answer, in tokens.")] = 96
    batch: Annotated[int, typer.Option(min=1, help="Answers decoded in one batch.")] = 8
    workers: Annotated[int, typer.Option(min=0, help="Processes that render the next scenes; 0 = none.")] = 1
    device: Device = None
    dtype: Dtype = None
    quantize: Quantize = None

    def settings(self, target: str) -> "AnswerSettings":
        """Return the options as settings of a capture."""
        from crossdraft_lab.train.align.pair import AnswerSettings

        longest, batch, workers = self.max_new_tokens, self.batch, self.workers
        return AnswerSettings(target, self.device, self.dtype, self.quantize, longest, batch, workers)


@app.command(cls=recipe_command("align.tuned", "TuneRecipe", "l6"))
@option_groups
def align(
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help="'reference', or the folder of a Hugging Face checkpoint.")
    ],
    drafter: Annotated[
        str, typer.Argument(metavar="DRAFTER", help="The EventGPT that learns: 'foreign', 'event', or a folder.")
    ],
    source: Annotated[
        str,
        typer.Argument(
            metavar="CLIPS", help="'scenes', or a list of clips with recordings, as crossdraft capture takes it."
        ),
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder of everything; OUT/drafter is the result.")],
    which: ClipOptions,
    answers: AnswerOptions,
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Recipe overrides, such as optim.steps=500")
    ] = None,
    tune: Annotated[
        str, typer.Option(help="lora (additions to its attention), qlora (the same over weights in 4 bits) or full.")
    ] = "lora",
    measure: Annotated[bool, typer.Option("--measure/--no-measure", help="Measure it on the test clips.")] = True,
    nodes: Annotated[int, typer.Option(min=1, help="Tokens of the chains after the hidden draft, when measured.")] = 8,
    force: Annotated[
        bool, typer.Option("--force", help="Tune and measure anew where OUT is finished; its captures are kept.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Capture a target's answers, tune an EventGPT on them, measure it beside controls; every stage is resumed.

    Training may be shared by processes: torchrun --nproc-per-node N -m crossdraft align …
    """
    check_values(
        device=answers.device, dtype=answers.dtype, quantize=answers.quantize, max_new_tokens=answers.max_new_tokens
    )
    _check_given(target, drafter, source, tune)
    from datetime import timedelta

    from crossdraft.cli.reporting import hush, report
    from crossdraft.engine.devices import resolve
    from crossdraft_lab.bench.align import check_drafters
    from crossdraft_lab.bench.align_rows import KeptRows
    from crossdraft_lab.train.align.pair import DRAFTER, begin_anew, check_begun, check_pair, check_shares, open_splits
    from crossdraft_lab.train.align.tuned import TuneInputs, tune_drafter
    from crossdraft_lab.train.core.dist import init_distributed
    from crossdraft_lab.train.core.provenance import write_json

    hush()
    recipe = _recipe(tune, target, drafter, overrides or ())
    recipe.check()
    check_pair(target, drafter, out)
    splits = which.splits(source)
    folder, settings = answers.captures or out / "captures", answers.settings(target)
    if measure:
        check_drafters(tuple(_rows(drafter, out, folder / "train")))
    with init_distributed(resolve(answers.device), timedelta(days=7)) as (ranks, where):
        check_shares(recipe.optim, splits.train, ranks.count)
        tuned = False
        if ranks.first:
            tuned = check_begun(out, REPORT, force=force, measure=measure)
            _check_weights(target, drafter)
            _capture(folder, splits, settings)
        ranks.barrier()  # the other ranks wait for the answers
        stores = open_splits(folder, splits, settings)
        inputs = TuneInputs(recipe, target, drafter, stores["train"], stores["validation"], out, str(where))
        inputs.check(ranks.count)
        if ranks.first and not tuned:
            begin_anew(out, REPORT)  # all inputs have been checked
        ranks.barrier()
        found: dict[str, Any] = {"tuning": tune_drafter(inputs, ranks)}
    if not ranks.first:
        return
    lines = [f"The drafter lies in {out / DRAFTER}; --drafter takes it."]
    if measure:
        measured, sentences = _measured(out, drafter, which, answers, splits, stores["train"], settings, nodes)
        found |= measured
        lines = [*sentences, *lines]
    write_json(out / REPORT, found)
    KeptRows(out / ROWS).remove()  # the report holds them now
    report({"out": str(out / DRAFTER), **found}, *lines, as_json=as_json)


def _check_given(target: str, drafter: str, source: str, tune: str) -> None:
    """Refuse arguments that do not exist, before slow imports."""
    choice("--tune", tune, TUNINGS)
    check_models(target, drafter)
    if source != SCENES and not Path(source).is_file():
        raise CrossdraftError(
            f"There is no list of clips '{source}'{did_you_mean(source, (SCENES,))}; give '{SCENES}', or a file of "
            "JSON lines."
        )


def _recipe(tune: str, target: str, drafter: str, overrides: "Sequence[str]") -> "TuneRecipe":
    """Make the recipe for a way of tuning; it keeps the best weights on validation clips, and skips the measurement."""
    from crossdraft.checkpoints.locate import EVENT_MODELS
    from crossdraft_lab.train.align.tuned import RECIPE, WHOLE_RECIPE, TuneRecipe
    from crossdraft_lab.train.core.recipe import read_section

    reference = target == "reference" and drafter in EVENT_MODELS
    own = ["optim.watch=prefix", "measure.pairs=0", *(["base=int4"] if tune == "qlora" else [])]
    path = WHOLE_RECIPE if tune == "full" else RECIPE
    return read_section(TuneRecipe, path, [*own, *overrides], ("reference", reference))


def _check_weights(target: str, drafter: str) -> None:
    """Refuse a model whose weights are NaN or infinite; show a progress bar."""
    from crossdraft.cli.reporting import progress
    from crossdraft.load import event_folder, target_folder
    from crossdraft_lab.train.core.finite import require_finite_files, weight_files

    folders = {"the target": target_folder(target), "the drafter": event_folder(drafter)}
    with progress("checking weights", sum(len(weight_files(folder)) for folder in folders.values())) as tick:
        for what, folder in folders.items():
            require_finite_files(folder, what, partial(tick, f"of {what}"))


def _capture(folder: Path, splits: "Splits", settings: "AnswerSettings") -> None:
    """Complete the captures; show a progress bar."""
    from contextlib import ExitStack

    from crossdraft.cli.reporting import progress
    from crossdraft_lab.train.align.pair import capture_splits

    with ExitStack() as bars:

        def begin(split: str, count: int) -> "Callable[[], None]":
            tick = bars.enter_context(progress(f"capturing {split}", count))
            return lambda: tick("clips")

        capture_splits(folder, splits, settings, begin)


def _rows(drafter: str, out: Path, capture: Path) -> "Mapping[str, str]":
    """Names of the measured rows by the drafter's spec: before tuning, after it, and after it with a memory.

    Raises:
        CrossdraftError: a path that would be read differently within a spec.
    """
    from crossdraft.specs import Spec, parse
    from crossdraft_lab.train.align.pair import DRAFTER

    aligned, memory = Spec(str(out / DRAFTER)), Spec("memory", settings={"seed": str(capture)})
    found: dict[str, str] = {}
    for spec, row in ((Spec(drafter), BEFORE), (aligned, TUNED), (Spec("union", (aligned, memory)), WITH_MEMORY)):
        try:
            same = parse(str(spec)) == spec
        except CrossdraftError:
            same = False
        if not same:
            raise CrossdraftError(
                f"The drafter '{spec}' cannot be measured: a folder's name has a sign that means something else in a "
                "drafter's name, such as a comma, a colon or a bracket; rename it, or add --no-measure."
            )
        found[str(spec)] = row
    return found


def _measured(
    out: Path,
    drafter: str,
    which: ClipOptions,
    answers: AnswerOptions,
    splits: "Splits",
    store: "CaptureStore",
    settings: "AnswerSettings",
    nodes: int,
) -> "tuple[Mapping[str, Any], list[str]]":
    """Measure the drafter before and after tuning, alone and with a memory of the captured answers, beside controls."""
    from dataclasses import replace

    from crossdraft.cli.reporting import console_for, progress
    from crossdraft_lab.bench.align import (
        AlignBench,
        list_tests,
        rows_config,
        run_align,
        scene_tests,
        taught_questions,
        to_json,
    )
    from crossdraft_lab.bench.align_rows import KeptRows, lines, results_table
    from crossdraft_lab.bench.assembly import Models
    from crossdraft_lab.bench.study import terminal_table
    from crossdraft_lab.train.align.pair import DRAFTER, learned_answers, questions_of

    if splits.test is None:
        each = which.prompts or PROMPTS
        tests, about = scene_tests(which.test_clips or TEST_CLIPS, each, answers.max_new_tokens)
    else:
        clips, longest = map(splits.test.read, range(len(splits.test))), answers.max_new_tokens
        requests = [request for clip in clips for request in clip.requests(longest)]
        known = questions_of(splits.train) | questions_of(splits.validation)
        tests, about = list_tests(requests, known), {"list": str(splits.test.path)}
    aligned, named = str(out / DRAFTER), _rows(drafter, out, store.folder)
    blind = "blind" if settings.target == "reference" else aligned  # without a blind twin: the drafter without events
    models = Models(
        settings.target, blind=blind, device=settings.device, dtype=settings.dtype, quantize=settings.quantize
    )
    questions = taught_questions(tests, learned_answers(store), store.folder, about)
    plan = AlignBench(models, questions, tuple(named), nodes, one_by_one=True)
    plan.check()
    kept = KeptRows(out / ROWS, rows_config(plan, tests, (drafter, aligned), store.index.asked_sha256))
    with progress("measuring", plan.ticks) as tick:
        results = {named.get(name, name): found for name, found in run_align(plan, tick, kept).items()}
    plan = replace(plan, drafters=tuple(named.values()))  # under the names that the report shows
    console_for(as_json=True).print(terminal_table(results_table(results)))
    return to_json(plan, results), list(lines(plan.drafters, results))
