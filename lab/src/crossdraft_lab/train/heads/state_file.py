"""A file of a frozen model's tensors per answer: memory holds what a step needs, and the system's file cache."""

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import torch
from torch import Tensor

from crossdraft.errors import CrossdraftError

SPARE = 1 << 30  # bytes of a disk that are left to others


@dataclass(frozen=True, slots=True)
class _Span:
    """Location of a tensor in the file, with its shape and type."""

    begin: int
    shape: torch.Size
    dtype: torch.dtype


class StateFile:
    """Tensors by number in a file that has no name, so that nothing is left of it when the process ends.

    Where there is no room for more, more is not kept: whoever asks for it is told so, and makes it anew.

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
        self._spans: dict[int, tuple[_Span, ...]] = {}

    def __contains__(self, number: int) -> bool:
        return number in self._spans

    def keep(self, number: int, tensors: Sequence[Tensor]) -> None:
        """Write them, if there is room."""
        if number in self:
            return
        spans, end = list[_Span](), self._end
        try:
            if not self._has_room(sum(tensor.nbytes for tensor in tensors)):
                return
            for tensor in tensors:
                spans.append(_Span(end, tensor.shape, tensor.dtype))
                self._write(end, tensor)
                end += tensor.nbytes
        except OSError:  # somebody else took the room; what is there of it will be written over
            return
        self._spans[number], self._end = tuple(spans), end

    def read(self, number: int) -> tuple[Tensor, ...]:
        """Load the tensors of a number that is kept, on the CPU, in memory of their own.

        Raises:
            CrossdraftError: the disk does not give them back.
        """
        return tuple(map(self._read, self._spans[number]))

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

    def _write(self, begin: int, tensor: Tensor) -> None:
        file, content = cast("BinaryIO", self._file), memoryview(_bytes(tensor.detach().cpu().contiguous()))
        file.seek(begin)
        while content:
            content = content[file.write(content) :]

    def _read(self, span: _Span) -> Tensor:
        file, found = cast("Any", self._file), torch.empty(span.shape, dtype=span.dtype)
        space = memoryview(_bytes(found))
        file.seek(span.begin)
        while space:
            try:
                count = file.readinto(space)
            except OSError:
                count = 0
            if not count:
                raise CrossdraftError(
                    f"The states kept in {self._folders[0]} cannot be read; check the disk, and run this again to go "
                    "on."
                )
            space = space[count:]
        return found


def _bytes(tensor: Tensor) -> Any:
    """The bytes of a contiguous tensor on the CPU, [n]; not a copy."""
    return tensor.reshape(-1).view(torch.uint8).numpy().data
