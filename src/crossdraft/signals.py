"""Signal handlers that are set while a context is open, and handlers that wait for the end of an import."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

AGAIN_S = 0.05  # after which a signal that came during an import is tried again

Handler = Callable[[int, FrameType | None], object]


@contextmanager
def handled(handler: Handler, *numbers: int) -> Iterator[None]:
    """Send these signals to a handler while the context is open; outside of the main thread, change nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, one in before.items():
            signal.signal(number, one)


def after_imports(handler: Handler) -> Handler:
    """Return a handler that waits while a module is imported: an import cut short may raise anything, or abort."""

    def handle(number: int, frame: FrameType | None) -> None:
        caller = frame
        while caller is not None:
            if caller.f_code.co_filename.startswith("<frozen importlib"):
                main_thread = threading.main_thread().ident
                again = threading.Timer(AGAIN_S, signal.pthread_kill, (main_thread, number))
                again.daemon = True
                again.start()
                return
            caller = caller.f_back
        handler(number, frame)

    return handle


class Terminated(KeyboardInterrupt):
    """Interrupt by SIGTERM; a `KeyboardInterrupt`, so that whatever ends in order on Ctrl-C does so here, too."""


def terminate(number: int, frame: FrameType | None) -> None:
    """Handle a signal by interrupting the main thread.

    Raises:
        Terminated: always.
    """
    raise Terminated
