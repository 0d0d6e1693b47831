"""What an experiment left when its raw runs are gone: summary and figure, small enough for a repository."""

import json
from base64 import b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from crossdraft.bench.experiments.record import Experiment, ExperimentOutcome, FigureTable, Findings, RowFaults
from crossdraft.bench.experiments.runs import typed
from crossdraft.errors import CrossdraftError

SUMMARY, FIGURE = "summary.json", "figure.svg"
LARGEST = 1 << 26  # bytes of either


def read_summary(path: Path) -> Mapping[str, Any]:
    """A summary as plain values.

    Raises:
        CrossdraftError: it cannot be read, or is none.
    """
    again = f"run {path.parent.name} again"
    try:
        if path.stat().st_size > LARGEST:
            raise CrossdraftError(f"{path} is larger than {LARGEST >> 20} MiB; no experiment writes such a file.")
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CrossdraftError(f"{path} is no summary of an experiment; {again}.") from error
    if not isinstance(found, dict) or not isinstance(found.get("figures"), dict):
        raise CrossdraftError(f"{path} is no summary of an experiment; {again}.")
    return found


def kept_outcome(experiment: Experiment[Any], out: Path) -> ExperimentOutcome | None:
    """The outcome as its summary in OUT/NAME says it; `None` if there is none.

    Raises:
        CrossdraftError: the summary cannot be read, is none, or is another version's.
    """
    path = out / experiment.name / SUMMARY
    if not path.exists():
        return None
    found = read_summary(path)
    try:
        findings = Findings(
            found["found"],
            found["sure"],
            tuple(_table(table) for table in found["tables"]),
            None,
            found["figures"],
            tuple(found["negative"]),
            RowFaults(**{name: tuple(rows) for name, rows in found["faults"].items()}),
        )
        return ExperimentOutcome(
            experiment,
            typed(type(experiment.full), found["config"]),
            findings,
            found["environment"],
            found["units"],
            found["seconds"],
            tuple(found["machines"]),
            kept_figure=_figure(path.with_name(FIGURE)),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise CrossdraftError(f"{path} is another version's summary; run {experiment.name} again.") from error


def _table(found: Mapping[str, Any]) -> FigureTable:
    return FigureTable(found["title"], tuple(found["heads"]), tuple(map(tuple, found["rows"])), found["note"])


def _figure(path: Path) -> str:
    """The picture as a data: address; as an image, nothing in it is run or loaded."""
    if not path.exists():
        return ""
    try:
        if path.stat().st_size > LARGEST:
            raise CrossdraftError(f"{path} is larger than {LARGEST >> 20} MiB; no experiment writes such a file.")
        return f"data:image/svg+xml;base64,{b64encode(path.read_bytes()).decode()}"
    except OSError as error:
        raise CrossdraftError(f"Cannot read {path}: {error.strerror}.") from error
