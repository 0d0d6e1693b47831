"""Progress on stderr: a bar on a terminal, otherwise an occasional line."""

import sys
import time
from contextlib import suppress
from typing import Any

from rich.console import Console
from rich.progress import Progress, ProgressColumn, TaskID

# Seconds before the first line of progress; before the second, doubled for each further line; and the largest.
FIRST_S, SECOND_S, LAST_S = 1.0, 5.0, 30.0


class Bar(Progress):
    """A bar on stderr; if that is no terminal, an occasional line of progress, and none for short work.

    A line is written when something is counted, not by a thread of its own, which could disturb a measurement.
    """

    def __init__(self, *columns: ProgressColumn, transient: bool = True, auto_refresh: bool = True) -> None:
        console = Console(stderr=True)
        super().__init__(
            *columns, console=console, disable=not console.is_terminal, transient=transient, auto_refresh=auto_refresh
        )
        self._line_s, self._wait_s = time.monotonic(), FIRST_S

    def update(self, task_id: TaskID, **given: Any) -> None:
        """Update a task as rich's `Progress.update` does; write a line if one is due."""
        super().update(task_id, **given)
        self._write_line(task_id)

    def advance(self, task_id: TaskID, advance: float = 1) -> None:
        """Advance a task as rich's `Progress.advance` does; write a line if one is due."""
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
            with suppress(OSError):  # a closed stderr must not end work of hours
                print(f"{task.description.strip()}{done}", file=sys.stderr, flush=True)
