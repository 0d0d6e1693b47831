"""Files that a command is to write: refused before any work if they cannot be, or if they would replace one."""

from pathlib import Path
from typing import Annotated

import typer

from crossdraft.bench.outputs import check_writable
from crossdraft.errors import CrossdraftError

Force = Annotated[bool, typer.Option("--force", help="Overwrite files that exist.")]


def check_outputs(*paths: Path | None, force: bool) -> None:
    """Refuse a file before time is spent on what it should hold. No folder is made.

    Raises:
        CrossdraftError: its folder is missing or takes no files, it is a folder, or it exists and `force` is off.
    """
    for path in paths:
        if path is None:
            continue
        folder = path.absolute().parent
        if not folder.is_dir():
            raise CrossdraftError(f"There is no folder {folder}, where {path.name} was to go; make it first.")
        check_writable(path)
        if path.exists() and not force:
            raise CrossdraftError(f"{path} exists; add --force to overwrite it, or name another file.")
