"""SteppedLoop: a decode loop whose caller decides when each round runs, in the engine's thread."""

import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from crossdraft.engine.fast.static_cache import hand_back
from crossdraft.engine.loop import DecodeLoop
from crossdraft.engine.request import Answer, Request, single
from crossdraft.engine.request_state import OnPiece
from crossdraft.engine.scheduler import Call, Scheduler
from crossdraft.errors import CrossdraftError


class SteppedLoop:
    """A second loop over an engine's target and drafter, whose rounds run in the engine's thread between the others."""

    def __init__(self, owner: object, scheduler: Scheduler, make: Callable[[], DecodeLoop]) -> None:
        self._owner = owner  # is not collected as long as this is used
        self._call = scheduler.call
        self._loop = scheduler.call(make)
        # A loop that is dropped leaves no request in the drafter.
        weakref.finalize(self, _forget, scheduler, self._loop).atexit = False

    def submit(self, request: Request, on_piece: OnPiece | None = None, *, provisional: bool = True) -> int:
        """See `DecodeLoop.submit`."""
        asked = single(request)
        return self._call(lambda: self._loop.submit(asked, on_piece, provisional=provisional))

    def cancel(self, request_id: int) -> bool:
        """See `DecodeLoop.cancel`."""
        return self._call(lambda: self._loop.cancel(request_id))

    @property
    def busy(self) -> bool:
        """See `DecodeLoop.busy`."""
        return self._call(lambda: self._loop.busy)

    def step(self) -> None:
        """See `DecodeLoop.step`."""
        self._call(self._loop.step)

    def finished(self) -> list[int]:
        """See `DecodeLoop.finished`."""
        return self._call(self._loop.finished)

    def answer(self, request_id: int) -> Answer:
        """See `DecodeLoop.answer`."""
        return self._call(lambda: self._loop.answer(request_id))

    def drop(self) -> None:
        """See `DecodeLoop.drop`."""
        self._call(self._loop.drop)


def _forget(scheduler: Scheduler, loop: DecodeLoop) -> None:
    with suppress(CrossdraftError):
        scheduler.post(Call(partial(_end, loop), lambda error: None))


def _end(loop: DecodeLoop) -> None:
    """End a loop that has no owner any more."""
    loop.drop()
    hand_back(loop.cache)
