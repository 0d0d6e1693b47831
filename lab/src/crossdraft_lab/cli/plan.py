"""`crossdraft plan`: whether drafting pays on this machine, and the best draft lengths."""

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from crossdraft.cli.options import check_values, option_groups
from crossdraft.cli.reporting import hush, progress
from crossdraft.errors import CrossdraftError
from crossdraft_lab.cli.bench_options import ReportOptions, core_each

if TYPE_CHECKING:
    from crossdraft_lab.bench.plan import Stages

app = typer.Typer(add_completion=False)

TYPED, PAIR = "Numbers of your own, in milliseconds", "Or measured here"


@dataclass(frozen=True, slots=True)
class TypedStages:
    """Stages that are typed in."""

    prefill: Annotated[float | None, Option(help="The target's encode and prefill.", rich_help_panel=TYPED)] = None
    step: Annotated[float | None, Option(help="One decode step of the target, t.", rich_help_panel=TYPED)] = None
    draft_step: Annotated[float | None, Option(help="One drafted token.", rich_help_panel=TYPED)] = None
    c: Annotated[float | None, Option("--c", help="Instead: draft step over step.", rich_help_panel=TYPED)] = None
    alpha: Annotated[
        str | None,
        Option(
            metavar="A[,A...]",
            help="How likely a drafted token is accepted, given those before it: one for all, or one by position.",
            rich_help_panel=TYPED,
        ),
    ] = None
    tokens: Annotated[int | None, Option(help="Length of an answer in tokens.", rich_help_panel=TYPED)] = None
    draft_prefill: Annotated[
        float | None, Option(help="The drafter's encode and prefill; 0 by default.", rich_help_panel=TYPED)
    ] = None
    verify: Annotated[
        str | None,
        Option(
            metavar="N:MS[,N:MS...]",
            help="V(n), the target's pass over n new tokens; by default as long as a step.",
            rich_help_panel=TYPED,
        ),
    ] = None
    verify_slope: Annotated[
        float | None, Option(help="Instead: what each further token adds to a pass.", rich_help_panel=TYPED)
    ] = None
    shared: Annotated[bool, Option("--shared", help="The drafter has no device of its own.", rich_help_panel=TYPED)] = (
        False
    )

    def stages(self) -> "Stages":
        """Return the stages from the numbers that were typed in.

        Raises:
            CrossdraftError: a number is missing, is given twice, or is out of range.
        """
        from crossdraft_lab.bench.plan import Stages

        for one, other, values in (
            ("--draft-step", "--c", (self.draft_step, self.c)),
            ("--verify", "--verify-slope", (self.verify, self.verify_slope)),
        ):
            if None not in values:
                raise CrossdraftError(f"{one} and {other} say the same in two ways; give one of them.")
        prefill, step, tokens, alpha, slope = self.prefill, self.step, self.tokens, self.alpha, self.verify_slope
        draft_step = self.draft_step
        if draft_step is None and self.c is not None and step is not None:
            draft_step = self.c * step
        if prefill is None or step is None or draft_step is None or alpha is None or tokens is None:
            needed = {
                "--prefill": prefill,
                "--step": step,
                "--draft-step (or --c)": self.c if draft_step is None else draft_step,
                "--alpha": alpha,
                "--tokens": tokens,
            }
            missing = ", ".join(name for name, value in needed.items() if value is None)
            raise CrossdraftError(f"To plan, give {missing} as well, or --measure to measure a pair here.")
        for name, value in (("c", self.c), ("verify slope", slope)):
            if value is not None and not value >= 0:  # also refuses NaN
                raise CrossdraftError(f"The {name} is {value:g}; give 0 or more.")
        passes = () if self.verify is None else _points(self.verify)
        if slope is not None:
            passes = ((2, step + slope),)
        probs, contention = _probs(alpha), 1.0 if self.shared else 0.0
        return Stages(prefill, step, draft_step, probs, tokens, self.draft_prefill or 0.0, passes, contention)


