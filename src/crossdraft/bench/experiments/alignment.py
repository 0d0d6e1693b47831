"""Experiment 3: what it takes to make a foreign drafter speak its target's language, and what that is worth.

The ladder of `crossdraft train`'s adapters and tunings, each trained on the same captured answers by the command that a
user would type, then `bench align`'s rows and controls on held-out clips, and end-to-end times, interleaved. The
weights are not shipped; the small size trains for a few steps and shows that the experiment runs, not what it finds.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from crossdraft.bench.align import CONTROLS, HELD_OUT, AlignBench, SceneQuestions, run_align
from crossdraft.bench.common import check_names
from crossdraft.bench.experiments.blocks import ALL, MODELS, OWN, BlockPlan, Pooled, measure_blocks, pooled, sure
from crossdraft.bench.experiments.record import Experiment, FigureTable, Findings, Setting, UnitResult
from crossdraft.bench.experiments.variants import Variant
from crossdraft.bench.statistics import Interval
from crossdraft.bench.workload import Workload
from crossdraft.drawing.charts import IntervalBar, interval_bars
from crossdraft.errors import CrossdraftError

FOREIGN = "foreign"  # nobody aligned it
DISTILLED = "event"  # distilled from the target's answers from the beginning; shipped
CAPTURE, ACCEPTANCE = "capture", "acceptance"
LONGEST_S = 24 * 3600.0  # of a command

# rung: the recipe of `crossdraft train`, and what of it differs
LADDER: Mapping[str, tuple[str, tuple[str, ...]]] = MappingProxyType(
    {
        "linear": ("linear", ()),
        "mlp": ("mlp", ()),
        "contrastive": ("l4", ("loss={info_nce: 1, mse: 0.1}",)),
        **{name: (name, ()) for name in ("l1", "l2", "l3", "levels", "l4", "l4v")},
        "l5 without tokens": ("l5", ("config.reads_tokens=false",)),
        **{name: (name, ()) for name in ("l5", "token", "b1", "b1r", "l5f", "l5fr")},
        "l6": ("l6", ()),
        "l6 whole": ("l6", ("rank=0", "optim.learning_rate=1.5e-3")),
    }
)
READ_TARGET = ("b1", "b1r", "l5f", "l5fr")  # recipes of adapters that are given the target's own features


@dataclass(frozen=True, slots=True)
class AlignmentConfig:
    """Which rungs, trained on how much for how long, measured on how much."""

    rungs: tuple[str, ...] = tuple(LADDER)
    clips: int = 1200
    validation_clips: int = 64
    prompts: int = 4
    steps: int = 800
    test_clips: int = 48
    questions: int = 4
    learned: int = 256
    nodes: int = 8
    pairs: int = 16
    block: int = 8
    max_new_tokens: int = 96

    def __post_init__(self) -> None:
        check_names("rung", self.rungs, tuple(LADDER))

    @property
    def work(self) -> Workload:
        """The test questions."""
        pairs = self.test_clips * self.questions
        return Workload(pairs, max_new_tokens=self.max_new_tokens, questions=self.questions)

    def plan(self, drafters: Mapping[str, str]) -> BlockPlan:
        """The blocks of end-to-end times."""
        own = (Variant(name, spec) for name, spec in drafters.items())
        work = Workload(self.pairs, max_new_tokens=self.max_new_tokens)
        return BlockPlan((Variant(OWN), Variant(ALL), *own), work, self.block, prefix="times, pairs")


def units(config: AlignmentConfig) -> list[str]:
    """The answers to learn from, each rung's training, what is accepted, then times."""
    return [CAPTURE, *map(_training, config.rungs), ACCEPTANCE, *config.plan({}).keys]


def measure(config: AlignmentConfig, keys: Sequence[str], setting: Setting) -> Iterator[UnitResult]:
    """In that order: later ones read what earlier ones left in the folder for work."""
    folder = setting.work.resolve()
    if CAPTURE in keys:
        yield UnitResult(CAPTURE, (), _captured(config, folder))
    for rung in config.rungs:
        if _training(rung) in keys:
            yield UnitResult(_training(rung), (), _trained(config, folder, rung))
    drafters = {FOREIGN: FOREIGN, **{rung: _spec(folder, rung) for rung in config.rungs}, DISTILLED: DISTILLED}
    if ACCEPTANCE in keys:
        yield UnitResult(ACCEPTANCE, (), _accepted(config, drafters, setting))
    plan = config.plan(drafters)
    yield from measure_blocks(plan, [key for key in plan.keys if key in keys], setting)


def _training(rung: str) -> str:
    return f"train {rung}"


def _folder(folder: Path, rung: str) -> Path:
    return folder / rung.replace(" ", "-")


def _spec(folder: Path, rung: str) -> str:
    """What drafts, once it is trained."""
    own = _folder(folder, rung)
    return str(own / "drafter") if LADDER[rung][0] == "l6" else f"aligned:dir={own / 'head'},model={FOREIGN}"


