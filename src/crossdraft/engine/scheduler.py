"""The one thread that runs an engine's loop: requests reach it from any thread, through a queue."""

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass
from traceback import format_tb
from typing import Protocol, TypeVar

import torch

from crossdraft.engine.fast.elastic import disband
from crossdraft.engine.fast.pinning import pinned
from crossdraft.engine.loop import DecodeLoop
from crossdraft.engine.request import Answer, Request
from crossdraft.engine.request_state import OnPiece
from crossdraft.errors import CrossdraftError, QueueFullError, RequestError

log = logging.getLogger(__name__)

CLOSED = "This engine is closed; load another one."
IDLE_S = 0.05  # after that time without a request the loop's OpenMP threads end
Result = TypeVar("Result")


HandOver = Callable[[Answer | BaseException], None]


class AnswerCheck(Protocol):
    """A check of a finished answer, made before the answer is handed over."""

    def cancel(self) -> None:
        """Cancel the check, as the answer is not wanted any more; from any thread."""

    def settle(self, result: Answer | BaseException, hand_over: HandOver) -> None:
        """Take the request's result, in the loop's thread; `hand_over` is called once, now or later, by any thread."""


class PendingAnswer:
    """An answer that is being written, made by `Scheduler.submit`; `future` gets it."""

    def __init__(
        self,
        scheduler: "Scheduler",
        job: Callable[[DecodeLoop, Callable[[], bool]], int],
        owner: object = None,
        release: Callable[[], None] = lambda: None,
        check: AnswerCheck | None = None,
    ) -> None:
        """`job` queues the request in a loop; its second argument tells whether the answer was cancelled.

        `release` is called once, when the loop holds nothing of the request any more and its check is over.
        """
        self.future: Future[Answer] = Future()
        self._scheduler = scheduler
        self._job = job
        self._release = release
        self._owner = owner  # kept alive as long as somebody may wait
        self._check = check
        self._loop: DecodeLoop | None = None
        self._ticket: int | None = None
        self._cancelled = False

    def result(self, timeout: float | None = None) -> Answer:
        """Wait for the answer.

        Raises:
            CrossdraftError: what is wrong with the request, or with the engine (`RequestError`).
            concurrent.futures.CancelledError: it was cancelled before it began.
            TimeoutError: it takes longer than `timeout` seconds; it is still being written.
        """
        self.check_waiter()
        try:
            return self.future.result(timeout)
        finally:
            del self  # an error's traceback holds this frame

    def check_waiter(self) -> None:
        """Refuse to wait in the loop's own thread, which would wait for itself.

        Raises:
            CrossdraftError: the caller runs in the loop's thread, and the answer is not finished.
        """
        if not self.future.done():
            self._scheduler.check_caller()

    def cancel(self) -> None:
        """End the answer within a round, or a chunk of its prompt; it then holds what was written until then."""
        self._cancelled = True
        if (check := self._check) is not None:
            check.cancel()
        if not self.future.done() or self.future.cancelled():  # asyncio cancels the future first
            self._scheduler.post(Call(self._cancel, lambda error: None))

    def cancelled(self) -> bool:
        """True if the answer was cancelled."""
        return self._cancelled

    def begin(self, loop: DecodeLoop) -> int | None:
        """Queue the request in the loop, in whose thread this is called; returns its ticket."""
        if self._cancelled:
            self._end()
            self.future.cancel()
            self.future.set_running_or_notify_cancel()  # wakes threads in `concurrent.futures.wait`
            return None
        self._loop, self._ticket = loop, self._job(loop, self.cancelled)
        return self._ticket

    def _cancel(self) -> None:
        if (loop := self._loop) is not None and self._ticket is not None:
            loop.cancel(self._ticket)

    def settle(self, result: Answer | BaseException) -> None:
        """Hand over the result of the finished request, after its check if it has one."""
        if (check := self._check) is None:
            self._hand_over(result)
        else:
            check.settle(result, self._hand_over)

    def _hand_over(self, result: Answer | BaseException) -> None:
        """Set the future's result or exception, unless the future was cancelled."""
        self._end()
        with suppress(InvalidStateError):
            if isinstance(result, BaseException):
                self.future.set_exception(without_frames(result))
            else:
                self.future.set_result(result)

    def _end(self) -> None:
        """Release what the request held, before the future is set: a waiter may submit its next request at once.

        A future that its owner cancels, as asyncio does, is done earlier, while the request still has a row.
        """
        self._owner = self._check = self._loop = None
        release, self._release = self._release, lambda: None
        release()


