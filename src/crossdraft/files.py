"""Files and folders that are either whole or absent, and the fingerprint of a folder's weights."""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self, TypeVar

from crossdraft.errors import CrossdraftError

LOCK = ".lock"  # in a folder, locked as long as a process fills it
T = TypeVar("T")


def _file_mode() -> int:
    """The mode that an ordinary `open` gives. Reading the umask means setting it, while threads may make files."""
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


FILE_MODE = _file_mode()  # read here, once: few threads run while this is imported


def parse_json(text: str | bytes) -> Any:
    """Parse JSON as `json.loads`; any fault of the text, a nesting that is too deep included, is a ValueError."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("its lists or objects are nested too deeply") from None


def read_json(
    path: Path, what: str = "configuration", mend: str = "copy it from its checkpoint again"
) -> dict[str, Any]:
    """Read the JSON object in a file.

    Args:
        what: the word for the object in the error message.
        mend: the remedy in the error message.

    Raises:
        CrossdraftError: the file is missing, or holds something else.
    """
    try:
        found = parse_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CrossdraftError(f"Cannot read {path}: {error.strerror}; {mend}.") from error
    except ValueError as error:  # text that is not UTF-8 raises one, too
        raise CrossdraftError(f"{path} is not JSON ({str(error)[:100]}); {mend}.") from error
    if not isinstance(found, dict):
        raise CrossdraftError(f"{path} must hold a JSON object, as a {what} is; {mend}.")
    return found


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
        temporary.chmod(FILE_MODE)  # mkstemp makes the file private
        temporary.replace(final)
    except OSError as error:
        raise CrossdraftError(
            f"Cannot write {final}: {error.strerror or error}; choose a place that has room and that you may write to."
        ) from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


class DeferredErrorFile:
    """A new file for HDF5 or PyAV that hides a failed write from them, and raises its error when its context ends.

    Neither library handles a full disk. HDF5 writes again whenever it closes an object of the file, a traceback each
    time, and may crash the process in the end; PyAV prints a traceback for each call and goes on as if nothing had
    been. So every write after the first failure seems to succeed and writes nothing; the error is raised at the end.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("w+b")
        self._failure: OSError | None = None
        self.name = self._file.name  # FFmpeg reads the file by it once more, to put the index first

    def check(self) -> None:
        """Raise the OSError that was kept, if any."""
        if self._failure is not None:
            raise self._failure

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._try(self._file.close, None)
        with suppress(OSError):  # the buffered rest may not fit either
            self._file.close()
        self.check()  # any later error follows from that one

    def write(self, content: Any) -> int:
        return self._try(lambda: self._file.write(content), len(content))

    def read(self, size: int = -1) -> bytes:
        return self._try(lambda: self._file.read(size), b"")

    def readinto(self, buffer: Any) -> int:
        return self._try(lambda: self._file.readinto(buffer), 0)

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._try(lambda: self._file.seek(offset, whence), offset)

    def tell(self) -> int:
        return self._try(self._file.tell, 0)

    def truncate(self, size: int | None = None) -> int:
        return self._try(lambda: self._file.truncate(size), size or 0)

    def flush(self) -> None:
        self._try(self._file.flush, None)

    def _try(self, action: Callable[[], T], otherwise: T) -> T:
        if self._failure is None:
            try:
                return action()
            except OSError as error:
                self._failure = error
        return otherwise


def check_folder(folder: Path) -> None:
    """Refuse a path at which there can be no folder; nothing is written.

    Raises:
        CrossdraftError: `folder` or one of its parents is a file.
    """
    file = next((path for path in (folder, *folder.parents) if path.is_file()), None)
    if file is not None:
        raise CrossdraftError(f"{file} is a file; name another folder.")


@contextmanager
def only_process(path: Path) -> Iterator[None]:
    """Be the only process that fills a folder or a file; the lock goes with the process, however it ends.

    Raises:
        CrossdraftError: another process fills it, or it is not writable.
    """
    import fcntl  # there is none on Windows, where the rest of this file works

    try:
        handle = os.open(path / LOCK if path.is_dir() else path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise CrossdraftError(f"Cannot write in {path}: {error.strerror}; name another.") from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise CrossdraftError(f"Another process fills {path}; wait for it, or name another.") from error
        yield
    finally:
        os.close(handle)


@contextmanager
def temporary_folder(final: Path) -> Iterator[Path]:
    """Yield a new folder next to `final`, from where a rename puts its contents in place; remove what is left.

    Raises:
        CrossdraftError: a folder or file cannot be written (an OSError, here or in the body).
    """
    folder: Path | None = None
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f".{final.name}-", dir=final.parent))
        yield folder
    except OSError as error:
        raise CrossdraftError(
            f"Cannot write {final}: {error.strerror or error}; choose a place that has room and that you may write to."
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
        for path in new.rglob("*"):
            if path.is_file() and not path.is_symlink():
                path.chmod(path.stat().st_mode | FILE_MODE)  # safetensors makes its files private
        put_in_place(new, final)


def put_in_place(new: Path, final: Path) -> None:
    """Replace `final` by `new`, a path on the same disk; on failure `final` is what it was."""
    with tempfile.TemporaryDirectory(prefix=f".{final.name}-", dir=final.parent) as room:
        old = Path(room) / "old"
        try:
            if os.path.lexists(final):
                final.replace(old)
            new.replace(final)
        finally:
            if os.path.lexists(old) and not os.path.lexists(final):  # it failed, or Ctrl-C came, in between
                old.replace(final)


SAMPLES, BLOCK = 64, 4096  # evenly spaced blocks of each file, and their bytes


def fingerprint(folder: Path) -> str:
    """Hex digest over the names, sizes, headers and samples of a folder's safetensors.

    Training touches every weight, so other weights have other samples; a checkpoint of many gigabytes is told from
    another in milliseconds.

    Raises:
        CrossdraftError: the folder has no safetensors, or they cannot be read.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise CrossdraftError(f"{folder} holds no weights (*.safetensors).")
    digest = hashlib.sha256()
    try:
        for path in files:
            size = path.stat().st_size
            digest.update(f"{path.name} {size}\n".encode())
            with path.open("rb") as file:
                header = min(int.from_bytes(file.read(8), "little"), size)
                digest.update(file.read(header))
                for sample in range(SAMPLES):
                    file.seek(size * sample // SAMPLES)
                    digest.update(file.read(BLOCK))
    except OSError as error:
        raise CrossdraftError(f"The weights in {folder} cannot be read: {error.strerror}.") from error
    return digest.hexdigest()
