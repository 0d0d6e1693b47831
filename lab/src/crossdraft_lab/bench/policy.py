"""`crossdraft bench policy`: does the cost model draft as well as the best fixed budget that a sweep can find?

There are four loads, of questions with long answers:

- easy: the drafter sees, and answers are greedy; deep drafts pay;
- hard: its camera is dark and answers are sampled at temperature 2, so that a third of its tokens are refused; short
  drafts pay, deep ones cost more than they save. (At temperature 1 a dark drafter still drafts so well that every
  budget pays, and the load would not tell budgets apart);
- mixed: half of the requests are dark, all greedy. A fixed budget must compromise; a policy can tell the two apart,
  but only within an answer;
- hopeless: dark, at temperature 3, where three of four tokens are refused and any drafting loses: the policy must
  find that out and stop drafting.

Sampled answers are cut at a length that nearly all of them reach, so that no method gains by short answers. The best
fixed budget is picked on the very runs that it is compared on, which flatters it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from crossdraft.api import Engine, Options
from crossdraft.assembly import assemble
from crossdraft.checkpoints.locate import REFERENCE
from crossdraft.cli.cores import Cores
from crossdraft.engine.cost_model import CostModel
from crossdraft.engine.target import Target
from crossdraft.errors import CrossdraftError
from crossdraft.models.eventgpt import EventGPTConfig
from crossdraft_lab.bench.assembly import EngineMethod, Models, options_of
from crossdraft_lab.bench.baselines import white_frames
from crossdraft_lab.bench.common import check_names, check_repeats
from crossdraft_lab.bench.experiments.record import FigureTable, Tick
from crossdraft_lab.bench.measure import Run
from crossdraft_lab.bench.statistics import Interval
from crossdraft_lab.bench.study import Answers, Study, plain
from crossdraft_lab.bench.variants import Variant
from crossdraft_lab.bench.workload import Item, Workload, items

ALONE, POLICY = "target", "policy"
# Nodes of a round, and of the hidden draft.
BUDGETS = ((1, 64), (2, 64), (4, 64), (8, 64), (16, 64), (32, 64), (2, 8), (8, 8))
WARM_UPS = 4
WAITING = ("draft", "communication")  # stages in which the target waits for a draft
LONG, CUT = 96, 40  # tokens of the longest answer: to its end, and where nearly all are cut


@dataclass(frozen=True, slots=True)
class Load:
    """Kind of traffic: for requests in turn, whether each is `dark`; and the sampling temperature (0 = greedy)."""

    dark: tuple[bool, ...]
    temperature: float = 0.0


LOADS = {
    "easy": Load((False,)),
    "hard": Load((True,), 2.0),
    "mixed": Load((False, True, True, False)),  # unlike the two kinds of question, which alternate
    "hopeless": Load((True,), 3.0),
}


class SharedMethod(EngineMethod):
    """An engine whose drafter serves other methods, too: the creator of the drafter closes it."""

    def close(self) -> None:
        """Do nothing: the drafter is closed by its creator."""


def speed(found: Answers, name: str, against: str = ALONE) -> Interval:
    """Compute the speed-up; per token where the answers differ in length."""
    tokens = found.results.tokens
    return found.results.speedup(name, against, per_token=tokens(against) != tokens(name))


def drafting_share(found: Answers, name: str) -> Interval | None:
    """Share of the time in which the target waits for a draft."""

    def waiting(run: Run) -> float:
        return sum(run.stages_s.get(stage, 0.0) for stage in WAITING)

    return found.results.share(name, waiting, lambda run: run.total_s)


def policy_studies(
    models: Models,
    pairs: int = 40,
    repeats: int = 1,
    loads: Sequence[str] = tuple(LOADS),
    budgets: Sequence[tuple[int, int]] = BUDGETS,
) -> dict[str, Study]:
    """One study for each load, of the target alone, the fixed budgets and the policy; drafters are made later.

    Raises:
        CrossdraftError: an unknown load, or a number that is too small, found before anything is loaded.
    """
    check_names("load", loads, tuple(LOADS))
    if not loads:
        raise CrossdraftError(f"No load is named; choose among {', '.join(LOADS)}.")
    check_repeats(repeats)
    fixed = {
        f"{nodes}, hidden {hidden}": {"nodes": nodes, "hidden_nodes": hidden, "adaptive": False}
        for nodes, hidden in budgets
    }
    rows = {ALONE: {}, **fixed, POLICY: {}}
    variants = tuple(Variant(name, ALONE if name == ALONE else "event", options=own) for name, own in rows.items())
    return {
        load: Study(variants, workload(load, pairs), repeats=repeats, warm_ups=WARM_UPS, models=models)
        for load in loads
    }


def workload(load: str, pairs: int) -> Workload:
    """The questions of a load."""
    heat = LOADS[load].temperature
    return Workload(pairs, "long", max_new_tokens=CUT if heat else LONG, temperature=heat)


def requests(load: str, blank: object, work: Workload) -> Iterator[Item]:
    """Requests of a load; `blank` replaces the events where the camera is dark."""
    turns = LOADS[load].dark
    for index, item in enumerate(items(work)):
        dark = turns[index % len(turns)]
        yield replace(item, request=replace(item.request, events=blank)) if dark else item


def run_policy(
    studies: dict[str, Study], target: Target, cores: Cores | None = None, tick: Tick = lambda _: None
) -> dict[str, Answers]:
    """Have every method answer every request of every load, in turn.

    One drafter process serves all methods, one answer at a time; methods differ only in the lengths of their drafts.
    Each load starts with a fresh cost model and a few warm-ups, so that no load profits from another's measurements.

    Raises:
        CrossdraftError: the drafter cannot be loaded.
    """
    models = next(iter(studies.values())).models
    event = REFERENCE / models.event if models.event == "event" else models.event
    blank = white_frames(EventGPTConfig.from_pretrained(event))
    drafter = assemble(models.spec("event"), models.context(target), target, options_of("event", models, cores))

    def made(variant: Variant, own: Target, _: Models) -> SharedMethod:
        options = Options(cache_bytes=0, **variant.options)
        return SharedMethod(Engine(own, None if variant.name == ALONE else drafter, options, CostModel()))

    try:
        return {
            load: replace(
                study,
                variants=tuple(replace(one, make=partial(made, one)) for one in study.variants),
                asked=partial(requests, load, blank),
            ).run(target, None, tick)
            for load, study in studies.items()
        }
    finally:
        drafter.close()


def load_json(load: str, found: Answers) -> dict[str, Any]:
    """Results of one load: every method, the best fixed budget, and the policy against it and the target alone."""
    best = max((name for name in found.names if name not in (ALONE, POLICY)), key=lambda name: speed(found, name).value)
    methods = [
        {
            "name": name,
            **speed(found, name).to_json("speedup"),
            "tau": plain(found.results.tau(name)),
            "drafting_share": plain(drafting_share(found, name)),
        }
        for name in found.names
    ]
    return {
        "load": load,
        "methods": methods,
        "best_fixed": best,
        "policy_over_best_fixed": speed(found, POLICY, best).to_json(),
        "policy_over_target": speed(found, POLICY).to_json(),
        "notes": sorted({note for name in found.names for run in found.results.of(name) for note in run.notes}),
    }


def loads_table(found: dict[str, Answers]) -> FigureTable:
    """Table with a row for each method and a pair of columns for each load."""
    names = next(iter(found.values())).names
    return FigureTable(
        "times as fast as the target alone [95 % bootstrap over pairs]",
        ("drafted in a round", *(head for load in found for head in (load, "τ"))),
        tuple(
            (name, *(str(one) for each in found.values() for one in (speed(each, name), each.results.tau(name))))
            for name in names
        ),
    )


def sentences(loads: Sequence[dict[str, Any]]) -> list[str]:
    """A sentence for each load."""
    return [
        f"{each['load']}: the policy is {Interval.from_json(each['policy_over_best_fixed'])} times as fast as the best "
        f"fixed budget ({each['best_fixed']}), and {Interval.from_json(each['policy_over_target'])} times as fast as "
        f"the target alone. {' '.join(each['notes'])}".rstrip()
        for each in loads
    ]
