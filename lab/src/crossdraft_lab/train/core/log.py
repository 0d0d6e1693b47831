"""Reports of a training: metrics as JSON lines in a file, progress and notes on stderr."""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from crossdraft.errors import CrossdraftError
from crossdraft.files import atomic_path


@dataclass(frozen=True, slots=True)
class MetricsLog:
    """A stage's log: a JSON line for every step and every check.

    {"step": 7, "seconds": 1.5, "loss": …, …}
    {"step": 200, "seconds": 61.2, "check": {"tau": …}}
    """

    path: Path

    def add_step(self, step: int, seconds: float, figures: Mapping[str, float]) -> None:
        self._add({"step": step, "seconds": round(seconds, 2)} | _rounded(figures))

    def add_check(self, step: int, seconds: float, figures: Mapping[str, float]) -> None:
        self._add({"step": step, "seconds": round(seconds, 2), "check": _rounded(figures)})

    def truncate(self, step: int, checked: int) -> None:
        """Drop the steps after `step` and the checks after step `checked`: a resumed run repeats them.

        Raises:
            CrossdraftError: the log is damaged.
        """
        try:
            lines = [(json.loads(line), line) for line in complete_lines(self.path)]
            kept = [line for entry, line in lines if entry["step"] <= (checked if "check" in entry else step)]
        except (ValueError, KeyError, TypeError) as error:
            raise CrossdraftError(f"The log {self.path} is damaged; remove it to resume without it.") from error
        with atomic_path(self.path) as path:
            path.write_text("".join(kept), encoding="utf-8")

    def _add(self, entry: Mapping[str, object]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")


def _rounded(figures: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 5) for name, value in figures.items()}


def complete_lines(path: Path) -> list[str]:
    r"""Complete lines of a file that grows line by line, each with its end; empty if there is no file.

    A last line that an interruption cut off is left out: a file of `a\nb\nc` holds `["a\n", "b\n"]`.
    """
    if not path.exists():
        return []
    # A kill cuts anywhere, even within a character: only what stands before the last line end is surely whole.
    written = path.read_bytes()
    return written[: written.rfind(b"\n") + 1].decode("utf-8").splitlines(keepends=True)


def say(line: str) -> None:
    """Print one time-stamped line on stderr."""
    print(f"{datetime.now(UTC):%H:%M:%S} {line}", file=sys.stderr, flush=True)
