"""A stage's log: a line of JSON for every step and every check."""

import json
from collections.abc import Mapping
from pathlib import Path

from crossdraft.errors import CrossdraftError
from crossdraft.files import atomic_path
from crossdraft.train.core.lines import whole_lines


def cut(log: Path, step: int, checked: int) -> None:
    """Forget the steps and checks logged after those of the checkpoint: they are taken again.

    Raises:
        CrossdraftError: the log is damaged.
    """
    try:
        lines = [(json.loads(line), line) for line in whole_lines(log)]
        kept = [line for entry, line in lines if entry["step"] <= (checked if "check" in entry else step)]
    except (ValueError, KeyError, TypeError) as error:
        raise CrossdraftError(f"The log {log} is damaged; remove it to resume without it.") from error
    with atomic_path(log) as path:
        path.write_text("".join(kept), encoding="utf-8")


def note_step(log: Path, step: int, seconds: float, figures: Mapping[str, float]) -> None:
    """Add a step: `{"step": 7, "seconds": 1.5, "loss": …, …}`."""
    _add(log, {"step": step, "seconds": round(seconds, 2)} | _rounded(figures))


def note_check(log: Path, step: int, seconds: float, figures: Mapping[str, float]) -> None:
    """Add a check: `{"step": 200, "seconds": 61.2, "check": {"tau": …}}`."""
    _add(log, {"step": step, "seconds": round(seconds, 2), "check": _rounded(figures)})


def _rounded(figures: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 5) for name, value in figures.items()}


def _add(log: Path, entry: Mapping[str, object]) -> None:
    with log.open("a", encoding="utf-8") as file:
        file.write(json.dumps(entry) + "\n")
