"""Folders of what the laboratory writes."""

from pathlib import Path

from crossdraft.errors import CrossdraftError
from crossdraft.files import check_folder


def make_folder(folder: Path) -> None:
    """Make a folder and its parents, unless it exists.

    Raises:
        CrossdraftError: a file stands in its way, or its parent is not writable.
    """
    check_folder(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CrossdraftError(
            f"Cannot make the folder {folder}: {error.strerror or error}; name one where you may write."
        ) from error
