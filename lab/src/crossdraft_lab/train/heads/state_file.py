"""A file of a frozen model's tensors per answer: memory holds what a step needs, and the system's file cache."""

import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, cast

from safetensors.torch import load, save
from torch import Tensor

from crossdraft.errors import CrossdraftError

SPARE = 1 << 30  # bytes of a disk that are left to others


class StateFile:
    """Tensors by number in a file that has no name, so that nothing is left of it when the process ends.

    Without room, further tensors are not kept: `number in file` is then false, and the caller computes them anew.

    Args:
        folder: where the file is; if none can be made there, it is where the system has its temporary files, as by
            default.
        spare: bytes of the disk that are left free.
    """

    def __init__(self, folder: Path | None = None, spare: int = SPARE) -> None:
        self._folders = [*([folder] if folder else []), Path(tempfile.gettempdir())]
        self._spare = spare
        self._file: BinaryIO | None = None
        self._end = 0
        self._spans: dict[int, tuple[int, int]] = {}  # by number: where its tensors begin; bytes

    def __contains__(self, number: int) -> bool:
        return number in self._spans

    def keep(self, number: int, tensors: Sequence[Tensor]) -> None:
        """Write a number's tensors, if there is room."""
        if number in self:
            return
        content = save({f"{place:04d}": one.detach().cpu().contiguous() for place, one in enumerate(tensors)})
        try:
            if not self._has_room(len(content)):
                return
            self._write(self._end, memoryview(content))
        except OSError:  # somebody else took the room; what is there of it will be written over
            return
        self._spans[number] = self._end, len(content)
        self._end += len(content)

    def read(self, number: int) -> tuple[Tensor, ...]:
        """Load the tensors of a number that is kept, on the CPU, in memory of their own.

        Raises:
            CrossdraftError: the disk does not give them back.
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
        """A new file in the first folder that takes one, which is the first of them from then on."""
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
