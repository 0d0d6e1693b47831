"""Both ways of a connection to another process: sending never waits, what comes in goes to a callback."""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection

Message = tuple[str, object]  # kind, body


class Link:
    """A connection whose other side may be slow, or hang.

    Small messages are sent at once. A message with arrays is sent by a thread, as the other side may be in the midst of
    a pass and the arrays are megabytes; what follows meanwhile waits behind it, in order.

    Args:
        connection: to the other process.
        receive: called in a thread of its own with every message, and with `None` when the connection has ended or
            what came in cannot be read.
    """

    def __init__(self, connection: Connection, receive: Callable[[object], None]) -> None:
        self._connection = connection
        self._receive = receive
        self._lock = threading.Lock()
        self._backlog: deque[tuple[Message, Sequence[memoryview]]] = deque()
        self._sending = False  # a thread is about the backlog
        threading.Thread(target=self._listen, name="drafter-link", daemon=True).start()

    def send(self, message: Message, arrays: Sequence[memoryview] = ()) -> None:
        """Send, or have it sent.

        Raises:
            OSError: the other process is gone.
        """
        with self._lock:
            if not self._sending and not arrays:
                self._connection.send(message)
                return
            self._backlog.append((message, arrays))
            if self._sending:
                return
            self._sending = True
        try:
            threading.Thread(target=self._send_backlog, name="drafter-sender", daemon=True).start()
        except RuntimeError:  # no more threads may be started
            self._send_backlog()

    def close(self) -> None:
        """End the connection; nothing is sent any more."""
        self._connection.close()

    def _send_backlog(self) -> None:
        while True:
            with self._lock:
                if not self._backlog:
                    self._sending = False
                    return
                message, arrays = self._backlog.popleft()
            try:
                self._connection.send(message)
                for array in arrays:
                    self._connection.send_bytes(array)
            except OSError:  # the listener sees that the other process is gone
                with self._lock:
                    self._backlog.clear()

    def _listen(self) -> None:
        with suppress(Exception):  # ended, or not to be read: what comes next would not be either
            while True:
                self._receive(self._connection.recv())
        self._receive(None)
