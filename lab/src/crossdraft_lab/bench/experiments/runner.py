"""Runs an experiment's units that have no result yet, and writes the findings of all units.

If the raw runs are gone, the summary and the figure are read instead; they are small enough for a repository.
"""

import shutil
import time
from base64 import b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from crossdraft.cli.cores import Cores
from crossdraft.drawing.save import check_picture, save_drawing
from crossdraft.errors import CrossdraftError
from crossdraft.files import atomic_path, only_process, parse_json
from crossdraft_lab.bench.environment import environment
from crossdraft_lab.bench.experiments.markdown import outcome_page
from crossdraft_lab.bench.experiments.record import (
    Experiment,
    ExperimentOutcome,
    FigureTable,
    Findings,
    RowFaults,
    Setting,
    Tick,
)
from crossdraft_lab.bench.experiments.runs import RUNS, RunLine, RunsFile, read_lines, read_whole, typed
from crossdraft_lab.folders import make_folder
from crossdraft_lab.outputs import write_json

WORK, TABLE = "work", "table.md"
SUMMARY, FIGURE = "summary.json", "figure.svg"
PICTURES = (FIGURE, "figure.png")


class UnfinishedError(CrossdraftError):
    """Some of an experiment's units are still to run."""


def run_experiment(
    experiment: Experiment[Any],
    config: object,
    out: Path,
    cores: Cores | None,
    tick: Tick = lambda name: None,
    *,
    force: bool = False,
) -> ExperimentOutcome:
    """Run missing units in OUT/NAME, then write table, figure and summary there.

    Args:
        experiment: the experiment's record.
        config: one of its configurations, or another of their type.
        out: folder of all experiments.
        cores: cores of the pair.
        tick: called with a name for every finished unit, found or made.
        force: begin anew, even if there are results.

    Raises:
        CrossdraftError: the folder cannot be written, another process runs the experiment there, or it holds runs of
            configuration, or a summary whose runs are gone.
        ModuleNotFoundError: matplotlib, which draws the PNG, is not installed.
    """
    folder = out / experiment.name
    make_folder(folder)
    check_picture(folder / PICTURES[1])
    with only_process(folder):
        return _run(experiment, config, folder, cores, tick, force=force)


def _run(
    experiment: Experiment[Any], config: object, folder: Path, cores: Cores | None, tick: Tick, *, force: bool
) -> ExperimentOutcome:
    """Run an experiment in its folder; no other process may fill the folder meanwhile."""
    if force:
        (folder / RUNS).unlink(missing_ok=True)
        _remove_results(folder)
        shutil.rmtree(folder / WORK, ignore_errors=True)
    file, keys = RunsFile(folder, experiment.name, config), experiment.units(config)
    pending = [key for key in keys if key not in file.done]
    if (folder / SUMMARY).exists() and not file.lines:
        raise CrossdraftError(
            f"{folder} holds what an experiment found whose runs are gone; name another folder (--out), or begin anew "
            "with --force."
        )
    for key in keys:
        if key in file.done:
            tick(key)
    setting = Setting(cores, folder / WORK)
    if pending:
        _remove_results(folder)
        make_folder(setting.work)
        where, start = environment(), time.perf_counter()
        for result in experiment.measure(config, pending, setting):
            now = time.perf_counter()
            seconds = round(now - start, 3)
            file.append(RunLine(experiment.name, result.key, file.config, result.seeds, where, seconds, result.found))
            tick(result.key)
            where, start = environment(), time.perf_counter()
    found = outcome(experiment, config, file)
    write_outcome(found, folder)
    return found


def _remove_results(folder: Path) -> None:
    """Remove the results of an earlier run, so that an interrupted run does not show them as its own."""
    for name in (SUMMARY, TABLE, *PICTURES):
        (folder / name).unlink(missing_ok=True)