def _captured(config: AlignmentConfig, folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for split, clips in (("train", config.clips), ("validation", config.validation_clips)):
        command = [
            "capture", str(folder / split), "--split", split, "--clips", str(clips), "--prompts", str(config.prompts),
            "--max-new-tokens", str(config.max_new_tokens), "--dtype", "float32", "--json",
        ]  # fmt: skip
        found[split] = run_command(command)
    return found


def _trained(config: AlignmentConfig, folder: Path, rung: str) -> dict[str, Any]:
    recipe, more = LADDER[rung]
    steps = config.steps
    overrides = [f"optim.steps={steps}", f"optim.decay_steps={max(1, steps * 5 // 8)}", f"optim.watch={watched(rung)}"]
    overrides += [f"optim.warmup_steps={min(50, max(1, steps // 4))}", f"optim.checkpoint_every={min(200, steps)}"]
    command = [
        "train", recipe, "--event", FOREIGN, "--capture", str(folder / "train"),
        "--validation", str(folder / "validation"), "--out", str(_folder(folder, rung)), "--json",
    ]  # fmt: skip
    return run_command([*command, *overrides, "measure.pairs=0", *more])


def watched(rung: str) -> str:
    """The figure that keeps a rung's best weights: what counts, the accepted prefix of a hidden draft.

    Of what reads the target's features along an answer there is none: there, the tokens right in a row from anywhere.
    """
    return "tau" if LADDER[rung][0] in READ_TARGET else "prefix"


def run_command(arguments: Sequence[str]) -> dict[str, Any]:
    """Run a command of ours that prints JSON, and time it.

    Raises:
        CrossdraftError: it failed; with its last line.
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
    questions = SceneQuestions(config.work, config.learned)
    plan = AlignBench(MODELS, questions, tuple(drafters.values()), config.nodes, one_by_one=True)
    short = {spec: name for name, spec in drafters.items()}
    results = run_align(plan, setting.tick)
    return {
        short.get(name, name): {wordings: one.to_json() for wordings, one in by_wordings.items()}
        for name, by_wordings in results.items()
    }


def summarise(config: AlignmentConfig, found: Sequence[UnitResult]) -> Findings:
    """A row for each rung and control."""
    by_key = {unit.key: unit.found for unit in found}
    accepted = by_key[ACCEPTANCE]
    times = pooled([unit for unit in found if unit.key.startswith("times")])
    trained = {rung: by_key[_training(rung)] for rung in config.rungs}
    prefix = {name: _prefix(row) for name, row in accepted.items()}
    measured = {name: one for name, one in prefix.items() if one is not None}
    best = max(config.rungs, key=lambda name: measured[name].value)
    blind_ones = {name: measured[name] for name in CONTROLS}
    strongest = max(blind_ones, key=lambda name: blind_ones[name].value)
    below = [name for name in config.rungs if measured[name].value <= blind_ones[strongest].value]
    wrong = [name for name, row in accepted.items() if _unequal(row)]
    few = config.steps < AlignmentConfig().steps
    warning = " A few steps of training: these figures show that it runs, not what aligning gives." if few else ""
    return Findings(
        found=(
            f"{FOREIGN} as it is: {measured[FOREIGN]} tokens of its hidden draft are accepted. Best rung: {best}, "
            f"{measured[best]}; {DISTILLED}, distilled from the beginning: {measured[DISTILLED]}. Strongest control "
            f"that sees nothing: {strongest}, {blind_ones[strongest]}. "
            f"{_equality(wrong)}{warning}"
        ),
        sure=(
            f"{config.test_clips * config.questions} questions about {config.test_clips} held-out clips in held-out "
            f"wordings; trained on {config.clips} other clips for {config.steps} steps, one training of each. Times: "
            f"{sure(times, 1)}"
        ),
        tables=(_table(accepted, prefix, times, trained),),
        figure=interval_bars(
            "Accepted tokens of the hidden draft",
            [IntervalBar(name, one.value, one.low, one.high, one.n, _style(name)) for name, one in measured.items()],
            "tokens",
            None,
        ),
        figures={
            name: {
                "accepted_prefix": None if prefix[name] is None else row[HELD_OUT]["accepted_prefix"],
                "tau": row[HELD_OUT]["tau"],
                "features": row[HELD_OUT]["features"],
                "training_s": trained[name]["seconds"] if name in trained else None,
                "speedup": times.speedup(name).to_json() if name in times.names else None,
            }
            for name, row in accepted.items()
        },
        unequal=tuple(wrong),
        negative=(
            (f"No better than the control '{strongest}', which sees nothing: {', '.join(below)}.",) if below else ()
        ),
    )  # fmt: skip


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
    times: Pooled,
    trained: Mapping[str, Mapping[str, Any]],
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
                f"{1e3 * sum(run.total_s for run in runs) / len(runs):.1f}" if runs else "–",
                str(times.speedup(name)) if runs else "–",
                f"{trained[name]['seconds']:.0f}" if name in trained else "–",
            )
        )
    heads = ("", "accepted prefix", "τ after it", "cosine", "same token", "E2E, ms", f"× {times.alone}", "training, s")
    return FigureTable(
        "Accepted prefix of the hidden draft, in held-out wordings; features; end to end",
        heads,
        tuple(rows),
        "Training is the time of the whole command on this machine, its start included. Controls see nothing of the "
        "clip; the target's own feature, offered as itself, is the bound of feature figures.",
    )  # fmt: skip


ALIGNMENT = Experiment(
    "alignment",
    3,
    "Acceptance against alignment",
    "How much of a hidden draft does the target accept from a drafter that was aligned with it little or much, what "
    "does that cost, and does it beat controls that see nothing?",
    AlignmentConfig(),
    AlignmentConfig(
        rungs=("linear", "l6"), clips=6, validation_clips=2, prompts=1, steps=8, test_clips=2, questions=1,
        learned=4, pairs=2, block=2, max_new_tokens=48,
    ),
    units,
    measure,
    summarise,
)  # fmt: skip
