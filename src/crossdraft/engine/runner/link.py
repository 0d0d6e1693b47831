"""Between two processes: a connection whose sending never waits, and how far the other one has got."""

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
NUMBERS_BYTES = 24  # of three numbers
HANDLED_BYTES = NUMBERS_BYTES + PROGRESS_BYTES
SMALL = 2048  # bytes that a socket takes that says it takes any
BACKLOG = 10_000  # messages that wait to be sent
Message = tuple[str, object]  # kind, body


class Handled:
    """Shared numbers of a drafter's process: the messages it has handled, its progress, and what it may use.

    Numbers in shared memory. The child writes the first one, which the parent compares with how many messages it has
    sent, and the progress; the parent writes whether the target's cores are lent to the child, and whether it is to
    prepare drafts while the target verifies.

    Args:
        folder: where both processes find the file that they map; it may be deleted once they have.
        create: make the file; the other side only opens it.
    """

    def __init__(self, folder: Path, *, create: bool = False) -> None:
        with (folder / HANDLED_FILE).open("w+b" if create else "r+b") as file:
            if create:
                file.truncate(HANDLED_BYTES)
            memory = memoryview(mmap.mmap(file.fileno(), HANDLED_BYTES))
        self._numbers = memory[:NUMBERS_BYTES].cast("Q")
        self.progress = ProgressClock(memory[NUMBERS_BYTES:])

    def get(self) -> int:
        """The number, as the child wrote it last; takes less than a microsecond."""
        return self._numbers[0]

    def set(self, count: int) -> None:
        """Write the number."""
        self._numbers[0] = count

    @property
    def lent(self) -> bool:
        """True if the target waits and lends its cores to the drafter; takes less than a microsecond."""
        return bool(self._numbers[1])

    def lend(self, *, lent: bool) -> None:
        """Write whether they are."""
        self._numbers[1] = lent

    @property
    def ahead(self) -> bool:
        """True if drafts are to be prepared while the target verifies."""
        return bool(self._numbers[2])

    def prepare(self, *, ahead: bool) -> None:
        """Write whether they are."""
        self._numbers[2] = ahead


class Link:
    """A connection whose other side may be slow, or hang.

    A small message is sent at once where the connection takes it. Else a thread sends it: the other side may be in the
    midst of a pass, or stopped, and arrays are megabytes. What follows meanwhile waits behind it, in order.

    Args:
        connection: to the other process.
        receive: called in a thread of its own with every message, and with `None` when the connection has ended or
            what came in cannot be read.
    """

    def __init__(self, connection: Connection, receive: Callable[[object], None]) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._backlog: deque[tuple[memoryview, Sequence[memoryview]]] = deque()
        self._sending = False  # a thread is about the backlog
        # Held by its thread alone: who receives mostly holds this link, and the two would hold each other.
        threading.Thread(target=self._listen, args=(receive,), name="drafter-link", daemon=True).start()

    def send(self, message: Message, arrays: Sequence[memoryview] = ()) -> None:
        """Send, or have it sent.

        Raises:
            BlockingIOError: the other process has taken no message for long.
            OSError: it is gone.
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
        with suppress(Exception):  # ended, or not to be read: what comes next would not be either
            while True:
                receive(self._connection.recv())
        receive(None)
