"""Experiment 0: every drafter that is shipped, beside the target alone and Hugging Face, on equal hardware."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from crossdraft.methods import METHODS
from crossdraft.specs import Spec
from crossdraft_lab.bench.charts import interval_bars
from crossdraft_lab.bench.experiments.record import Experiment, FigureTable, Findings, UnitResult
from crossdraft_lab.bench.heads_select import is_here
from crossdraft_lab.bench.significance import (
    COMPARISON_HEADS,
    COMPARISON_NOTE,
    compare_together,
    comparison_cells,
    comparison_json,
)
from crossdraft_lab.bench.specs import HUGGING_FACE, ON_TARGETS_CORES, runs_in_process
from crossdraft_lab.bench.statistics import FEW_PAIRS, Interval
from crossdraft_lab.bench.study import (
    ALL,
    OWN,
    Study,
    bar,
    faults_of,
    figure_table,
    name_column,
    rows_json,
    runs_of,
    speed_columns,
    sure,
)
from crossdraft_lab.bench.variants import Variant
from crossdraft_lab.bench.workload import Workload

BASELINES = (OWN, ALL)
SPEED = speed_columns("× the target alone")
TESTED = ("p_holm", "cohens_dz", "minimum_detectable")
COLUMNS = 8  # kinds of question of a table, as many as fit a printed A4 page
FIRST_LOOK = (
    "hf", "event", "glance", "blind", "ngram", "memory", "union", "eagle2", "eagle3", "eaglevlm", "medusa",
    "redrafter", "dflash",
)  # fmt: skip
"""A drafter of each kind, for the small size: loading all of them takes longer than their answers."""


def comparable() -> tuple[str, ...]:
    """Drafters that run on the shipped pair unchanged: those with examples, and heads with shipped weights."""
    return tuple(
        name
        for name, method in METHODS.items()
        if method.examples or (method.weights.get("dir") and is_here(Spec(name)))
    )


@dataclass(frozen=True, slots=True)
class DraftersConfig:
    """Methods in groups of `group` each; ratios are within a group, and each group includes the target alone."""

    methods: tuple[str, ...] = ("hf", "hf-all", "hf-lookup", "hf-assisted", *comparable())
    group: int = 6
    pairs: int = 64
    block: int = 8
    repeats: int = 1
    warm_ups: int = 3
    max_new_tokens: int = 96


def studies(config: DraftersConfig, folder: Path | None = None) -> list[Study]:
    """One study for each group; clips are read from files within the measured time."""
    work = Workload(config.pairs, max_new_tokens=config.max_new_tokens, files=folder and folder / "clips")
    groups = [config.methods[at : at + config.group] for at in range(0, len(config.methods), config.group)]
    return [
        Study(
            tuple(map(Variant, (*BASELINES, *group))), work, SPEED, config.block, config.repeats, config.warm_ups,
            f"group {number}, pairs",
        )
        for number, group in enumerate(groups)
    ]  # fmt: skip


def summarise(config: DraftersConfig, found: Sequence[UnitResult]) -> Findings:
    """Summarise the methods in a table, fastest first."""
    plans = studies(config)
    groups = [plan.pooled(found) for plan in plans]
    by_name = {name: group for group in groups for name in group.names if name not in BASELINES}
    rows = {**dict.fromkeys(BASELINES, groups[0]), **by_name}
    ranked = sorted(rows, key=lambda name: -rows[name].speedup(name).value)
    drafting = [name for name in ranked if name in METHODS]
    kinds = {name: {kind: own.speedup(name) for kind, own in sorted(rows[name].by_kind.items())} for name in ranked}
    compared = compare_together({name: group.costs(name) for name, group in by_name.items()})
    best = drafting[0]
    slower = [name for name in drafting if rows[name].speedup(name).below_one]
    differing = [name for name in ranked if len(set(rows[name].equal(name))) > 1]
    plain = figure_table("", (name_column(), *SPEED), [(rows[name], name) for name in ranked])
    table = FigureTable(
        "Drafters on equal hardware",
        ("", "where", "trained", "trees", "sees", *plain.heads[1:], *COMPARISON_HEADS),
        tuple((name, *_traits(name), *cells, *comparison_cells(compared.get(name))) for name, *cells in plain.rows),
        "The baseline, the target alone on its own core or on both, whichever is faster, is measured anew in every "
        "group of rows, interleaved with them. Trees and chains are each drafter's own, sizes are chosen by the "
        f"engine. {COMPARISON_NOTE} Drafters without a row need weights, a folder or a machine that are not shipped.",
    )
    equality = f"Answers differed from the target's in: {', '.join(differing)}."
    equality = equality if differing else "Every answer of every row was the target's own."
    return Findings(
        found=(
            f"{len(drafting)} drafters ran. The fastest is {best}, {rows[best].speedup(best)} times as fast as the "
            f"target alone. {equality}"
        ),
        sure=(
            f"{sure(groups[0], config.repeats, 'all rows of a group')} Rows of different groups share their pairs, and "
            "not their process."
        ),
        tables=(table, *_kinds_tables(kinds)),
        figure=interval_bars(
            "Speed-up over the faster of the target alone on one core and on two",
            [bar(name, rows[name].speedup(name), _style(name)) for name in ranked],
            "×",
        ),
        figures={
            name: {
                **rows_json(SPEED, rows[name], name),
                **{key: comparison_json(compared.get(name))[key] for key in TESTED},
                "by_kind": {kind: one.to_json() for kind, one in kinds[name].items()},
            }
            for name in ranked
        },
        negative=(f"Slower than the target alone: {', '.join(slower)}.",) if slower else (),
        faults=faults_of(zip(plans, groups, strict=True)),
    )


def _kinds_tables(kinds: Mapping[str, Mapping[str, Interval]]) -> Iterator[FigureTable]:
    """Tables with a row for each drafter and a column for each kind of question, as many as fit a page's width."""
    least = min(one.n for found in kinds.values() for one in found.values())
    few = f" Intervals of fewer than {FEW_PAIRS} scenes are narrower than the truth." if least < FEW_PAIRS else ""
    names = list(next(iter(kinds.values())))
    for first in range(0, len(names), COLUMNS):
        shown = names[first : first + COLUMNS]
        yield FigureTable(
            f"Speed-up by kind of question, {shown[0]} to {shown[-1]}",
            ("", *shown),
            tuple((name, *(str(found[kind]) for kind in shown)) for name, found in kinds.items()),
            "Σ time of the baseline over Σ time of the row, of the same runs. The baseline of each kind is the faster "
            f"of the target alone on its own core and on both, in the row's group; n counts scenes.{few}",
        )


def _style(name: str) -> str:
    return "draft" if name in METHODS else "prefill" if name in BASELINES else "encoder"


def _traits(name: str) -> tuple[str, str, str, str]:
    """Describe a drafter: where it runs, whether it is trained, drafts trees, and what it reads of the scene."""
    if name in BASELINES or name in HUGGING_FACE:
        return ("1 core" if name in ON_TARGETS_CORES else "all cores", "", "", "")
    method, yes = METHODS[name], {True: "yes", False: "–"}
    where = "own process" if runs_in_process(name) else "target's process"
    return where, yes[method.trained], yes[method.drafts_trees], ", ".join(method.senses) or "–"


DRAFTERS = Experiment(
    "drafters",
    0,
    "All drafters on equal hardware",
    "Which drafter is fastest on the shipped pair, when the target alone may use as many cores as the pair does?",
    DraftersConfig(),
    DraftersConfig(methods=FIRST_LOOK, group=len(FIRST_LOOK), pairs=2, block=2, warm_ups=1),
    *runs_of(studies),
    summarise,
)