@dataclass(frozen=True, slots=True)
class MeasuredPair:
    """The pair whose stages are measured, and the number of questions."""

    target: Annotated[str, Option(help="'reference', or the folder of a checkpoint.", rich_help_panel=PAIR)] = (
        "reference"
    )
    drafter: Annotated[
        str,
        Option(
            help="event, blind, text, ngram, memory, union:event,memory …, or the folder of an EventGPT.",
            rich_help_panel=PAIR,
        ),
    ] = "event"
    pairs: Annotated[int, Option(help="(scene, question) pairs.", rich_help_panel=PAIR)] = 8
    device: Annotated[
        str | None, Option(help="Device of the target; by default CUDA if there is a GPU.", rich_help_panel=PAIR)
    ] = None
    dtype: Annotated[str | None, Option(help="float32, bfloat16 …", rich_help_panel=PAIR)] = None
    draft_device: Annotated[
        str | None, Option(help="Device of the drafter; by default the target's.", rich_help_panel=PAIR)
    ] = None
    target_cores: Annotated[
        str | None, Option(help="CPU cores of the target, as 0 or 0-3; by default one.", rich_help_panel=PAIR)
    ] = None
    draft_cores: Annotated[
        str | None, Option(help="CPU cores of the drafter; by default one other.", rich_help_panel=PAIR)
    ] = None
    quantize: Annotated[
        str | None,
        Option(help="Weights of target and drafter in fewer bits: int8 or int4, on a CPU.", rich_help_panel=PAIR),
    ] = None
    draft_quantize: Annotated[
        str | None, Option(help="The drafter's, or none; by default the target's.", rich_help_panel=PAIR)
    ] = None

    def stages(self) -> "Stages":
        """Measure the stages on a few answers."""
        check_values(quantize=self.quantize, draft_quantize=self.draft_quantize)
        from crossdraft_lab.bench.plan_measure import Pair, measure_stages

        hush()
        cores = core_each(self.device, self.target_cores, self.draft_cores)
        quantize = self.quantize, self.draft_quantize
        pair = Pair(self.target, self.drafter, self.device, self.dtype, self.draft_device, cores, *quantize)
        with progress("measuring", 2 * (self.pairs + 1) + 1) as tick:
            return measure_stages(pair, self.pairs, tick)


@app.command()
@option_groups
def plan(
    ctx: typer.Context,
    typed: TypedStages,
    measured: MeasuredPair,
    output: ReportOptions,
    measure: Annotated[
        bool, Option("--measure", help="Measure the stages of a pair on this machine.", rich_help_panel=PAIR)
    ] = False,
) -> None:
    """Draft or not, and how much: break-even points, best budgets, the most that hiding can reach, where the time goes.

    From numbers typed in, or with --measure from a few answers of a pair on this machine. Times are simulated.
    """
    from crossdraft_lab.bench.plan import STRATEGIES_HEAD, advise, figures, sentence, strategy_rows, to_json

    output.check()
    _refuse_mixture(ctx, measure)
    advice = advise(measured.stages() if measure else typed.stages(), measured=measure)

    from rich.table import Table

    strategies = Table(*STRATEGIES_HEAD, title=advice.source, title_justify="left")
    for row in strategy_rows(advice):
        strategies.add_row(*row)
    numbers = Table("figure", "value")
    for row in figures(advice):
        numbers.add_row(*row)
    output.console.print(strategies, numbers, sentence(advice), sep="\n", highlight=False)
    output.write(to_json(advice))


def _refuse_mixture(ctx: typer.Context, measure: bool) -> None:
    """Refuse options that the chosen way, typed numbers or a measured pair, would ignore."""
    unread = {option.name for option in fields(TypedStages if measure else MeasuredPair)}
    for option in ctx.command.params:
        source = ctx.get_parameter_source(option.name or "")
        if source is None or source.name != "COMMANDLINE" or option.name not in unread:
            continue
        if measure:
            raise CrossdraftError(f"--measure measures what {option.opts[0]} says; give one of the two.")
        raise CrossdraftError(f"{option.opts[0]} is about a pair to be measured; add --measure.")


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
