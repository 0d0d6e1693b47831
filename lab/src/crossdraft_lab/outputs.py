"""Reports of work that takes long, and its progress on stderr."""

import sys
from collections.abc import Mapping
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

from crossdraft.cli.bars import Bar
from crossdraft.cli.outputs import json_text
from crossdraft.files import atomic_path


def write_json(report: Mapping[str, object], path: Path | None, *, stdout: bool = False) -> None:
    """Write to a file, whole or not at all, and to standard output if `stdout`."""
    if path is None and not stdout:
        return
    text = json_text(report) + "\n"
    if stdout:
        sys.stdout.write(text)
    if path is not None:
        with atomic_path(path) as temporary:
            temporary.write_text(text, encoding="utf-8")


def progress_bar() -> Bar:
    """A bar with the time left."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    return Bar(*columns, transient=False)
