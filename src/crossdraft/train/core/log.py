"""What a training reports: metrics as JSON lines in a file, progress and notes on stderr."""

import json
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from crossdraft.errors import CrossdraftError
from crossdraft.files import atomic_path

# Seconds before the first line of progress, the second and, twice as many each time, the others; at most the last.
FIRST_S, SECOND_S, LAST_S = 1.0, 5.0, 30.0


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
        """Drop the steps after `step` and the checks after step `checked`: a resumed run takes them again.

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
    r"""Lines of a file that grows by a line at a time, each with its end; none if there is no file.

    A last line that an interruption cut off is left out: a file of `a\nb\nc` holds `["a\n", "b\n"]`.
    """
    if not path.exists():
        return []
    # A kill cuts anywhere, even within a character: only what stands before the last line end is text for sure.
    written = path.read_bytes()
    return written[: written.rfind(b"\n") + 1].decode("utf-8").splitlines(keepends=True)


def say(line: str) -> None:
    """Print one time-stamped line on stderr."""
    print(f"{datetime.now(UTC):%H:%M:%S} {line}", file=sys.stderr, flush=True)


class Bar(Progress):
    """A bar on stderr; where that is no terminal, a line of how far it is, now and then: none of what ends sooner.

    The lines are written when something is counted, by no thread: what runs may be measured.
    """

    def __init__(self, *columns: ProgressColumn, transient: bool = True, auto_refresh: bool = True) -> None:
        console = Console(stderr=True)
        super().__init__(
            *columns, console=console, disable=not console.is_terminal, transient=transient, auto_refresh=auto_refresh
        )
        self._line_s, self._wait_s = time.monotonic(), FIRST_S

    def update(self, task_id: TaskID, **given: Any) -> None:
        """Count, or say otherwise what is done; as rich has it."""
        super().update(task_id, **given)
        self._write_line(task_id)

    def advance(self, task_id: TaskID, advance: float = 1) -> None:
        """Count; as rich has it."""
        super().advance(task_id, advance)
        self._write_line(task_id)

    def _write_line(self, task_id: TaskID) -> None:
        now = time.monotonic()
        if not self.disable or now - self._line_s < self._wait_s:
            return
        task = self._tasks[task_id]
        self._line_s, self._wait_s = now, min(LAST_S, max(SECOND_S, 2 * self._wait_s))
        if task.visible:
            of = "" if task.total is None else f" of {task.total:,.0f}"
            done = f": {task.completed:,.0f}{of}" if task.completed or of else ""
            with suppress(OSError):  # nobody reads it any more: no reason to end what may have run for hours
                print(f"{task.description.strip()}{done}", file=sys.stderr, flush=True)


def progress_bar() -> Bar:
    """A bar with the time left."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    return Bar(*columns, transient=False)
