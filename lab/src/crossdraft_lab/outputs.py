"""Reports of work that takes long, and its progress on stderr."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from crossdraft.cli.outputs import json_text
from crossdraft.files import atomic_path

if TYPE_CHECKING:
    from crossdraft.cli.bars import Bar


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


def progress_bar() -> "Bar":
    """A bar with the time left."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn  # a GPU's machine has none

    from crossdraft.cli.bars import Bar

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    return Bar(*columns, transient=False)
