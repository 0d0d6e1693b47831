"""Live sources: a thread reads what comes, connects again when the source is lost, and says how it stands."""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Generic, Literal, TypeVar

from crossdraft.errors import CrossdraftError

T = TypeVar("T")
Items = Generator[T | None, None, None]

POLL_S = 0.1  # after which a source that has nothing says so, by None
SIGNAL_TIMEOUT_S = 2.0
OPEN_S = 10.0  # seconds in which the first item must come
DELAYS_S = 0.25, 5.0  # before a source is connected to again: the first delay, which doubles up to the second
MOST_NOTES = 16


@dataclass(frozen=True, slots=True)
class LiveStatus:
    """The state of a live source: the frames, or events, that it `received`, and sentences on what happened.

    Args:
        state: "waiting" until something came; "no signal" once nothing came for the time-out; "ended": for good.
        age_s: seconds since something came; `None` = nothing did.
        dropped: frames, or events, that gave way to newer ones before they were taken.
        reconnects: times that it came back after its connection was lost.
    """

    state: Literal["waiting", "live", "no signal", "ended"]
    age_s: float | None
    received: int
    dropped: int
    reconnects: int
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, object]:
        """Plain values."""
        return asdict(self) | {"age_s": None if self.age_s is None else round(self.age_s, 3), "notes": [*self.notes]}


class LiveReader(Generic[T]):
    """Reads a source in a thread of its own, which notes what happens.

    A source that is lost (its connection ends, it fails, or it sends what is refused) is connected to anew, after a
    delay of 0.25 s that doubles up to 5 s until something comes.

    Args:
        name: the source, for messages.
        read: connects, and yields items as they come; `None` at least each `POLL_S` while nothing comes. It returns at
            the end of the connection, and raises an error where it fails.
        take: takes each item and the moment of its arrival, in the thread; its error ends the connection.
        count: returns how many frames, or events, an item holds.
        once: the source cannot be opened again, such as standard input.
        signal_timeout_s: seconds without an item after which there is no signal.
        delays_s, now: least and greatest delay, see above; the clock.

    Attributes:
        dropped: counted by whoever holds the items.
        closing: set once it is closed; a `read` that waits on its own ends then.
    """

    def __init__(
        self,
        name: object,
        read: Callable[[], Items[T]],
        take: Callable[[T, float], None],
        *,
        count: Callable[[T], int] = lambda item: 1,
        once: bool = False,
        signal_timeout_s: float = SIGNAL_TIMEOUT_S,
        delays_s: tuple[float, float] = DELAYS_S,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.dropped, self.closing = 0, threading.Event()
        self._name, self._read, self._take, self._count = name, read, take, count
        self._once, self._now = once, now
        self._timeout_s, self._delays_s = signal_timeout_s, delays_s
        self._changed = threading.Condition()
        self._items = self._received = self._reconnects = 0
        self._newest_at, self._closed_at = now(), math.inf  # before the first item: when reading began
        self._lost = self._ended = False
        self._error: CrossdraftError | None = None  # of an attempt before the first item
        self._notes: deque[str] = deque(maxlen=MOST_NOTES)
        self._thread = threading.Thread(target=self._run, name=f"{name}", daemon=True)

    def start(self, wait_s: float = OPEN_S) -> None:
        """Begin to read, and wait for the first item; if it cannot be read, or none comes in time, close and raise."""
        self._newest_at = self._now()
        self._thread.start()
        with self._changed:
            self._changed.wait_for(lambda: self._items or self._error, wait_s)
        if self._error or not self._items:
            self.close()
            raise self._error or CrossdraftError(f"Nothing came from {self._name} in {wait_s:g} s; is it running?")

    def note(self, sentence: str) -> None:
        """Note what happened; a sentence that is noted already is not repeated."""
        with self._changed:
            if sentence not in self._notes:
                self._notes.append(sentence)

    def status(self) -> LiveStatus:
        """The state of the source now, or when it was closed."""
        with self._changed:
            age, came = min(self._now(), self._closed_at) - self._newest_at, self._items > 0
            state = "ended" if self._ended else "no signal" if age > self._timeout_s else "live" if came else "waiting"
            counts = self._received, self.dropped, self._reconnects
            return LiveStatus(state, age if came else None, *counts, tuple(self._notes))

    def close(self) -> None:
        """End the thread, and with it the connection."""
        self._closed_at = min(self._now(), self._closed_at)
        self.closing.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        least_s, most_s = self._delays_s
        delay = least_s / 2
        while not (self.closing.is_set() or self._ended):
            before = self._items
            try:
                self._read_all()
                why = CrossdraftError(f"{self._name} has ended.")
            except CrossdraftError as error:
                why = error
            except Exception as error:  # noqa: BLE001 - however a camera's library fails, the watch goes on
                why = CrossdraftError(f"{self._name} cannot be read ({error or type(error).__name__}); is it running?")
            if self.closing.is_set():
                return
            self.note(str(why))
            with self._changed:
                self._lost, self._ended = True, self._once
                self._error = self._error if self._items else self._error or why
                self._changed.notify_all()
            delay = least_s if self._items > before else min(2 * delay, most_s)
            self.closing.wait(delay)

    def _read_all(self) -> None:
        with closing(self._read()) as items:
            for item in items:
                if self.closing.is_set():
                    return
                if item is None:
                    continue
                at = self._now()
                self._take(item, at)
                with self._changed:
                    self._reconnects += self._lost
                    self._lost, self._newest_at = False, at
                    self._items, self._received = self._items + 1, self._received + self._count(item)
                    self._changed.notify_all()


class LiveQueue(Generic[T]):
    """Items that wait to be taken; the oldest give way beyond `keep_s` seconds or `most_bytes` bytes of all."""

    def __init__(self, keep_s: float, most_bytes: int) -> None:
        self._keep_s, self._most_bytes, self._nbytes = keep_s, most_bytes, 0
        self._held: deque[tuple[T, float, int]] = deque()
        self._changed = threading.Condition()

    def put(self, item: T, time_s: float, nbytes: int) -> int:
        """Add the newest item, of this second; return how many old ones were dropped for it."""
        with self._changed:
            self._held.append((item, time_s, nbytes))
            self._nbytes += nbytes
            before = len(self._held)
            while len(self._held) > 1 and (self._nbytes > self._most_bytes or time_s - self._held[0][1] > self._keep_s):
                self._nbytes -= self._held.popleft()[2]
            self._changed.notify_all()
            return before - len(self._held)

    def take(self, wait_s: float) -> T | None:
        """Take the oldest item; `None` if there is none in time."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._held, wait_s):
                return None
            item, _, nbytes = self._held.popleft()
            self._nbytes -= nbytes
            return item

    def newest(self, seconds: float) -> list[T]:
        """The items of the last so many seconds, the newest one included; they stay held."""
        with self._changed:
            return [item for item, time_s, _ in self._held if self._held[-1][1] - time_s < seconds]
