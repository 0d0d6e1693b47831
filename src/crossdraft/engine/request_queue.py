"""RequestQueue: the requests of a decode loop: those that wait, those that run, those that are answered."""

import itertools
import time
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError

from crossdraft.engine.request import Answer, Finish, Request
from crossdraft.engine.request_state import Job, OnPiece, RequestState
from crossdraft.errors import CrossdraftError, RequestError

REQUEST_IDS = itertools.count()  # of all requests of this process


class RequestQueue:
    """See the module's text; `step`, which a decode loop adds, brings the answers on.

    Args:
        on_piece: called with the pieces of every request that has no `on_piece` of its own.
    """

    def __init__(self, on_piece: OnPiece | None = None) -> None:
        self.on_piece = on_piece
        self._waiting: dict[int, Job] = {}
        self._live: list[RequestState] = []  # in the order of their cache rows
        self._paused: list[RequestState] = []  # those that had a row, and wait for another one
        self._done: dict[int, RequestState | Exception] = {}

    def step(self) -> None:
        """Bring the live requests on by a round."""
        raise NotImplementedError

    def submit(
        self,
        request: Request,
        on_piece: OnPiece | None = None,
        *,
        provisional: bool = True,
        asked: float | None = None,
        cancelled: Callable[[], bool] = bool,
    ) -> int:
        """Queue a request; returns its id, a number that no other request of this process has.

        Args:
            request: what to answer.
            on_piece: called with every piece as it appears, provisional ones from another thread; must return at once.
            provisional: whether it is called with provisional pieces.
            asked: when it came, by `time.perf_counter`; `None` = now.
            cancelled: whether nobody wants it any more; asked between the chunks of a long prompt.
        """
        request_id, since = next(REQUEST_IDS), time.perf_counter() if asked is None else asked
        self._waiting[request_id] = Job(request_id, request, on_piece or self.on_piece, provisional, since, cancelled)
        return request_id

    def cancel(self, request_id: int) -> bool:
        """End a request before its next round; its answer holds what was emitted until then.

        False if it is unknown, or over. One that still waited has no answer but a `CancelledError`.
        """
        for state in self._states():
            if state.request_id == request_id and state.finish is None:
                state.finish = Finish.CANCELLED
                return True
        if self._waiting.pop(request_id, None) is None:
            return False
        self._done[request_id] = CancelledError(f"Request {request_id} was cancelled before it began.")
        return True

    @property
    def busy(self) -> bool:
        """True while a request waits or runs."""
        return bool(self._waiting or self._states())

    def generate(self, requests: Iterable[Request]) -> list[Answer]:
        """Answer all requests, in their order.

        Raises:
            Exception: the first one that a request ended with, when the others are answered.
        """
        request_ids = [self.submit(request) for request in requests]
        while self.busy:
            self.step()
        return [self.answer(request_id) for request_id in request_ids]

    def answer(self, request_id: int) -> Answer:
        """The finished answer of a request; it is handed out once.

        Raises:
            concurrent.futures.CancelledError: it was cancelled before it began.
            RequestError: an error of the engine ended it.
            CrossdraftError: what is wrong with the request, or there is no answer of that id.
        """
        if request_id not in self._done:
            raise CrossdraftError(f"Request {request_id} is not finished, or its answer was fetched.")
        done = self._done.pop(request_id)
        if isinstance(done, Exception):
            raise done
        return done.answer()

    def finished(self) -> list[int]:
        """Ids of the requests whose answers can be fetched."""
        return list(self._done)

    def _states(self) -> list[RequestState]:
        """List the requests that were taken up and have not ended."""
        return [*self._live, *self._paused]

    def _next_job(self, ready: Callable[[Job], bool] | None = None) -> Job | None:
        """Find the waiting request of the highest priority that is `ready`; of several, the one that came first."""
        return next(
            (job for job in sorted(self._waiting.values(), key=precedence) if ready is None or ready(job)), None
        )

    def _finish(self, job: Job, result: RequestState | Exception) -> None:
        """A request is over: its answer, or what ended it, can be fetched."""
        self._done[job.request_id] = _failed(result, job) if isinstance(result, Exception) else result


def precedence(asked: Job | RequestState) -> tuple[int, int]:
    """Sort key of requests: the highest priority first, then the order in which they came."""
    return -asked.request.priority, asked.request_id


def _failed(error: Exception, job: Job) -> Exception:
    """The error that a user gets: what is theirs to mend as it is, any other with the request's name."""
    if isinstance(error, CrossdraftError | CancelledError):
        return error
    asked = job.request.question[:60]
    named = RequestError(f"Request {job.request_id} ({asked!r}) failed: {type(error).__name__}: {error}")
    named.__cause__ = error
    return named
