"""A file with a frozen model's tensors per answer: memory holds only a step's tensors and the system's file cache."""

import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, cast

from safetensors.torch import load, save
from torch import Tensor

from crossdraft.errors import CrossdraftError

SPARE = 1 << 30  # bytes of the disk that are left free


class StateFile:
    """Tensors by number in a file without a name, which disappears when the process ends.

    If the disk is full, further tensors are not kept: `number in file` is then false, and the caller computes them.

    Args:
        folder: folder of the file; if no file can be made there, and by default, the system's folder for temporary
            files.
        spare: bytes of the disk that are left free.
    """

    def __init__(self, folder: Path | None = None, spare: int = SPARE) -> None:
        self._folders = [*([folder] if folder else []), Path(tempfile.gettempdir())]
        self._spare = spare
        self._file: BinaryIO | None = None
        self._end = 0
        self._spans: dict[int, tuple[int, int]] = {}  # number -> start and size of its tensors in bytes

    def __contains__(self, number: int) -> bool:
        return number in self._spans

    def keep(self, number: int, tensors: Sequence[Tensor]) -> None:
        """Write a number's tensors, if there is space."""
        if number in self:
            return
        content = save({f"{place:04d}": one.detach().cpu().contiguous() for place, one in enumerate(tensors)})
        try:
            if not self._has_room(len(content)):
                return
            self._write(self._end, memoryview(content))
        except OSError:  # the disk is full; a partial record will be overwritten
            return
        self._spans[number] = self._end, len(content)
        self._end += len(content)

    def read(self, number: int) -> tuple[Tensor, ...]:
        """Load the tensors of a kept number, on the CPU, in memory of their own.

        Raises:
            CrossdraftError: the file cannot be read.
        """
        begin, size = self._spans[number]
        file, content = cast("BinaryIO", self._file), b""
        with suppress(OSError):
            file.seek(begin)
            content = file.read(size)
        if len(content) < size:
            raise CrossdraftError(
                f"The states kept in {self._folders[0]} cannot be read; check the disk, and run this again to go on."
            )
        found = load(content)
        return tuple(found[name] for name in sorted(found))

    def _has_room(self, size: int) -> bool:
        if self._file is None:
            self._file = self._open()
        if self._file is None:
            return False
        disk = os.fstatvfs(self._file.fileno())
        return disk.f_bavail * disk.f_frsize - size >= self._spare

    def _open(self) -> BinaryIO | None:
        """Open a new file in the first folder that allows it; later calls try that folder first."""
        while self._folders:
            try:
                self._folders[0].mkdir(parents=True, exist_ok=True)
                return cast("BinaryIO", tempfile.TemporaryFile(dir=self._folders[0], buffering=0))
            except OSError:
                self._folders.pop(0)
        return None

    def _write(self, begin: int, content: memoryview) -> None:
        file = cast("BinaryIO", self._file)
        file.seek(begin)
        while content:
            content = content[file.write(content) :]
