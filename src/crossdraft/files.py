"""Files that are either whole or absent."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from crossdraft.errors import CrossdraftError


@contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path in the same folder; rename it to `path` on success, remove it on failure.

    The temporary name keeps the suffix, because writers choose their format by it. Missing parent folders
    are made.

    Raises:
        CrossdraftError: the file cannot be written (an OSError, here or in the body): no room, no permission, …
    """
    final = Path(path)
    temporary: Path | None = None
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{final.stem}-", suffix=final.suffix, dir=final.parent)
        os.close(handle)
        temporary = Path(name)
        yield temporary
        # mkstemp makes the file private; give it the mode an ordinary `open` would have given.
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)
        temporary.replace(final)
    except OSError as error:
        raise CrossdraftError(
            f"Cannot write {final}: {error.strerror or error}; choose a place that has room and that you may write to."
        ) from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
