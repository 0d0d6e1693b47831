"""One answer piece by piece, for a loop and for asyncio."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import CancelledError, Future, wait
from contextlib import suppress
from queue import SimpleQueue

from crossdraft.engine.live import OnPiece
from crossdraft.engine.request import Answer, Piece
from crossdraft.engine.scheduler import PendingAnswer

Submit = Callable[[OnPiece], PendingAnswer]


class Stream:
    """Pieces of one answer as they appear; `answer` holds the whole once the iteration is over.

    The request is handed over when the iteration begins. Leaving the loop early, or an exception in it (Ctrl-C),
    cancels the request within one round.
    """

    def __init__(self, submit: Submit) -> None:
        self.answer: Answer | None = None
        self._submit = submit
        self._pending: PendingAnswer | None = None
        self._cancelled = threading.Event()

    def __iter__(self) -> Iterator[Piece]:
        if self._cancelled.is_set():
            return
        pieces: SimpleQueue[Piece | None] = SimpleQueue()
        pending = self._pending = self._submit(pieces.put)
        pending.future.add_done_callback(lambda _: pieces.put(None))
        try:
            while (piece := pieces.get()) is not None:
                yield piece
        finally:
            pending.cancel()
            wait([pending.future])
            self.answer = _answer(pending.future)
        _raise(pending.future)

    def cancel(self) -> None:
        """End the answer before its next round."""
        self._cancelled.set()
        if self._pending is not None:
            self._pending.cancel()


class AsyncStream:
    """As `Stream`, for `async for`. Cancelling the task that iterates cancels the request."""

    def __init__(self, submit: Submit) -> None:
        self.answer: Answer | None = None
        self._submit = submit

    async def __aiter__(self) -> AsyncIterator[Piece]:
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
        _raise(pending.future)


async def awaited(pending: PendingAnswer) -> Answer:
    """The answer; cancelling the task that waits cancels the request."""
    try:
        return await asyncio.wrap_future(pending.future)
    finally:
        pending.cancel()  # nothing if it is over


def _answer(done: "Future[Answer]") -> Answer | None:
    return None if done.cancelled() or done.exception() is not None else done.result()


def _raise(done: "Future[Answer]") -> None:
    """Raise what the request ended with, unless that is its cancellation."""
    error = None if done.cancelled() else done.exception()
    if error is not None and not isinstance(error, CancelledError):
        raise error
