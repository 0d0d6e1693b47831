"""Experiment 3: what it takes to make a foreign drafter speak its target's language, and what that is worth.

The ladder of `crossdraft train`'s adapters and tunings, each trained on the same captured answers by the command that a
user would type, then rows and controls of `bench align` on held-out clips, and end-to-end times, interleaved. The
weights are not shipped; the small size trains for a few steps and shows that the experiment runs, not what it finds.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from crossdraft.engine.fast.cores import available_cores
from crossdraft.errors import CrossdraftError
from crossdraft.files import fingerprint
from crossdraft_lab.bench.align import AlignBench, run_align, scene_questions
from crossdraft_lab.bench.align_rows import CONTROLS, HELD_OUT, TRAINED, KeptRows
from crossdraft_lab.bench.charts import interval_bars
from crossdraft_lab.bench.common import check_names
from crossdraft_lab.bench.experiments.record import Experiment, FigureTable, Findings, Setting, UnitResult
from crossdraft_lab.bench.experiments.runs import plain
from crossdraft_lab.bench.significance import holm, paired_difference
from crossdraft_lab.bench.statistics import Interval
from crossdraft_lab.bench.study import ALL, MODELS, OWN, Answers, Study, bar, faults_of, pooled, sure
from crossdraft_lab.bench.variants import Variant
from crossdraft_lab.bench.workload import Workload
from crossdraft_lab.scenes import split_seeds

FOREIGN = "foreign"  # an event model that was never aligned with the target
DISTILLED = "event"  # distilled from the target's answers from the beginning; shipped
CAPTURE, ACCEPTANCE, TIMES = "capture", "acceptance", "times, pairs"  # keys of units, the last with a number after it
SEED = 0  # of every training

WHOLE = ("rank=0", "optim.learning_rate=1.5e-3")
FEATURES = "loss={mse: 1.0, cosine: 0.5, cross_entropy: 0.5, kl: 0.5}"  # the adapters' losses
# rung: the recipe of `crossdraft train`, and the settings that differ from it
LADDER: Mapping[str, tuple[str, tuple[str, ...]]] = MappingProxyType(
    {
        **{name: (name, ()) for name in ("linear", "mlp", "l1", "l2", "l3", "levels", "l4")},
        "contrastive": ("l4", ("loss={info_nce: 1, mse: 0.1}",)),
        "l4 of three layers": ("l4", ("config.source_layers=0,1,2",)),
        "sequence_distillation": ("sequence_distillation", ()),
        "l4v": ("l4v", ()),
        "l4v contrastive": ("l4v", ("loss={mse: 1.0, cosine: 0.5, cross_entropy: 0.5, kl: 0.5, contrastive: 0.1}",)),
        **{name: (name, ()) for name in ("token_projection", "logit_alignment", "token")},
        "l5 without tokens": ("l5", ("config.reads_tokens=false",)),
        **{name: (name, ()) for name in ("l5", "eagle_fusion", "b1", "b1r", "l5f", "event_to_video_eagle", "l5fr")},
        "l6": ("l6", ()),
        "l6 by the target's head": ("l6", ("head=target", FEATURES)),
        "l6 whole": ("l6", WHOLE),
        "l6 whole by the target's head": ("l6", (*WHOLE, "head=target", FEATURES)),
    }
)
# rungs, or controls, beside each other: what a step of the ladder is worth, then what single parts are
COMPARED = (
    ("l1", "linear"), ("l2", "l1"), ("l3", "l2"), ("l4", "l3"), ("l5", "l4"), ("l6", "l5"), ("l6 whole", "l6"),
    ("mlp", "linear"), ("levels", "mlp"), ("l4", "contrastive"), ("l4 of three layers", "l4"), ("l4v", "l4"),
    ("l4v contrastive", "l4v"), ("sequence_distillation", "l4"), ("eagle_fusion", "l5"),
    ("event_to_video_eagle", "l5f"),
    ("l5", "l5 without tokens"), ("token", "l4"), ("l5f", "b1"), ("b1r", "b1"), ("l5fr", "l5f"),
    ("l6 by the target's head", "l6"), ("l6 whole by the target's head", "l6 whole"),
    *(("l6 whole", control) for control in ("template", "memory", "blind")), ("l6 whole", DISTILLED),
)  # fmt: skip
# Recipes of adapters that are given the target's own features.
READ_TARGET = ("b1", "b1r", "l5f", "event_to_video_eagle", "l5fr")
# They can read their own outputs, and a step that does takes three times as long: they get half of the steps.
AUTOREGRESSIVE = ("l5 without tokens", "l5", "eagle_fusion", *READ_TARGET)


@dataclass(frozen=True, slots=True)
class AlignmentConfig:
    """Rungs, and the amounts of their training and measurement."""

    rungs: tuple[str, ...] = tuple(LADDER)
    clips: int = 1200
    validation_clips: int = 64
    prompts: int = 4
    steps: int = 800
    test_clips: int = 48
    questions: int = 4
    learned: int = 1024
    nodes: int = 8
    pairs: int = 16
    block: int = 8
    max_new_tokens: int = 96

    def __post_init__(self) -> None:
        check_names("rung", self.rungs, tuple(LADDER))

    def steps_of(self, rung: str) -> int:
        """Number of training steps of a rung."""
        return self.steps // 2 if rung in AUTOREGRESSIVE else self.steps

    @property
    def work(self) -> Workload:
        """The test questions."""
        pairs = self.test_clips * self.questions
        return Workload(pairs, max_new_tokens=self.max_new_tokens, questions=self.questions)

    def seeds(self, key: str) -> tuple[int, ...]:
        """Seeds of a unit that is no block: of its scenes, training scenes first, or of the training."""
        train, validation, test = (split_seeds(split) for split in ("train", "validation", "test"))
        if key == CAPTURE:
            return (*train[: self.clips], *validation[: self.validation_clips])
        if key == ACCEPTANCE:
            learned = replace(self.work, split="train", pairs=self.learned).scenes
            return (*train[:learned], *test[: self.work.scenes])
        return (SEED,)

    def plan(self, drafters: Mapping[str, str]) -> Study:
        """The blocks of end-to-end times."""
        own = (Variant(name, spec) for name, spec in drafters.items())
        work = Workload(self.pairs, max_new_tokens=self.max_new_tokens)
        return Study((Variant(OWN), Variant(ALL), *own), work, block=self.block, prefix=TIMES)


def watched(rung: str) -> str:
    """Figure that chooses a rung's best weights: the accepted prefix of a hidden draft, which the rows compare.

    Adapters that read the target's features have no hidden draft: there, the tokens right in a row from any position.
    """
    return "tau" if LADDER[rung][0] in READ_TARGET else "prefix"


def training(rung: str) -> str:
    """Key of the unit that trains a rung."""
    return f"train {rung}"


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
    """Name the rungs that had fewer steps."""
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
    """Cells for parameters, steps and seconds; dashes where nothing was trained."""
    if found is None:
        return "–", "–", "–"
    said = found["said"]
    return f"{said['parameters']:,}", f"{said['steps']:.0f}, best {said['best_step']:.0f}", f"{said['wall_s']:.0f}"


def _steps(accepted: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Compare the accepted tokens of two rows, question by question, drawn over clips, for each pair of the ladder."""
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


