"""Where results go: a JSON file, or standard output."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryFile

from crossdraft.errors import CrossdraftError
from crossdraft.files import atomic_path

STDOUT = Path("-")


def check_writable(*paths: Path | None) -> None:
    """Refuse a file that cannot be written, before minutes are spent on what it should hold.

    Raises:
        CrossdraftError: the path is a folder, or lies where no file can be made.
    """
    for path in paths:
        if path is None or path == STDOUT:
            continue
        nearest = next(parent for parent in path.absolute().parents if parent.exists())
        if path.is_dir() or not _takes_files(nearest):
            raise CrossdraftError(f"Cannot write {path}; name a file in a folder that you may write to.")


def write_json(report: Mapping[str, object], path: Path | None) -> None:
    """Write to a file, whole or not at all, or to standard output (`-`); `None` does nothing."""
    if path is None:
        return
    text = json.dumps(report, indent=1, default=_unknown, ensure_ascii=False) + "\n"
    if path == STDOUT:
        sys.stdout.write(text)
        return
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _takes_files(folder: Path) -> bool:
    """Tried out with a file without a name: permissions alone do not tell (read-only disks, /proc)."""
    try:
        with TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def _unknown(value: object) -> object:
    raise CrossdraftError(f"The report holds a {type(value).__name__}, which JSON cannot.")
