"""`crossdraft plan`: does drafting pay on this machine, and how much of it?"""

from typing import TYPE_CHECKING, Annotated

import typer

from crossdraft.bench.common import check_outputs, write_json
from crossdraft.cli.options import AsJson, Force, JsonOut
from crossdraft.cli.reporting import console_for, core_each, hush, progress
from crossdraft.errors import CrossdraftError

if TYPE_CHECKING:
    from crossdraft.bench.plan import Advice, Stages

app = typer.Typer(add_completion=False)

TYPED, PAIR = "Numbers of your own, in milliseconds", "Or measured here"
OF_BOTH = ("measure", "as_json", "json_out", "force")
MEASURE_ONLY = ("target", "drafter", "pairs", "device", "dtype", "draft_device", "target_cores", "draft_cores")


@app.command()
def plan(
    ctx: typer.Context,
    prefill: Annotated[
        float | None, typer.Option(help="The target's encode and prefill.", rich_help_panel=TYPED)
    ] = None,
    step: Annotated[float | None, typer.Option(help="One decode step of the target, t.", rich_help_panel=TYPED)] = None,
    draft_step: Annotated[float | None, typer.Option(help="One drafted token.", rich_help_panel=TYPED)] = None,
    c: Annotated[
        float | None, typer.Option("--c", help="Instead: draft step over step.", rich_help_panel=TYPED)
    ] = None,
    alpha: Annotated[
        str | None,
        typer.Option(
            metavar="A[,A...]",
            help="How likely a drafted token is accepted, given those before it: one for all, or one by position.",
            rich_help_panel=TYPED,
        ),
    ] = None,
    tokens: Annotated[int | None, typer.Option(help="Length of an answer in tokens.", rich_help_panel=TYPED)] = None,
    draft_prefill: Annotated[
        float | None, typer.Option(help="The drafter's encode and prefill; 0 by default.", rich_help_panel=TYPED)
    ] = None,
    verify: Annotated[
        str | None,
        typer.Option(
            metavar="N:MS[,N:MS...]",
            help="V(n), the target's pass over n new tokens; by default as long as a step.",
            rich_help_panel=TYPED,
        ),
    ] = None,
    verify_slope: Annotated[
        float | None, typer.Option(help="Instead: what each further token adds to a pass.", rich_help_panel=TYPED)
    ] = None,
    shared: Annotated[
        bool, typer.Option("--shared", help="The drafter has no device of its own.", rich_help_panel=TYPED)
    ] = False,
    measure: Annotated[
        bool, typer.Option("--measure", help="Measure the stages of a pair on this machine.", rich_help_panel=PAIR)
    ] = False,
    target: Annotated[
        str, typer.Option(help="'reference', or the folder of a checkpoint.", rich_help_panel=PAIR)
    ] = "reference",
    drafter: Annotated[
        str,
        typer.Option(
            help="event, blind, text, ngram, memory, union:event,memory …, or the folder of an EventGPT.",
            rich_help_panel=PAIR,
        ),
    ] = "event",
    pairs: Annotated[int, typer.Option(help="(scene, question) pairs.", rich_help_panel=PAIR)] = 8,
    device: Annotated[
        str | None, typer.Option(help="Device of the target; by default CUDA if there is a GPU.", rich_help_panel=PAIR)
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="float32, bfloat16 …", rich_help_panel=PAIR)] = None,
    draft_device: Annotated[
        str | None, typer.Option(help="Device of the drafter; by default the target's.", rich_help_panel=PAIR)
    ] = None,
    target_cores: Annotated[
        str | None, typer.Option(help="CPU cores of the target, as 0 or 0-3; by default one.", rich_help_panel=PAIR)
    ] = None,
    draft_cores: Annotated[
        str | None, typer.Option(help="CPU cores of the drafter; by default one other.", rich_help_panel=PAIR)
    ] = None,
    as_json: AsJson = False,
    json_out: JsonOut = None,
    force: Force = False,
) -> None:
    """Draft or not, and how much: break-even points, best budgets, the bound of all hiding, where the time goes.

    From numbers typed in, or with --measure from a few answers of a pair on this machine. Times are simulated.
    """
    from crossdraft.bench.plan import advise, to_json

    check_outputs(json_out, force=force)
    _refuse_mixture(ctx, measure)
    if measure:
        from crossdraft.bench.plan_measure import Pair, measure_stages

        hush()
        cores = core_each(device, target_cores, draft_cores)
        pair = Pair(target, drafter, device, dtype, draft_device, cores)
        with progress("measuring", 2 * (pairs + 1) + 1) as tick:
            stages = measure_stages(pair, pairs, tick)
    else:
        stages = _typed(prefill, step, draft_step, c, alpha, tokens, draft_prefill, verify, verify_slope, shared=shared)
    advice = advise(stages, measured=measure)
    _show(advice, as_json=as_json)
    write_json(to_json(advice), json_out, stdout=as_json)


