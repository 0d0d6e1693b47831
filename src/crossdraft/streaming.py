"""One answer piece by piece, for a loop and for asyncio."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import CancelledError, Future, wait
from contextlib import suppress
from queue import SimpleQueue

from crossdraft.engine.request import Answer, Piece
from crossdraft.engine.request_state import OnPiece
from crossdraft.engine.scheduler import PendingAnswer

Submit = Callable[[OnPiece], PendingAnswer]


class Stream:
    """Pieces of one answer as they appear.

    The request is handed over when the iteration begins. Leaving the loop early, or an exception in it (Ctrl-C),
    cancels the request within one round.
    """

    def __init__(self, submit: Submit) -> None:
        self._submit = submit
        self._pending: PendingAnswer | None = None
        self._over = False
        self._cancelled = threading.Event()

    @property
    def answer(self) -> Answer | None:
        """Return the whole answer once the iteration is over; after an early exit, wait for the round to end.

        Raises:
            CrossdraftError: the call would wait for its own thread (`PendingAnswer.check_waiter`).
        """
        pending = self._pending  # another thread's iteration may fail meanwhile
        if pending is None or not self._over:
            return None
        pending.check_waiter()
        wait([pending.future])
        return _answer(pending.future)

    def __iter__(self) -> Iterator[Piece]:
        if self._cancelled.is_set():
            return
        pieces: SimpleQueue[Piece | None] = SimpleQueue()
        pending = self._pending = self._submit(pieces.put)
        if self._cancelled.is_set():  # by a call that found nothing to cancel yet
            pending.cancel()
        pending.future.add_done_callback(lambda _: pieces.put(None))
        try:
            pending.check_waiter()
            while (piece := pieces.get()) is not None:
                yield piece
        finally:  # nothing is waited for: a generator may be collected in any thread, the loop's too
            pending.cancel()
            self._over = True
        if (error := _error(pending.future)) is not None:
            self._pending = None
            try:
                raise error
            finally:
                del pending, error  # its traceback holds this frame

    def cancel(self) -> None:
        """End the answer before its next round; from any thread. The iteration ends, and nothing is raised."""
        self._cancelled.set()
        if (pending := self._pending) is not None:
            pending.cancel()


class AsyncStream:
    """Pieces of one answer as in `Stream`, for `async for`. Cancelling the task that waits cancels the request.

    A caller that leaves the loop otherwise must close the iterator that `aiter` gave, as `contextlib.aclosing` does.
    """

    def __init__(self, submit: Submit) -> None:
        self.answer: Answer | None = None
        self._submit = submit

    async def __aiter__(self) -> AsyncGenerator[Piece]:
        loop = asyncio.get_running_loop()
        pieces: asyncio.Queue[Piece | None] = asyncio.Queue()

        def put(piece: Piece | None) -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody waits for it
                loop.call_soon_threadsafe(pieces.put_nowait, piece)

        pending = self._submit(put)
        pending.future.add_done_callback(lambda _: put(None))
        try:
            while (piece := await pieces.get()) is not None:
                yield piece
        finally:
            pending.cancel()
        self.answer = _answer(pending.future)
        if (error := _error(pending.future)) is not None:
            try:
                raise error
            finally:
                del pending, error  # its traceback holds this frame


async def awaited(pending: PendingAnswer) -> Answer:
    """Wait for the answer; cancelling the waiting task cancels the request."""
    try:
        return await asyncio.wrap_future(pending.future)
    finally:
        pending.cancel()  # nothing if it is over
        del pending  # an error's traceback holds this frame


def _answer(done: "Future[Answer]") -> Answer | None:
    return None if done.cancelled() or done.exception() is not None else done.result()


def _error(done: "Future[Answer]") -> BaseException | None:
    """Return the error that ended the request; `None` if it succeeded or was cancelled."""
    error = None if done.cancelled() else done.exception()
    return None if isinstance(error, CancelledError) else error
