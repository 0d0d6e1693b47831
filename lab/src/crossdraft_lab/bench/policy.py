"""`crossdraft bench policy`: does the cost model draft as well as the best fixed budget that a sweep can find?

Four loads, of questions with long answers:

- easy: the drafter sees, and answers are greedy; deep drafts pay;
- hard: its camera is dark and answers are sampled at temperature 2, so that a third of its tokens are refused; short
  drafts pay, deep ones cost more than they save. (At temperature 1 a dark drafter still writes so well that every
  budget pays, and nothing is decided);
- mixed: half of the requests are dark, greedy. A fixed budget must compromise; a policy can tell one from the other,
  but only within an answer;
- hopeless: dark, at temperature 3, where three of four tokens are refused and any drafting loses: the policy must
  find that out and keep out of the way.

Sampled answers are cut at a length that nearly all of them reach, so that nobody gains by saying less. The best fixed
budget is picked by the very runs that it is compared on, which flatters it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from crossdraft.api import Engine, Options
from crossdraft.assembly import assemble
from crossdraft.checkpoints.locate import REFERENCE
from crossdraft.cli.cores import Cores
from crossdraft.engine.cost_model import CostModel
from crossdraft.engine.runner.runner import DraftRunner
from crossdraft.engine.target import Target
from crossdraft.errors import CrossdraftError
from crossdraft.models.eventgpt import EventGPTConfig
from crossdraft_lab.bench.assembly import EngineMethod, Models, options_of
from crossdraft_lab.bench.baselines import white_frames
from crossdraft_lab.bench.common import check_names, check_repeats, table
from crossdraft_lab.bench.measure import Results, Run, measure
from crossdraft_lab.bench.statistics import Interval
from crossdraft_lab.bench.workload import Item, Workload, items

if TYPE_CHECKING:
    from rich.table import Table

ALONE, POLICY = "target", "policy"
# Nodes of a round, and of the hidden draft.
BUDGETS = ((1, 64), (2, 64), (4, 64), (8, 64), (16, 64), (32, 64), (2, 8), (8, 8))
WARM_UPS = 4
WAITING = ("draft", "communication")  # stages in which the target waits for a draft
LONG, CUT = 96, 40  # tokens of the longest answer: to its end, and where nearly all are cut


@dataclass(frozen=True, slots=True)
class Load:
    """A kind of traffic: which requests are `dark`, in turn, and how warm they are sampled (0 = greedily)."""

    dark: tuple[bool, ...]
    temperature: float = 0.0


LOADS = {
    "easy": Load((False,)),
    "hard": Load((True,), 2.0),
    "mixed": Load((False, True, True, False)),  # not in step with the two kinds of question, which come in turn too
    "hopeless": Load((True,), 3.0),
}
Tick = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Sweep:
    """Settings of a sweep over loads and draft budgets.

    Args:
        models: the pair; the drafter `event` runs in a process of its own.
        pairs, repeats: of each load.
        loads: names out of `LOADS`.
        cores: of both sides; `None` leaves the affinity as it is (GPUs).

    Raises:
        CrossdraftError: an unknown load, or a number that is too small; so that nothing is loaded for nothing.
    """

    models: Models
    pairs: int = 40
    repeats: int = 1
    loads: tuple[str, ...] = tuple(LOADS)
    cores: Cores | None = None
    budgets: tuple[tuple[int, int], ...] = BUDGETS

    def __post_init__(self) -> None:
        check_names("load", self.loads, tuple(LOADS))
        if not self.loads:
            raise CrossdraftError(f"No load is named; choose among {', '.join(LOADS)}.")
        check_repeats(self.repeats)
        workload("easy", self.pairs)

    @property
    def runs(self) -> int:
        """Number of answers it asks for: the steps of the progress bar."""
        return len(self.loads) * (len(self.budgets) + 2) * (WARM_UPS + self.pairs * self.repeats)


@dataclass(frozen=True, slots=True)
class BudgetResult:
    """One method under one load: its speed against the target alone, and what it drafted for it."""

    name: str
    speedup: Interval
    tau: Interval
    drafted: Interval | None

    def to_json(self) -> dict[str, object]:
        """Plain values."""
        return {
            "name": self.name,
            **self.speedup.to_json("speedup"),
            "tau": self.tau.to_json(),
            "drafting_share": None if self.drafted is None else self.drafted.to_json(),
        }


@dataclass(frozen=True, slots=True)
class LoadResult:
    """One load: every method, the best fixed budget, and the policy against it and against the target alone."""

    load: str
    lines: tuple[BudgetResult, ...]
    best: str
    against_best: Interval
    against_target: Interval
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, object]:
        """Plain values."""
        return {
            "load": self.load,
            "methods": [line.to_json() for line in self.lines],
            "best_fixed": self.best,
            "policy_over_best_fixed": self.against_best.to_json(),
            "policy_over_target": self.against_target.to_json(),
            "notes": list(self.notes),
        }


def run_sweep(sweep: Sweep, target: Target, tick: Tick | None = None) -> list[LoadResult]:
    """Every method answers every request of every load, in turn.

    One drafter process serves all of them, one answer at a time: what they differ in is what they ask of it. Each load
    starts with a fresh cost model and a few warm-ups, so that none profits from what another has taught.

    Raises:
        CrossdraftError: the drafter cannot be loaded.
    """
    blank = _blank(sweep.models.event)
    cores = sweep.cores
    models = sweep.models
    drafter = assemble(models.spec("event"), models.context(target), target, options_of("event", models, cores))
    try:
        loads = []
        for load in sweep.loads:
            made = methods(target, drafter, sweep.budgets)
            work = workload(load, sweep.pairs)
            warm_ups = list(requests(load, replace(work, pairs=WARM_UPS, split="validation"), blank))
            results = measure(made, list(requests(load, work, blank)), sweep.repeats, warm_ups, tick)
            loads.append(load_result(load, results))
        return loads
    finally:
        drafter.close()


def workload(load: str, pairs: int) -> Workload:
    """The questions of a load."""
    heat = LOADS[load].temperature
    return Workload(pairs, "long", max_new_tokens=CUT if heat else LONG, temperature=heat)


def requests(load: str, work: Workload, blank: object) -> Iterator[Item]:
    """The pairs of a load; `blank` stands for the events where the camera is dark."""
    turns = LOADS[load].dark
    for index, item in enumerate(items(work)):
        dark = turns[index % len(turns)]
        yield replace(item, request=replace(item.request, events=blank)) if dark else item


def methods(
    target: Target, drafter: DraftRunner[Any], budgets: Sequence[tuple[int, int]] = BUDGETS
) -> Mapping[str, EngineMethod]:
    """The target alone, the fixed budgets, the policy. They share the drafter: never close one of them."""
    fixed = {
        f"{nodes}, hidden {hidden}": Options(nodes=nodes, hidden_nodes=hidden, adaptive=False, cache_bytes=0)
        for nodes, hidden in budgets
    }
    made = {ALONE: Engine(target, None, Options(cache_bytes=0), CostModel())}
    for name, options in {**fixed, POLICY: Options(cache_bytes=0)}.items():
        made[name] = Engine(target, drafter, options, CostModel())
    return {name: EngineMethod(engine) for name, engine in made.items()}


def load_result(load: str, results: Results) -> LoadResult:
    """The figures of one load, and what the engine wanted to be known (a drafter that was lost)."""
    notes = tuple(sorted({note for name in results.runs for run in results.of(name) for note in run.notes}))
    lines = tuple(_line(name, results) for name in results.runs)
    fixed = [line for line in lines if line.name not in (ALONE, POLICY)]
    best = max(fixed, key=lambda line: line.speedup.value).name
    return LoadResult(load, lines, best, speed(results, POLICY, best), speed(results, POLICY, ALONE), notes)


def speed(results: Results, name: str, against: str) -> Interval:
    """Compute the speed-up; per token where the answers differ in length."""
    return results.speedup(name, against, per_token=results.tokens(against) != results.tokens(name))


def _line(name: str, results: Results) -> BudgetResult:
    def waiting(run: Run) -> float:
        return sum(run.stages_s.get(stage, 0.0) for stage in WAITING)

    waited = results.share(name, waiting, lambda run: run.total_s)
    return BudgetResult(name, speed(results, name, ALONE), results.tau(name), waited)


def _blank(event: str) -> object:
    """White event frames: what a camera sees in the dark."""
    return white_frames(EventGPTConfig.from_pretrained(REFERENCE / event if event == "event" else event))


def results_table(results: Sequence[LoadResult]) -> "Table":
    """One line per method, a pair of columns per load."""
    title = "times as fast as the target alone [95 % bootstrap over pairs]"
    rows = table(title, "drafted in a round", [head for each in results for head in (each.load, "τ")])
    for lines in zip(*(each.lines for each in results), strict=True):
        rows.add_row(lines[0].name, *(cell for line in lines for cell in (str(line.speedup), str(line.tau))))
    return rows


def sentences(results: Sequence[LoadResult]) -> list[str]:
    """A sentence for each load."""
    return [
        f"{each.load}: the policy is {each.against_best} times as fast as the best fixed budget ({each.best}), and "
        f"{each.against_target} times as fast as the target alone. {' '.join(each.notes)}".rstrip()
        for each in results
    ]
