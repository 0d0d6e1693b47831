"""Whether another process has done all that it was told to do, seen without asking it."""

import mmap
from pathlib import Path

NAME = "handled"  # of the file, beside the socket
BYTES = 8


class Handled:
    """How many messages a drafter's process has done all its work for: a number in shared memory.

    The child writes it, the parent compares it with how many it has sent.

    Args:
        folder: where both processes find the file that they map; it may be deleted once they have.
        create: make the file; the other side only opens it.
    """

    def __init__(self, folder: Path, *, create: bool = False) -> None:
        with (folder / NAME).open("w+b" if create else "r+b") as file:
            if create:
                file.truncate(BYTES)
            self._number = memoryview(mmap.mmap(file.fileno(), BYTES)).cast("Q")

    def get(self) -> int:
        """The number, as the child wrote it last; takes less than a microsecond."""
        return self._number[0]

    def set(self, count: int) -> None:
        """Write the number."""
        self._number[0] = count