def without_frames(error: BaseException) -> BaseException:
    """Remove the traceback frames of an error; an unexpected error keeps their text as a note.

    Frames keep alive all that was read of prompts, by reference cycles too, and an error may be kept for long.
    """
    parts: list[BaseException] = [error]
    for part in parts:
        more = (part.__cause__, part.__context__)
        parts += [one for one in more if one is not None and not any(one is known for known in parts)]
    for part in parts:
        if part.__traceback__ is not None and not isinstance(part, CrossdraftError | CancelledError):
            with suppress(Exception):  # a class may take no attributes; the request must not hang because of that
                note = "".join(format_tb(part.__traceback__)).rstrip()
                if note not in getattr(part, "__notes__", ()):  # the same object may be raised again and again
                    part.add_note(note)
        part.with_traceback(None)
    return error


@dataclass(frozen=True)
class Call:
    """A call for the loop's thread: `run` is run there; `refuse` is called instead if the engine is closed before."""

    run: Callable[[], None]
    refuse: Callable[[CrossdraftError], None]


class Scheduler:
    """Runs a decode loop in a thread of its own while there are requests.

    The thread starts with the first request, is pinned to the given cores, and ends with `close`.

    Args:
        make: makes the loop, in that thread; called again if a loop fails as a whole.
        cores: CPU cores of the thread, with a torch thread for each; `None` = the cores of the thread that submits the
            first request, and as many torch threads as the thread that makes the scheduler.
        most: requests that may wait or run at a time; `None` = any number.
    """

    def __init__(
        self, make: Callable[[], DecodeLoop], cores: Sequence[int] | None = None, most: int | None = None
    ) -> None:
        self._make = make
        self._cores, self._threads = cores, torch.get_num_threads()
        self._calls: list[Call] = []
        self._changed = threading.Condition()  # wakes the loop's thread
        self._room = threading.Condition()  # guards the count; wakes threads that wait for room
        self._thread: threading.Thread | None = None
        self._closed = self._joins = False
        self._most, self._count = most, 0
        self._process = os.getpid()
        self._loop: DecodeLoop | None = None  # this and the following belong to the loop's thread
        self._pending: dict[int, PendingAnswer] = {}

    # -- from any thread -----------------------------------------------------------------------------------------

    def submit(
        self,
        request: Request,
        on_piece: OnPiece | None = None,
        *,
        provisional: bool = True,
        owner: object = None,
        patient: bool = False,
        counted: bool = True,
        check: AnswerCheck | None = None,
    ) -> PendingAnswer:
        """Queue a request; see `DecodeLoop.submit`. `owner` is kept alive until it is answered.

        Args:
            patient: wait while there is no room, instead of raising `QueueFullError`.
            counted: count the request among the `most`; false for requests made by the check of a counted one.
            check: check of the answer, which then hands it over.

        Raises:
            QueueFullError: `most` requests wait or run.
            CrossdraftError: the engine is closed, or belongs to another process.
        """
        self._check_process()
        leave = self._subtract if counted else lambda: None
        if counted:
            self._add(patient=patient)
        asked = time.perf_counter()

        def job(loop: DecodeLoop, cancelled: Callable[[], bool]) -> int:
            return loop.submit(request, on_piece, provisional=provisional, asked=asked, cancelled=cancelled)

        pending = PendingAnswer(self, job, owner, leave, check)
        if not self.post(Call(lambda: self._begin(pending), pending.settle)):
            leave()
            raise CrossdraftError(CLOSED)
        return pending

    def _add(self, *, patient: bool) -> None:
        """Count one more request, if there is room; wait for room if `patient`."""
        with self._room:
            while self._most is not None and self._count >= self._most:
                if self._closed:
                    raise CrossdraftError(CLOSED)
                if not patient:
                    raise QueueFullError(
                        f"{self._count:,} requests wait or run, and no more than {self._most:,} may; ask again later, "
                        "or give the engine a longer queue: Options(max_queue=…)."
                    )
                self._room.wait()
            self._count += 1

    def _subtract(self) -> None:
        with self._room:
            self._count -= 1
            self._room.notify_all()

    def call(self, work: Callable[[], Result]) -> Result:
        """Run `work` in the loop's thread, between two rounds, and wait for its result.

        Raises:
            CrossdraftError: the engine is closed or belongs to another process, or the caller runs in that thread.
        """
        self.check_caller()
        future: Future[Result] = Future()

        def run() -> None:
            try:
                future.set_result(work())
            except BaseException as error:  # noqa: BLE001 - handed over to who waits
                future.set_exception(error)

        if not self.post(Call(run, future.set_exception)):
            raise CrossdraftError(CLOSED)
        return future.result()

    def check_caller(self) -> None:
        """Refuse a caller in the loop's own thread, which would wait for itself.

        Raises:
            CrossdraftError: the caller runs in the loop's thread.
        """
        if threading.current_thread() is self._thread:
            raise CrossdraftError(
                "The engine cannot be waited for by who is called with its pieces (on_piece) or its answers; "
                "do it in another thread."
            )

    @property
    def closed(self) -> bool:
        """True if the engine is closed, or about to be."""
        return self._closed

    @property
    def rows(self) -> int:
        """Rows of the loop's cache that are in use; a round later it may be another number."""
        loop = self._loop
        return 0 if loop is None else loop.cache.rows

    def post(self, call: Call) -> bool:
        """Queue a call for the loop's thread, to be run between two rounds; false if the engine is closed.

        Raises:
            CrossdraftError: the engine belongs to another process.
        """
        self._check_process()
        if threading.current_thread() is not self._thread:
            disband()  # the caller will mostly wait
        with self._changed:
            if self._closed:
                return False
            self._calls.append(call)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="crossdraft", daemon=True)
                self._thread.start()
            self._changed.notify()
            return True

    def _check_process(self) -> None:
        if os.getpid() != self._process:  # a fork has neither the threads nor the drafter
            raise CrossdraftError("This engine belongs to the process that forked this one; load another one here.")

    def close(self, *, begun: bool = False) -> None:
        """End the thread. Requests that are not answered yet end with an error; may be called twice.

        Args:
            begun: also wait for work that other threads have begun for requests.
        """
        if os.getpid() != self._process:
            return
        with self._changed:
            self._closed, self._joins = True, begun
            self._changed.notify()
            thread = self._thread
        with self._room:
            self._room.notify_all()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def start(self) -> None:
        """Make the loop now, not with the first request.

        Raises:
            CrossdraftError: as `call`.
        """
        self.call(self._made)

    # -- in the loop's thread ------------------------------------------------------------------------------------

    def _made(self) -> DecodeLoop:
        self._loop = self._loop or self._make()
        return self._loop

    def _begin(self, pending: PendingAnswer) -> None:
        try:
            request_id = pending.begin(self._made())
        except Exception as error:
            log.exception("A request could not be queued.")
            pending.settle(RequestError(f"The engine failed: {type(error).__name__}: {error}"))
            return
        if request_id is not None:
            self._pending[request_id] = pending

    def _run(self) -> None:
        error = CrossdraftError(CLOSED)
        try:
            torch.set_num_threads(self._threads)  # a new thread has the number set last, perhaps by another engine
            with pinned(self._cores):
                while self._turn():
                    pass
        except BaseException as failure:
            log.exception("An engine's thread ended.")
            self._joins = True
            error = CrossdraftError(
                f"This engine's thread ended ({type(failure).__name__}: {failure}); load another one."
            )
        finally:  # whatever happened, nobody must wait for ever
            with self._changed:
                self._closed = True
            with self._room:
                self._room.notify_all()
            self._let_go(error)

    def _let_go(self, error: CrossdraftError) -> None:
        """End the loop and fail all waiting requests; answers that are still held then keep no weights alive."""
        loop, pending, calls = self._loop, self._pending, self._calls
        if loop is not None:
            with suppress(Exception):  # the loop is given up anyway
                loop.close()
        for tell in (*(one.settle for one in pending.values()), *(one.refuse for one in calls)):
            with suppress(BaseException):  # a callback may raise: the others are still told
                tell(error)
        self._loop, self._pending, self._calls = None, {}, []
        del self._make
        if loop is not None and self._joins:  # last: it may take as long as reading a prompt
            loop.join()

    def _turn(self) -> bool:
        """Run the posted calls, then a round; false when the engine is closed."""
        count = self._next()
        for _ in range(count or 0):
            self._calls[0].run()
            del self._calls[0]  # not before: if a call ends the thread, it and those behind it are refused
        if count is not None and self._loop is not None:
            self._step(self._loop)
        return count is not None

    def _next(self) -> int | None:
        """Wait until there is something to do; returns the number of posted calls, `None` if the engine is closed."""
        with self._changed:
            wait_s: float | None = IDLE_S
            while not (self._calls or self._closed or (self._loop is not None and self._loop.busy)):
                if not self._changed.wait(wait_s):
                    disband()
                    wait_s = None
            if self._closed:
                return None
            return len(self._calls)

    def _step(self, loop: DecodeLoop) -> None:
        """Run one round, and hand over the answers that it finished."""
        try:
            if loop.busy:
                loop.step()
        except BaseException as error:  # Ctrl-C never comes in this thread
            log.exception("The loop failed; a new one begins.")
            self._loop, pending = None, self._pending
            self._pending = {}
            for one in pending.values():
                one.settle(RequestError(f"The engine failed: {type(error).__name__}: {error}"))
            loop.drafter.lose(f"{type(error).__name__}: {error}")  # its state may be anything
            loop.drafter.forget()
            loop.prefixes.clear()
            return
        for request_id in loop.finished():
            waiting = self._pending.pop(request_id)
            try:
                waiting.settle(loop.answer(request_id))
            except Exception as error:  # noqa: BLE001 - handed over to who waits
                waiting.settle(error)
        loop.tidy()
