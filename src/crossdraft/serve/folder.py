"""The server's temporary folder, locked while the server runs, so that folders of killed servers are known."""

import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from crossdraft.errors import CrossdraftError
from crossdraft.files import LOCK, only_process

PREFIX = "crossdraft-serve-"
STARTING_S = 60.0  # seconds within which a server locks the folder that it made


@contextmanager
def server_folder() -> Iterator[Path]:
    """Yield a folder for one server, private to its user; folders that the user's killed servers left are removed.

    Raises:
        CrossdraftError: the folder cannot be locked.
    """
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        if _is_left(folder):
            with suppress(CrossdraftError, FileNotFoundError), only_process(folder):
                shutil.rmtree(folder, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=PREFIX) as name, only_process(Path(name)):
        yield Path(name)


def _is_left(folder: Path) -> bool:
    """True if a server made the folder, and locked it once; the caller tests the lock. Other folders are left alone."""
    with suppress(OSError):
        found = folder.lstat()
        ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
        return ours and time.time() - found.st_mtime > STARTING_S and (folder / LOCK).is_file()
    return False
