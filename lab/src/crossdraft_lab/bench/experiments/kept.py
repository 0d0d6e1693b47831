"""Results of an experiment whose raw runs are gone: summary and figure, small enough for a repository."""

from base64 import b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from crossdraft.errors import CrossdraftError
from crossdraft.files import parse_json
from crossdraft_lab.bench.experiments.record import Experiment, ExperimentOutcome, FigureTable, Findings, RowFaults
from crossdraft_lab.bench.experiments.runs import read_whole

SUMMARY, FIGURE = "summary.json", "figure.svg"


def read_summary(path: Path) -> Mapping[str, Any]:
    """A summary as plain values.

    Raises:
        CrossdraftError: it cannot be read, or is none.
    """
    try:
        found = parse_json(read_whole(path))
    except ValueError as error:
        raise CrossdraftError(f"{path} is no JSON; run {path.parent.name} again.") from error
    if not isinstance(found, dict) or not isinstance(found.get("figures"), dict):
        raise CrossdraftError(f"{path} is no summary of an experiment; run {path.parent.name} again.")
    return cast("dict[str, Any]", found)


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
    """The picture as a data: address; as an image, nothing in it is run or loaded."""
    return f"data:image/svg+xml;base64,{b64encode(read_whole(path)).decode()}" if path.exists() else ""