def _refuse_mixture(ctx: typer.Context, measure: bool) -> None:
    """Numbers are typed in or measured; of both, half would be lost."""
    for option in ctx.command.params:
        name, source = option.name or "", ctx.get_parameter_source(option.name or "")
        if source is None or source.name != "COMMANDLINE" or name in OF_BOTH:
            continue
        if measure and name not in MEASURE_ONLY:
            raise CrossdraftError(f"--measure measures what {option.opts[0]} says; give one of the two.")
        if not measure and name in MEASURE_ONLY:
            raise CrossdraftError(f"{option.opts[0]} is about a pair to be measured; add --measure.")


def _typed(
    prefill: float | None,
    step: float | None,
    draft_step: float | None,
    c: float | None,
    alpha: str | None,
    tokens: int | None,
    draft_prefill: float | None,
    verify: str | None,
    verify_slope: float | None,
    *,
    shared: bool,
) -> "Stages":
    """The stages as they were typed in.

    Raises:
        CrossdraftError: a number is missing, stands there twice, or is out of range.
    """
    from crossdraft.bench.plan import Stages

    for one, other, both in (
        ("--draft-step", "--c", draft_step is not None and c is not None),
        ("--verify", "--verify-slope", verify is not None and verify_slope is not None),
    ):
        if both:
            raise CrossdraftError(f"{one} and {other} say the same in two ways; give one of them.")
    if draft_step is None and c is not None and step is not None:
        draft_step = c * step
    if prefill is None or step is None or draft_step is None or alpha is None or tokens is None:
        asked = {
            "--prefill": prefill,
            "--step": step,
            "--draft-step (or --c)": c if draft_step is None else draft_step,
            "--alpha": alpha,
            "--tokens": tokens,
        }
        missing = ", ".join(name for name, value in asked.items() if value is None)
        raise CrossdraftError(f"To plan, give {missing} as well, or --measure to measure a pair here.")
    for name, value in (("c", c), ("verify slope", verify_slope)):
        if value is not None and not value >= 0:  # not of nan either
            raise CrossdraftError(f"The {name} is {value:g}; give 0 or more.")
    passes = () if verify is None else _points(verify)
    if verify_slope is not None:
        passes = ((2, step + verify_slope),)
    return Stages(
        prefill, step, draft_step, _probs(alpha), tokens, draft_prefill or 0.0, passes, 1.0 if shared else 0.0
    )


def _probs(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise CrossdraftError(
            f"The acceptance '{text}' is no list of numbers; write it as 0.8 or 0.9,0.7,0.6."
        ) from error


def _points(text: str) -> tuple[tuple[int, float], ...]:
    try:
        pairs = [part.split(":") for part in text.split(",")]
        return tuple((int(n), float(time)) for n, time in pairs)
    except ValueError as error:
        raise CrossdraftError(
            f"'{text}' is no list of passes; write tokens:milliseconds as 1:15.2,8:16,22:68.9."
        ) from error


def _show(advice: "Advice", *, as_json: bool) -> None:
    from rich.table import Table

    from crossdraft.bench.plan import STRATEGIES_HEAD, figures, sentence, strategy_rows

    strategies = Table(*STRATEGIES_HEAD, title=advice.source, title_justify="left")
    for row in strategy_rows(advice):
        strategies.add_row(*row)
    numbers = Table("figure", "value")
    for row in figures(advice):
        numbers.add_row(*row)
    console_for(as_json=as_json).print(strategies, numbers, sentence(advice), sep="\n", highlight=False)
