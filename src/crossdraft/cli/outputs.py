"""The files that a command writes: checked early, written whole or not at all. Imports nothing heavy."""

import json
import re
from pathlib import Path
from tempfile import TemporaryFile

from crossdraft.errors import CrossdraftError

NUMBERS = re.compile(r"\[\n[^\[\]{}\"]+\]")  # a list of plain values


def check_outputs(*paths: Path | None, force: bool) -> None:
    """Refuse an output file before time is spent on its content. No folder is made.

    Raises:
        CrossdraftError: its folder is missing or not writable, it is a folder, or it exists and `force` is off.
    """
    for path in paths:
        if path is None:
            continue
        folder = path.absolute().parent
        if not folder.exists():
            raise CrossdraftError(f"There is no folder {folder}, where {path.name} was to go; make it first.")
        if path.is_dir() or not _takes_files(folder):
            raise CrossdraftError(f"Cannot write {path}; name a file in a folder that you may write to.")
        if path.exists() and not force:
            raise CrossdraftError(f"{path} exists; add --force to overwrite it, or name another file.")


def json_text(report: object) -> str:
    """Report as indented JSON; a list of numbers stands on one line.

    >>> print(json_text({"tokens": [1, 2]}))
    {
     "tokens": [1, 2]
    }
    """
    text = json.dumps(report, indent=1, default=_unknown, ensure_ascii=False)
    return NUMBERS.sub(lambda found: f"[{' '.join(found[0][1:-1].split())}]", text)


def _takes_files(folder: Path) -> bool:
    """True if a nameless file can be created in a folder: permissions alone do not tell (read-only disks, /proc)."""
    try:
        with TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def _unknown(value: object) -> object:
    raise CrossdraftError(f"The report holds a {type(value).__name__}, which JSON cannot.")
