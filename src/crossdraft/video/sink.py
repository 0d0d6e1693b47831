"""A file for PyAV to write to, whose faults are told by us."""

from typing import BinaryIO


class Sink:
    """Passes everything on to an open file until that raises; then keeps the error and only pretends.

    PyAV prints a traceback of whatever a file raises, for each call anew, and goes on as if nothing had been.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.name = file.name  # FFmpeg reads the file by it once more, to put the index first
        self._error: OSError | None = None

    def check(self) -> None:
        """Raise the OSError that the file met, if any."""
        if self._error is not None:
            raise self._error

    def write(self, data: bytes) -> int:
        try:
            if self._error is None:
                return self._file.write(data)
        except OSError as error:
            self._error = error
        return len(data)

    def read(self, size: int) -> bytes:
        try:
            if self._error is None:
                return self._file.read(size)
        except OSError as error:
            self._error = error
        return b""

    def seek(self, offset: int, whence: int = 0) -> int:
        try:
            if self._error is None:
                return self._file.seek(offset, whence)
        except OSError as error:
            self._error = error
        return offset

    def tell(self) -> int:
        return self._file.tell() if self._error is None else 0