def outcome(experiment: Experiment[Any], config: object, file: RunsFile) -> ExperimentOutcome:
    """Build the outcome from the lines of a file.

    Raises:
        UnfinishedError: units are missing.
    """
    keys = experiment.units(config)
    lines = file.ordered(keys)
    if len(lines) < len(keys):
        raise UnfinishedError(
            f"{file.path} holds {len(lines)} of {len(keys)} units of the experiment {experiment.name}; run it again, "
            "and it goes on where it stopped."
        )
    machines = dict.fromkeys(_machine(line) for line in lines)
    return ExperimentOutcome(
        experiment,
        config,
        experiment.summarise(config, [line.result for line in lines]),
        lines[0].environment,
        len(lines),
        sum(line.seconds for line in lines),
        tuple(machines),
    )


def read_outcome(experiment: Experiment[Any], out: Path) -> ExperimentOutcome | None:
    """Build the outcome of an earlier run, of any size, from its runs; `None` if there never was one.

    Raises:
        CrossdraftError: as `outcome`, or the runs are of another version.
    """
    path = out / experiment.name / RUNS
    if not path.exists():
        return None
    lines, _ = read_lines(path)
    if not lines:
        raise UnfinishedError(f"{path} holds no unit of the experiment {experiment.name} yet; run it again.")
    config = typed(type(experiment.full), lines[0].config)
    return outcome(experiment, config, RunsFile(path.parent, experiment.name, config))


def write_outcome(found: ExperimentOutcome, folder: Path) -> None:
    """Write table.md, summary.json, figure.svg and figure.png, each whole or not at all."""
    write_json(found.to_json(), folder / SUMMARY)
    with atomic_path(folder / TABLE) as temporary:
        temporary.write_text(outcome_page(found), encoding="utf-8")
    if (drawn := found.summary.figure) is not None:
        for name in PICTURES:
            save_drawing(drawn, folder / name)


def _machine(line: RunLine) -> str:
    found = line.environment
    return ", ".join(f"{found.get(name)}" for name in ("cpu", "platform")) + "".join(
        f", {name} {found[name]}" for name in ("crossdraft", "commit", "torch", "transformers") if found.get(name)
    )


def read_summary(path: Path) -> Mapping[str, Any]:
    """Read a summary as plain values.

    Raises:
        CrossdraftError: the file cannot be read, or is no summary.
    """
    try:
        found = parse_json(read_whole(path))
    except ValueError as error:
        raise CrossdraftError(f"{path} is no JSON; run {path.parent.name} again.") from error
    if not isinstance(found, dict) or not isinstance(found.get("figures"), dict):
        raise CrossdraftError(f"{path} is no summary of an experiment; run {path.parent.name} again.")
    return cast("dict[str, Any]", found)


def kept_outcome(experiment: Experiment[Any], out: Path) -> ExperimentOutcome | None:
    """Read the outcome from its summary in OUT/NAME; `None` if there is no summary.

    Raises:
        CrossdraftError: the summary cannot be read, is damaged, or is another version's.
    """
    path = out / experiment.name / SUMMARY
    if not path.exists():
        return None
    found = read_summary(path)
    try:
        findings = Findings(
            _text(found["found"]),
            _text(found["sure"]),
            tuple(_table(table) for table in found["tables"]),
            None,
            found["figures"],
            _texts(found["negative"]),
            RowFaults(**{name: _texts(rows) for name, rows in found["faults"].items()}),
        )
        kept = _text(found["size"]), _figure(path.with_name(FIGURE))
        units, seconds, machines = int(found["units"]), float(found["seconds"]), _texts(found["machines"])
        return ExperimentOutcome(
            experiment, found["config"], findings, found["environment"], units, seconds, machines, *kept
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CrossdraftError(f"{path} is another version's summary; run {experiment.name} again.") from error


def _table(found: Mapping[str, Any]) -> FigureTable:
    rows = tuple(map(_texts, found["rows"]))
    return FigureTable(_text(found["title"]), _texts(found["heads"]), rows, _text(found["note"]))


def _texts(found: Any) -> tuple[str, ...]:
    if not isinstance(found, list):
        raise TypeError(found)
    return tuple(map(_text, cast("list[object]", found)))


def _text(found: object) -> str:
    if not isinstance(found, str):
        raise TypeError(found)
    return found


def _figure(path: Path) -> str:
    """Picture as a data: address; within an image no script is run and nothing is loaded."""
    return f"data:image/svg+xml;base64,{b64encode(read_whole(path)).decode()}" if path.exists() else ""