ROWS = "rows.json"  # file of acceptance rows, until all are measured
LONGEST_S = 24 * 3600.0  # limit for a command
AT_ONCE = 16  # trainings: each needs a core and up to two gigabytes


def units(config: AlignmentConfig) -> list[str]:
    """Keys of the units: the capture, the training of each rung, the acceptance rows, then blocks of times."""
    return [CAPTURE, *map(training, config.rungs), ACCEPTANCE, *config.plan({}).keys]


def measure(config: AlignmentConfig, keys: Sequence[str], setting: Setting) -> Iterator[UnitResult]:
    """Run the units of the keys in their order: later units read what earlier ones left in the work folder."""
    folder = setting.work.resolve()
    if CAPTURE in keys:
        yield UnitResult(CAPTURE, config.seeds(CAPTURE), _captured(config, folder))
    yield from _trainings(config, folder, [rung for rung in config.rungs if training(rung) in keys])
    drafters = {FOREIGN: FOREIGN, **{rung: _spec(folder, rung) for rung in config.rungs}, DISTILLED: DISTILLED}
    if ACCEPTANCE in keys:
        yield UnitResult(ACCEPTANCE, config.seeds(ACCEPTANCE), _accepted(config, drafters, setting))
    plan = config.plan(drafters)
    yield from plan.measure(keys, setting)


def _folder(folder: Path, rung: str) -> Path:
    return folder / rung.replace(" ", "-")


def _weights(folder: Path, rung: str) -> Path:
    """Path of a rung's trained weights after its training."""
    return _folder(folder, rung) / ("drafter" if LADDER[rung][0] == "l6" else "head")


