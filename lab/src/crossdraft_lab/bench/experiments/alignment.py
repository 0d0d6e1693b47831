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
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from crossdraft.engine.fast.cores import available_cores
from crossdraft.errors import CrossdraftError
from crossdraft.files import fingerprint
from crossdraft_lab.bench.align import AlignBench, SceneQuestions, run_align
from crossdraft_lab.bench.align_rows import KeptRows
from crossdraft_lab.bench.experiments.alignment_findings import summarise
from crossdraft_lab.bench.experiments.alignment_ladder import (
    ACCEPTANCE,
    CAPTURE,
    DISTILLED,
    FOREIGN,
    LADDER,
    SEED,
    AlignmentConfig,
    training,
    watched,
)
from crossdraft_lab.bench.experiments.record import Experiment, Setting, UnitResult
from crossdraft_lab.bench.experiments.runs import plain
from crossdraft_lab.bench.study import MODELS

ROWS = "rows.json"  # of the acceptance, until all are there
LONGEST_S = 24 * 3600.0  # of a command
AT_ONCE = 16  # trainings: each needs a core and up to two gigabytes


def units(config: AlignmentConfig) -> list[str]:
    """The answers to learn from, each rung's training, what is accepted, then times."""
    return [CAPTURE, *map(training, config.rungs), ACCEPTANCE, *config.plan({}).keys]


def measure(config: AlignmentConfig, keys: Sequence[str], setting: Setting) -> Iterator[UnitResult]:
    """In that order: later ones read what earlier ones left in the folder for work."""
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
    """Path of a rung's trained weights, in the end."""
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
    """A core each, some at once, as they end; networks of this size gain little by a second core.

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
    weights = {rung: fingerprint(_weights(setting.work, rung)) for rung in config.rungs}
    kept = KeptRows(setting.work / ROWS, {"config": plain(config), "weights": weights})
    results = run_align(plan, setting.tick, kept)
    kept.remove()
    return {
        short.get(name, name): {wordings: one.to_json() for wordings, one in by_wordings.items()}
        for name, by_wordings in results.items()
    }


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
