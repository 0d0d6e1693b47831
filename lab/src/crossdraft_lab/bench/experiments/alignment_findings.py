"""Findings of experiment 3: a row for each rung and control, and how much one is worth over another."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from crossdraft.drawing.charts import interval_bars
from crossdraft_lab.bench.align import CONTROLS, HELD_OUT, TRAINED
from crossdraft_lab.bench.experiments.alignment_ladder import (
    ACCEPTANCE,
    CAPTURE,
    COMPARED,
    DISTILLED,
    FOREIGN,
    LADDER,
    TIMES,
    AlignmentConfig,
    training,
)
from crossdraft_lab.bench.experiments.record import FigureTable, Findings, UnitResult
from crossdraft_lab.bench.significance import holm, paired_difference
from crossdraft_lab.bench.statistics import Interval
from crossdraft_lab.bench.study import ALL, OWN, Answers, bar, faults_of, pooled, sure


def summarise(config: AlignmentConfig, found: Sequence[UnitResult]) -> Findings:
    """A row for each rung and control."""
    by_key = {unit.key: unit.found for unit in found}
    accepted = by_key[ACCEPTANCE]
    times = pooled([unit for unit in found if unit.key.startswith(TIMES)])
    trained = {rung: by_key[training(rung)] for rung in config.rungs}
    answers = by_key[CAPTURE]["train"]["said"]["total_answers"]
    prefix = {name: _prefix(row) for name, row in accepted.items()}
    measured = {name: one for name, one in prefix.items() if one is not None}
    best = max(config.rungs, key=lambda name: measured[name].value)
    blind_ones = {name: measured[name] for name in CONTROLS}
    strongest = max(blind_ones, key=lambda name: blind_ones[name].value)
    below = [name for name in config.rungs if measured[name].value <= blind_ones[strongest].value]
    wrong = [name for name, row in accepted.items() if _unequal(row)]
    faults = faults_of([(config.plan({name: name for name in times.names if name not in (OWN, ALL)}), times)])
    steps = _steps(accepted)
    few = config.steps < AlignmentConfig().steps
    warning = " A few steps of training: these figures show that it runs, not what aligning gives." if few else ""
    return Findings(
        found=(
            f"{FOREIGN} as it is: {measured[FOREIGN]} tokens of its hidden draft are accepted. Best rung: {best}, "
            f"{measured[best]}; {DISTILLED}, distilled from the beginning: {measured[DISTILLED]}. Strongest control "
            f"that reads no events: {strongest}, {blind_ones[strongest]}. "
            f"{_equality(wrong)}{warning}"
        ),
        sure=(
            f"{config.test_clips * config.questions} questions about {config.test_clips} held-out clips in held-out "
            f"wordings; trained on {config.clips} other clips for {config.steps} steps{_fewer(config)}, one training "
            f"of each. Times: {sure(times, 1)}"
        ),
        tables=(_table(accepted, prefix, times, trained, answers), *([_steps_table(steps)] if steps else ())),
        figure=interval_bars(
            "Accepted tokens of the hidden draft",
            [bar(name, one, _style(name)) for name, one in measured.items()],
            "tokens",
            None,
        ),
        figures={
            name: {
                "accepted_prefix": row[HELD_OUT]["accepted_prefix"],
                "accepted_prefix_trained_wordings": row[TRAINED]["accepted_prefix"],
                "tau": row[HELD_OUT]["tau"],
                "features": row[HELD_OUT]["features"],
                "training_s": trained[name]["said"]["wall_s"] if name in trained else None,
                "training": _training(trained[name]) if name in trained else None,
                "speedup": times.speedup(name).to_json() if name in times.names else None,
            }
            for name, row in accepted.items()
        }
        | {"differences": steps},
        faults=replace(faults, unequal=tuple(dict.fromkeys((*wrong, *faults.unequal)))),
        negative=(
            (f"No better than the control '{strongest}', which reads no events: {', '.join(below)}.",) if below else ()
        ),
    )  # fmt: skip


def _fewer(config: AlignmentConfig) -> str:
    """Which rungs had fewer steps."""
    rungs = [rung for rung in config.rungs if config.steps_of(rung) < config.steps]
    return f" ({config.steps_of(rungs[0])}: {', '.join(rungs)})" if rungs else ""


def _equality(wrong: Sequence[str]) -> str:
    return f"Answers differed from the target's: {', '.join(wrong)}." if wrong else "Every answer was the target's own."


def _prefix(row: Mapping[str, Any]) -> Interval | None:
    mean = row[HELD_OUT]["accepted_prefix"]  # drawn over clips
    return None if mean is None else Interval.from_json(mean)


def _unequal(row: Mapping[str, Any]) -> bool:
    return any(one["equal"] is not None and one["equal"] < len(one["prefixes"]) for one in row.values())


def _style(name: str) -> str:
    return "draft" if name in LADDER else "hidden-draft" if name == DISTILLED else "encoder"


def _table(
    accepted: Mapping[str, Any],
    prefix: Mapping[str, Interval | None],
    times: Answers,
    trained: Mapping[str, Mapping[str, Any]],
    answers: int,
) -> FigureTable:
    rows = []
    for name, row in accepted.items():
        tau, features = row[HELD_OUT]["tau"], row[HELD_OUT]["features"]
        runs = times.results.of(name) if name in times.names else []
        rows.append(
            (
                name if name in LADDER or name in (FOREIGN, DISTILLED) else f"control: {name}",
                "–" if prefix[name] is None else str(prefix[name]),
                "–" if tau is None else str(Interval.from_json(tau)),
                "–" if features is None else Interval.from_json(features["cosine"]).shown(digits=3),
                "–" if features is None else str(Interval.from_json(features["same_position"])),
                times.mean(name, "total_s").scaled(1e3).shown(digits=1) if runs else "–",
                str(times.speedup(name)) if runs else "–",
                *_training_cells(trained.get(name)),
            )
        )
    heads = ("", "accepted prefix", "τ after it", "cosine", "same token", "E2E, ms", f"× {times.alone}")
    return FigureTable(
        "Accepted prefix of the hidden draft, in held-out wordings; features; end to end",
        (*heads, "parameters trained", "steps", "training, s"),
        tuple(rows),
        f"Every rung learned from the same {answers:,} answers of the target. Steps: all of them, and that of the best "
        "check, whose weights are measured. Training, s: steps and checks with one thread; trainings run beside one "
        "another and may have run beside other work, so it is no figure. Controls read neither events nor frames; "
        "memory remembers the target's answers, to earlier questions about the same clip, too. The "
        "target's own feature, offered as itself, is the bound of feature figures.",
    )  # fmt: skip


def _training(found: Mapping[str, Any]) -> dict[str, float]:
    """Return the size of a training: its parameters, its steps, and the best one."""
    return {name: found["said"][name] for name in ("parameters", "steps", "best_step")}


def _training_cells(found: Mapping[str, Any] | None) -> tuple[str, str, str]:
    """Parameters, steps, seconds; dashes where nothing was trained."""
    if found is None:
        return "–", "–", "–"
    said = found["said"]
    return f"{said['parameters']:,}", f"{said['steps']:.0f}, best {said['best_step']:.0f}", f"{said['wall_s']:.0f}"


def _steps(accepted: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Compare the tokens that one row accepts with another's, question by question, clip by clip."""
    found, p_values = [], []
    for name, than in COMPARED:
        if name in accepted and than in accepted:
            own, other = (accepted[one][HELD_OUT] for one in (name, than))
            more, p = paired_difference("accepted tokens", own["prefixes"], other["prefixes"], own["clips"])
            found.append({"name": name, "than": than, "more": more.interval.to_json()})
            p_values.append(p)
    return [one | {"p_holm": p} for one, p in zip(found, holm(p_values), strict=True)]


def _steps_table(steps: Sequence[Mapping[str, Any]]) -> FigureTable:
    return FigureTable(
        "What one accepts more than another, in held-out wordings",
        ("", "than", "accepted tokens more", "p"),
        tuple(
            (one["name"], one["than"], str(Interval.from_json(one["more"])), f"{one['p_holm']:.2g}") for one in steps
        ),
        "Paired by question, intervals drawn over clips; p: Wilcoxon's signed-rank test over clips, with Holm's "
        "correction over all rows.",
    )
