"""A file for HDF5 to write to, which keeps a failed write from it.

HDF5 cannot take that a disk is full: it writes again whenever it lets go of something, prints a traceback each
time, and may crash the process in the end. So it is told that all went well, and we ask afterwards.
"""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

T = TypeVar("T")


class ToldLater:
    """What h5py asks of a file object. From the first failure on, nothing reaches the disk any more.

    On leaving its context, the file is closed and the failure raised.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("w+b")
        self._failure: OSError | None = None

    def check(self) -> None:
        """Raise the OSError that was kept, if any."""
        if self._failure is not None:
            raise self._failure

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._try(self._file.close, None)
        with suppress(OSError):  # what it still held may not fit either
            self._file.close()
        self.check()  # whatever else went wrong came of it

    def write(self, content: Any) -> int:
        """All of it."""
        return self._try(lambda: self._file.write(content), len(content))

    def readinto(self, buffer: Any) -> int:
        """As much as there is."""
        return self._try(lambda: self._file.readinto(buffer), 0)

    def seek(self, offset: int, whence: int = 0) -> int:
        """Where the file now stands."""
        return self._try(lambda: self._file.seek(offset, whence), 0)

    def tell(self) -> int:
        """Where the file stands."""
        return self._try(self._file.tell, 0)

    def truncate(self, size: int | None = None) -> int:
        """The new size."""
        return self._try(lambda: self._file.truncate(size), size or 0)

    def flush(self) -> None:
        """To the disk."""
        self._try(self._file.flush, None)

    def _try(self, action: Callable[[], T], otherwise: T) -> T:
        if self._failure is None:
            try:
                return action()
            except OSError as error:
                self._failure = error
        return otherwise
