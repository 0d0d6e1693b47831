"""RequestQueue: the requests of a decode loop: waiting ones, ones that have a row, and answered ones."""

import itertools
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from dataclasses import dataclass, field

from crossdraft.engine.estimates import Ema
from crossdraft.engine.opening import Opening
from crossdraft.engine.request import Answer, Finish, Request
from crossdraft.engine.request_state import Job, OnPiece, RequestState
from crossdraft.errors import CrossdraftError, RequestError

REQUEST_IDS = itertools.count()  # of all requests of this process
ALONE = 2048  # tokens of a chunk while no answer runs, or a quarter more: between chunks the request can be cancelled
FIRST = 64  # tokens of a chunk beside running answers, before anything is measured
LEAST = 16
HELD_S = 0.1  # seconds for which a chunk may hold up running answers, which a reader hardly notices,
HELD_ROUNDS = 1.5  # or number of their rounds, if that is longer


@dataclass
class ChunkSize:
    """Number of a prompt's tokens that share a pass with running answers, by the measured times of chunks and rounds.

    Args:
        size: tokens of a chunk; 0 = all, `None` = as many as take `held_s`. Each further chunk costs a
            pass, which delays the request and all that wait behind it.
    """

    size: int | None = None
    round_s: Ema = field(default_factory=Ema)
    read_s: Ema = field(default_factory=Ema)  # seconds of a chunk, without the round that shares its pass
    read: Ema = field(default_factory=Ema)  # tokens of a chunk

    def tokens(self, rows: int, left: int) -> int:
        """Number of tokens of the next chunk, in a pass of `rows` rows; `left` tokens of that piece are not read."""
        if self.size == 0 or (rows == 1 and 4 * left <= 5 * ALONE):  # a pass over a few tokens reads all the weights
            return left
        if rows == 1:
            return ALONE
        held_s, read_s = self.held_s, self.read_s.value
        if self.size or held_s is None or not read_s or not self.read.value:
            return self.size or FIRST
        return int(min(ALONE, max(LEAST, held_s * self.read.value / read_s // LEAST * LEAST)))

    @property
    def held_s(self) -> float | None:
        """Seconds for which running answers may be held up; `None` = without limit."""
        return None if self.size == 0 else max(HELD_S, HELD_ROUNDS * (self.round_s.value or 0.0))

    def saw(self, seconds: float, rows: int, tokens: int) -> None:
        """Record the time of a pass over `rows` running answers and `tokens` tokens of a prompt."""
        round_s = self.round_s.value if rows else 0.0
        if not tokens:
            self.round_s.add(seconds)
        elif round_s is not None:  # long and short chunks alike: a short one costs a pass, too
            self.read_s.add(max(0.0, seconds - round_s))
            self.read.add(tokens)


class RequestQueue:
    """Waiting, running and answered requests of a decode loop.

    Args:
        on_piece: called with the pieces of every request that has no `on_piece` of its own.
    """

    def __init__(self, on_piece: OnPiece | None = None) -> None:
        self.on_piece = on_piece
        self.waiting: dict[int, Job] = {}
        self.openings: list[Opening] = []  # those whose prompts are prepared, by `precedence`
        self.rows: list[RequestState] = []  # in the order of their cache rows
        self.paused: list[RequestState] = []  # those that had a row, and wait for another one
        self._done: dict[int, RequestState | Exception] = {}

    def schedule(self) -> list[RequestState]:
        """Rows of the next pass: all running answers, and one request whose prompt is being read."""
        reading = min((row for row in self.rows if row.pending), key=precedence, default=None)
        return [row for row in self.rows if row is reading or not row.pending]

    def next(self, *, above: float | None = None) -> Job | RequestState | None:
        """Waiting request to be opened next: the one of the highest priority, among equal ones the first that came.

        Args:
            above: only requests of a higher priority than this count.
        """
        first = min((*self.waiting.values(), *self.paused), key=precedence, default=None)
        return None if first is None or (above is not None and first.request.priority <= above) else first

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
            cancelled: tells whether it was cancelled; asked between the chunks of a long prompt.
        """
        request_id, since = next(REQUEST_IDS), time.perf_counter() if asked is None else asked
        self.waiting[request_id] = Job(request_id, request, on_piece or self.on_piece, provisional, since, cancelled)
        return request_id

    def cancel(self, request_id: int) -> bool:
        """End a request before its next round; its answer holds what was emitted until then.

        False if it is unknown, or over. A request that still waits ends with a `CancelledError`.
        """
        for state in self.states:
            if state.request_id == request_id and state.finish is None:
                state.finish = Finish.CANCELLED
                return True
        if self.waiting.pop(request_id, None) is None:
            return False
        self._done[request_id] = CancelledError(f"Request {request_id} was cancelled before it began.")
        return True

    @property
    def states(self) -> list[RequestState]:
        """Requests that were taken up and have not ended."""
        return [*self.rows, *self.paused, *(opening.state for opening in self.openings)]

    @property
    def busy(self) -> bool:
        """True while a request waits or runs."""
        return bool(self.waiting or self.states)

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

    def end(self, job: Job, result: RequestState | Exception) -> None:
        """End a request: its answer, or the error that ended it, can be fetched."""
        self._done[job.request_id] = _failed(result, job) if isinstance(result, Exception) else result


def precedence(asked: Job | RequestState) -> tuple[int, int]:
    """Sort key of requests: the highest priority first, then the order in which they came."""
    return -asked.request.priority, asked.request_id


def _failed(error: Exception, job: Job) -> Exception:
    """The error that a user gets: errors that the user can mend unchanged, any other with the request's name."""
    if isinstance(error, CrossdraftError | CancelledError):
        return error
    asked = job.request.question[:60]
    named = RequestError(f"Request {job.request_id} ({asked!r}) failed: {type(error).__name__}: {error}")
    named.__cause__ = error
    return named
