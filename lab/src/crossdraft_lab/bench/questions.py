"""`crossdraft bench questions`: several questions about each clip, with the prefix cache and without it.

The clip is new to every method at its first question. Ours keep what they read of it for the others; `target` and
`target-all` are measured both ways.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from crossdraft.cli.cores import Cores
from crossdraft.engine.fast.pinning import pinned
from crossdraft.engine.runner.forks import forking
from crossdraft_lab.bench.assembly import Models, close_all, cores_of, make_method
from crossdraft_lab.bench.common import check_repeats, table
from crossdraft_lab.bench.environment import environment
from crossdraft_lab.bench.measure import BenchMethod, Results, measure
from crossdraft_lab.bench.specs import ALONE, HUGGING_FACE, check_methods
from crossdraft_lab.bench.statistics import Interval, quartiles, ratio
from crossdraft_lab.bench.workload import Item, Workload, describe, items

if TYPE_CHECKING:
    from rich.table import Table

DRAFTERS = ("glance", "event", "eagle2")
UNCACHED = " (no cache)"
HF = tuple(name for name in ("hf", "hf-all") if name in HUGGING_FACE)


@dataclass(frozen=True, slots=True)
class Questions:
    """Settings of a measurement of several questions about a clip.

    Args:
        models: the checkpoints, devices and dtypes.
        work: clips and how many questions about each.
        drafters: specs.
        repeats: runs of every clip with all its questions.
        cores: of the target's process and of a drafter's own.
        warm_ups: clips of another split that are asked about before the clock starts.

    Raises:
        CrossdraftError: a drafter that is unknown or named twice, or a number that is too small.
    """

    models: Models
    work: Workload
    drafters: tuple[str, ...] = DRAFTERS
    repeats: int = 1
    cores: Cores | None = None
    warm_ups: int = 1

    def __post_init__(self) -> None:
        check_methods((*HF, *ALONE), self.drafters)
        check_repeats(self.repeats)

    @property
    def names(self) -> tuple[str, ...]:
        """All methods; a core assignment that is no other one is left out."""
        one_share = self.cores is None or self.cores.pair == self.cores.target
        alone = ALONE[:1] if one_share else ALONE
        return (*(HF[:1] if one_share else HF), *(name + UNCACHED for name in alone), *alone, *self.drafters)

    @property
    def runs(self) -> int:
        """Number of answers that are timed: the steps of the progress bar."""
        return len(self.names) * (self.work.pairs * self.repeats + self.warm_ups * self.work.questions)


@dataclass(frozen=True, slots=True)
class QuestionsRow:
    """One method's figures.

    Args:
        name: of the method; without the prefix cache where it says so.
        identical: answers that are the target's own, of `total`.
        first_ms, next_ms: E2E of a clip's first question, and of the others; medians.
        next_ttft_ms: time to the first token of the others.
        speedup: E2E of all questions against the faster core assignment of `hf`, of the target without and with it.
    """

    name: str
    identical: int
    total: int
    first_ms: float
    next_ms: float
    next_ttft_ms: float
    speedup: Mapping[str, Interval]

    def to_json(self) -> dict[str, object]:
        """Plain values."""
        times = {"first_ms": self.first_ms, "next_ms": self.next_ms, "next_ttft_ms": self.next_ttft_ms}
        return {
            "name": self.name,
            "identical": f"{self.identical}/{self.total}",
            **{name: round(value, 2) for name, value in times.items()},
            "speedup": {name: interval.to_json() for name, interval in self.speedup.items()},
        }


def run_questions(plan: Questions, tick: Callable[[str], None] | None = None) -> list[QuestionsRow]:
    """Measure all methods, interleaved in one process that is pinned to the cores of the pair."""
    with forking([__name__]), pinned(None if plan.cores is None else plan.cores.pair):
        return _run(plan, tick)


def _run(plan: Questions, tick: Callable[[str], None] | None) -> list[QuestionsRow]:
    asked = list(items(plan.work))
    warm = replace(plan.work, pairs=max(1, plan.warm_ups * plan.work.questions), split="validation", first=0)
    warm_ups = list(items(warm)) if plan.warm_ups else []
    target = plan.models.load_target()
    plain = plan.models.load_target(packed=False)
    made: dict[str, BenchMethod] = {}
    try:
        for name in plan.names:
            method = name.removesuffix(UNCACHED)
            kept = 0 if method != name else None
            made[name] = make_method(method, plain if name in HUGGING_FACE else target, plan.models, plan.cores, kept)
        results = measure(made, asked, plan.repeats, warm_ups, tick)
    finally:
        close_all(made.values())
    return rows(results, asked, plan.work.questions)


def rows(results: Results, asked: Sequence[Item], questions: int) -> list[QuestionsRow]:
    """The figures of every method; scenes are what intervals are drawn from, and all of a scene counts as one time."""
    names = list(results.runs)
    clips = [range(start, min(start + questions, len(asked))) for start in range(0, len(asked), questions)]
    seconds = {name: [sum(results.seconds(name)[i] for i in clip) for clip in clips] for name in names}

    def fastest(found: Sequence[str]) -> str | None:
        return min((name for name in found if name in names), key=lambda name: sum(seconds[name]), default=None)

    against = {
        "hf": fastest(HF),
        "target without cache": fastest([name + UNCACHED for name in ALONE]),
        "target with cache": fastest(ALONE),
    }
    own = fastest([name + UNCACHED for name in ALONE])
    expected = [] if own is None else [pair[0].tokens for pair in results.runs[own]]
    found = [_row(results, name, clips, expected) for name in names]
    return [
        replace(row, speedup={of: ratio(seconds[one], seconds[row.name]) for of, one in against.items() if one})
        for row in found
    ]


def _row(results: Results, name: str, clips: Sequence[range], expected: Sequence[Sequence[int]]) -> QuestionsRow:
    runs = results.runs[name]
    first = [run for clip in clips for run in runs[clip[0]]]
    after = [run for clip in clips for i in clip[1:] for run in runs[i]] or first
    same = sum(run.tokens == tokens for pair, tokens in zip(runs, expected, strict=True) for run in pair)
    return QuestionsRow(
        name,
        same,
        len(results.of(name)),
        quartiles([run.total_s for run in first]).median * 1e3,
        quartiles([run.total_s for run in after]).median * 1e3,
        quartiles([run.ttft_s for run in after]).median * 1e3,
        {},
    )


def results_table(found: Sequence[QuestionsRow], work: Workload) -> "Table":
    """The figures for people."""
    of = list(found[0].speedup)
    title = f"{work.scenes} clips, {work.questions} questions about each"
    columns = ("identical", "first question", "next ones", "their TTFT", *(f"× {name}" for name in of))
    shown = table(title, "method", columns)
    for row in found:
        times = (f"{value:.0f} ms" for value in (row.first_ms, row.next_ms, row.next_ttft_ms))
        shown.add_row(row.name, f"{row.identical}/{row.total}", *times, *(str(row.speedup[name]) for name in of))
    return shown


def to_json(plan: Questions, found: Sequence[QuestionsRow]) -> dict[str, object]:
    """Plain values."""
    cores = {name: cores_of(name.removesuffix(UNCACHED), plan.cores) for name in plan.names}
    return {
        "environment": environment(),
        "workload": describe(plan.work),
        "repeats": plan.repeats,
        "cores": {name: None if one is None else str(one) for name, one in cores.items()},
        "methods": [row.to_json() for row in found],
    }
