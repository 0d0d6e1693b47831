"""Connection to another process whose sends never block, and numbers that both processes share."""

import mmap
import select
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

from crossdraft.engine.progress import PROGRESS_BYTES, ProgressClock

HANDLED_FILE = "handled"  # beside the socket
NUMBERS_BYTES = 16  # two numbers
HANDLED_BYTES = NUMBERS_BYTES + PROGRESS_BYTES
SMALL = 2048  # bytes that a writable socket takes without blocking
BACKLOG = 10_000  # most messages that wait to be sent
Message = tuple[str, object]  # kind, body


class Handled:
    """Shared memory of the engine's process and a drafter's process: two numbers, and the drafter's progress.

    The child writes the number of messages that it has handled, which the parent compares with the number sent, and its
    progress. The parent writes whether the target's cores are lent to the child.

    Args:
        folder: folder of the file that both processes map; it may be deleted once both have mapped the file.
        create: create the file; the other side only opens it.
    """

    def __init__(self, folder: Path, *, create: bool = False) -> None:
        with (folder / HANDLED_FILE).open("w+b" if create else "r+b") as file:
            if create:
                file.truncate(HANDLED_BYTES)
            memory = memoryview(mmap.mmap(file.fileno(), HANDLED_BYTES))
        self._numbers = memory[:NUMBERS_BYTES].cast("Q")
        self.progress = ProgressClock(memory[NUMBERS_BYTES:])

    def get(self) -> int:
        """Number of messages that the child has handled; takes less than a microsecond."""
        return self._numbers[0]

    def set(self, count: int) -> None:
        """Write the number of messages handled."""
        self._numbers[0] = count

    @property
    def lent(self) -> bool:
        """True if the target waits and lends its cores to the drafter; takes less than a microsecond."""
        return bool(self._numbers[1])

    def lend(self, *, lent: bool) -> None:
        """Write whether the target's cores are lent to the drafter."""
        self._numbers[1] = lent


class Link:
    """A connection to a process that may be slow, or hang.

    A small message is sent at once if the connection has room. Otherwise a thread sends it, as the other process may be
    computing or stopped, and arrays are megabytes; later messages wait behind it, in order.

    Args:
        connection: to the other process.
        receive: called in a thread of its own with every message, and with `None` when the connection has ended or
            what came in cannot be read.
    """

    def __init__(self, connection: Connection, receive: Callable[[object], None]) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._backlog: deque[tuple[memoryview, Sequence[memoryview]]] = deque()
        self._sending = False  # a thread is sending the backlog
        # The thread is no attribute: `receive` mostly refers to this link, and that would make a reference cycle.
        threading.Thread(target=self._listen, args=(receive,), name="drafter-link", daemon=True).start()

    def send(self, message: Message, arrays: Sequence[memoryview] = ()) -> None:
        """Send a message now, or have a thread send it.

        Raises:
            BlockingIOError: `BACKLOG` messages wait already.
            OSError: the other process is gone.
        """
        packed = ForkingPickler.dumps(message)
        with self._lock:
            if not self._sending and not arrays and len(packed) <= SMALL and self._takes():
                self._connection.send_bytes(packed)
                return
            if len(self._backlog) >= BACKLOG:
                raise BlockingIOError
            self._backlog.append((packed, arrays))
            if self._sending:
                return
            self._sending = True
        try:
            threading.Thread(target=self._send_backlog, name="drafter-sender", daemon=True).start()
        except RuntimeError:  # no more threads may be started
            self._send_backlog()

    def close(self) -> None:
        """End the connection; nothing is sent any more."""
        with self._lock:  # no small message is half sent
            self._connection.close()

    def _takes(self) -> bool:
        """True if the connection has room now; false where that cannot be known (Windows)."""
        if not hasattr(select, "poll"):
            return False
        ready = select.poll()
        ready.register(self._connection.fileno(), select.POLLOUT)
        return bool(ready.poll(0))

    def _send_backlog(self) -> None:
        while True:
            with self._lock:
                if not self._backlog:
                    self._sending = False
                    return
                packed, arrays = self._backlog.popleft()
            try:
                self._connection.send_bytes(packed)
                for array in arrays:
                    self._connection.send_bytes(array)
            except (OSError, TypeError) as error:  # the other process is gone, which the listener sees, or we closed
                if isinstance(error, TypeError) and not self._connection.closed:
                    raise
                with self._lock:
                    self._backlog.clear()

    def _listen(self, receive: Callable[[object], None]) -> None:
        with suppress(Exception):  # the connection ended, or a message and so all later ones cannot be read
            while True:
                receive(self._connection.recv())
        receive(None)