def _spec(folder: Path, rung: str) -> str:
    """Spec of a rung's drafter, once it is trained."""
    own = _weights(folder, rung)
    return str(own) if own.name == "drafter" else f"aligned:dir={own},model={FOREIGN}"


def _captured(config: AlignmentConfig, folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for split, clips in (("train", config.clips), ("validation", config.validation_clips)):
        command = [
            "capture", str(folder / split), "--split", split, "--clips", str(clips), "--prompts", str(config.prompts),
            "--max-new-tokens", str(config.max_new_tokens), "--dtype", "float32", "--json",
            "--layers=-1", "--visual-layers=none",  # all that an adapter, or a tuning, reads
        ]  # fmt: skip
        found[split] = run_command(command)
    return found


def _trainings(config: AlignmentConfig, folder: Path, rungs: Sequence[str]) -> Iterator[UnitResult]:
    """Train rungs side by side, one core each; yield each rung when it ends. A second core gains little at this size.

    The last rungs take longest, so they begin first.
    """
    with ThreadPoolExecutor(min(AT_ONCE, len(available_cores()))) as pool:
        running = {pool.submit(_trained, config, folder, rung): rung for rung in reversed(rungs)}
        try:
            for done in as_completed(running):
                key = training(running[done])
                yield UnitResult(key, config.seeds(key), done.result())
        finally:
            pool.shutdown(cancel_futures=True)  # after an error: those that run go on to their end, no other begins


def _trained(config: AlignmentConfig, folder: Path, rung: str) -> dict[str, Any]:
    recipe, more = LADDER[rung]
    steps = config.steps_of(rung)
    overrides = [f"optim.steps={steps}", f"optim.decay_steps={max(1, steps * 5 // 8)}", f"optim.watch={watched(rung)}"]
    overrides += [f"optim.warmup_steps={min(50, max(1, steps // 4))}", f"optim.checkpoint_every={min(200, steps)}"]
    command = [
        "train", recipe, "--event", FOREIGN, "--capture", str(folder / "train"),
        "--validation", str(folder / "validation"), "--out", str(_folder(folder, rung)), "--json",
    ]  # fmt: skip
    return run_command([*command, *overrides, "measure.pairs=0", "threads=1", f"seed={SEED}", *more])


def run_command(arguments: Sequence[str]) -> dict[str, Any]:
    """Run a command of ours that prints JSON, and time it.

    Raises:
        CrossdraftError: the command failed; the message ends with the command's last line.
    """
    command = [sys.executable, "-m", "crossdraft", *arguments]
    start = time.perf_counter()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise CrossdraftError(f"'crossdraft {' '.join(arguments)}' took longer than a day and was ended.") from error
    if done.returncode:
        last = (done.stderr.strip() or "no message").splitlines()[-1].removeprefix("crossdraft: ")
        raise CrossdraftError(f"'crossdraft {' '.join(arguments[:2])}' failed: {last}")
    seconds = time.perf_counter() - start
    return {"command": f"crossdraft {' '.join(arguments)}", "seconds": seconds, "said": json.loads(done.stdout)}


def _accepted(config: AlignmentConfig, drafters: Mapping[str, str], setting: Setting) -> dict[str, Any]:
    """Rows and controls of `bench align`, by their short names."""
    questions = scene_questions(config.work, config.learned)
    plan = AlignBench(MODELS, questions, tuple(drafters.values()), config.nodes, one_by_one=True)
    short = {spec: name for name, spec in drafters.items()}
    weights = {rung: fingerprint(_weights(setting.work, rung)) for rung in config.rungs}
    kept = KeptRows(setting.work / ROWS, {"config": plain(config), "weights": weights})
    results = run_align(plan, setting.tick, kept)
    kept.remove()
    return {short.get(name, name): dict(by_wordings) for name, by_wordings in results.items()}


ALIGNMENT = Experiment(
    "alignment",
    3,
    "Acceptance against alignment",
    "How much of a hidden draft does the target accept from a drafter that was aligned with it little or much, what "
    "does that cost, and does it beat controls that read no events?",
    AlignmentConfig(),
    AlignmentConfig(
        rungs=("linear", "l6"), clips=6, validation_clips=2, prompts=1, steps=8, test_clips=2, questions=1,
        learned=4, pairs=2, block=2, max_new_tokens=48,
    ),
    units,
    measure,
    summarise,
)  # fmt: skip
