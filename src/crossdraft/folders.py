"""Folders that are either whole or absent, as `crossdraft.files` has it for files."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from crossdraft.errors import CrossdraftError


@contextmanager
def temporary_folder(beside: Path) -> Iterator[Path]:
    """Yield a new folder next to `beside`, from where a rename puts its contents in place; remove what is left of it.

    Raises:
        CrossdraftError: a folder or file cannot be written (an OSError, here or in the body).
    """
    folder: Path | None = None
    try:
        beside.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f".{beside.name}-", dir=beside.parent))
        yield folder
    except OSError as error:
        raise CrossdraftError(
            f"Cannot write {beside}: {error.strerror or error}; choose a place that has room and that you may write to."
        ) from error
    finally:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def atomic_folder(final: Path) -> Iterator[Path]:
    """Yield a folder to fill; on success it becomes `final`, whose former contents go.

    Raises:
        CrossdraftError: as `temporary_folder`.
    """
    with temporary_folder(final) as temporary:
        new = temporary / "new"
        new.mkdir()  # of the ordinary mode; the temporary folder itself is private
        yield new
        put_in_place(new, final)


def put_in_place(new: Path, final: Path) -> None:
    """Rename `new` to `final` in its stead; of what was there, nothing stays. Both lie on one disk."""
    with tempfile.TemporaryDirectory(prefix=f".{final.name}-", dir=final.parent) as room:
        if final.exists() or final.is_symlink():
            final.replace(Path(room) / "old")
        new.replace(final)
