"""Keeping a drafter alive: it is restarted when it is lost, not too often, while answers go on."""

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from crossdraft.engine.drafter import NO_NEEDS
from crossdraft.engine.runner.runner import DraftRunner

log = logging.getLogger(__name__)

RESTARTS = 3  # at most so many
WINDOW_S = 600.0  # within this time
BACKOFF_S = 0.5
CLOSING_S = 10.0  # at most, until a restart under way has ended


class Supervisor:
    """A drafter, and what is done when it is lost.

    Args:
        runner: of the drafter; `None` = there is none.
        restarts: how often it is restarted within `WINDOW_S`; 0 = never.
        clock: seconds, as `time.monotonic`.
        backoff_s: before the first restart; four times as long before each further one.
    """

    def __init__(
        self,
        runner: DraftRunner[Any] | None,
        restarts: int = 0,
        clock: Callable[[], float] = time.monotonic,
        backoff_s: float = BACKOFF_S,
    ) -> None:
        self.absence: str | None = None  # why there is no drafter now, where there should be one
        needs = NO_NEEDS if runner is None else runner.needs
        # While it is lost, too: rows keep room for probes.
        self.probes, self.unasked, self.prepares = needs.probes, needs.unasked, needs.prepares
        self._runner = runner
        self._restarts = restarts
        self._clock = clock
        self._backoff_s = backoff_s
        self._losses: list[float] = []
        self._fresh: DraftRunner[Any] | None = None  # restarted, not taken up yet
        self._restarting: tuple[DraftRunner[Any], threading.Thread] | None = None
        self._closed = threading.Event()
        self._lock = threading.Lock()

    @property
    def runner(self) -> DraftRunner[Any] | None:
        """The drafter, if it is there now."""
        return self._runner

    @property
    def alive(self) -> bool:
        """True if there is a drafter that runs now, taken up or not."""
        runner = self._fresh or self._runner
        return runner is not None and runner.alive

    def take_up(self) -> DraftRunner[Any] | None:
        """The drafter, a restarted one included."""
        with self._lock:
            if self._fresh is not None:
                self._runner, self._fresh, self.absence = self._fresh, None, None
        return self._runner

    def lose(self, why: str) -> None:
        """The drafter is lost: it is closed, and restarted in a thread if that has not been done too often."""
        lost, self._runner = self._runner, None
        if lost is None:
            return
        if not self._restarts:
            _ended(lost.close)
            self._miss(f"it was lost ({why}), and is not restarted")
            return
        delay = self._delay(f"it was lost ({why})")
        thread = threading.Thread(target=self._restart, args=(lost, delay), name="drafter-restart", daemon=True)
        self._restarting = lost, thread
        thread.start()

    def _delay(self, why: str) -> float:
        """Seconds until the next attempt to restart it, the last one having ended so."""
        now = self._clock()
        self._losses = [at for at in self._losses if now - at < WINDOW_S] + [now]
        count = len(self._losses)
        if count <= self._restarts:
            self._miss(f"{why}, and is being restarted")
            return self._backoff_s * 4 ** (count - 1)
        until = self._losses[count - 1 - self._restarts] + WINDOW_S - now
        often = f"for the {count}th time in {WINDOW_S / 60:g} minutes"
        self._miss(f"{why}, {often}, and is restarted {until / 60:.0f} minutes later")
        return until

    def _miss(self, absence: str) -> None:
        """There is no drafter now."""
        self.absence = absence
        log.warning("Answers are written without the drafter: %s.", absence)

    def close(self) -> None:
        """Stop the drafter; it is not restarted any more."""
        with self._lock:
            self._closed.set()
            runners, self._runner, self._fresh = (self._runner, self._fresh), None, None
        for runner in runners:
            if runner is not None:
                _ended(runner.close)
        if self._restarting is not None:
            lost, thread = self._restarting
            _ended(lost.close)  # what it starts is ended, whether it has loaded or not
            thread.join(CLOSING_S)

    def _restart(self, lost: DraftRunner[Any], delay: float) -> None:
        _ended(lost.stop)  # it may hang, and hold cores and memory
        while True:
            if self._closed.wait(delay):
                _ended(lost.close)
                return
            try:
                fresh = lost.restarted()
                break
            except Exception as error:
                if self._closed.is_set():  # what was being started was ended
                    return
                log.exception("The drafter could not be restarted.")
                delay = self._delay(f"it was lost, could not be restarted ({error})")
        with self._lock:
            if not self._closed.is_set():
                self._fresh = fresh
                log.info("The drafter was restarted.")
                return
        _ended(fresh.close)


def _ended(end: Callable[[], None]) -> None:
    try:
        end()
    except Exception:  # whatever it was, it is over
        log.exception("A drafter could not be closed properly.")
