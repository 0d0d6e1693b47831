"""Estimates of a connection to an edge: round trip, bandwidth, and the time of the edge's drafting.

All of it is measured during use. Pings give the round trip. Each draft's frame states when the edge sent it, by the
edge's own clock; its delay beyond that of the quickest frame is the line's time, and the growth of this time with the
bytes gives the bandwidth (a line that is busy with the previous frame is free when that has come: Lindley's recursion).
The rest of the time from a commit to its reply is the edge's drafting. So a reply can be predicted as soon as one of
the three changes, and not only after a late reply.
"""

import math
import threading
from dataclasses import dataclass, field

import numpy as np

from crossdraft.engine.estimates import Ema

WINDOW = 64  # frames after which the quickest one is determined anew: routes change, and clocks drift
POINTS = 32  # frames from which the bandwidth is computed
PROBE_EVERY = 8  # questions without drafts after which one gets a draft, to measure again
UNSEEN = 2.0  # a draft that has not come by the answer's end is counted with this multiple of its time


@dataclass
class LineTimes:
    """Seconds that the line takes for a frame, by its bytes: the median slope over frames (Theil 1950, Sen 1968).

    A network, or an end of it, may stall for long; the median is not affected by the few frames that were held up.
    """

    quickest_s: float = math.inf  # from sending to arrival, the clocks' difference included
    _next_s: float = math.inf  # the quickest of the current window's frames
    _count: int = 0
    _free_s: float = -math.inf  # time since which the line is free
    _points: tuple[tuple[int, float], ...] = ()  # bytes and seconds of the last frames
    _slope: tuple[int, float] = (0, 0.0)  # number of frames when it was computed, seconds a byte

    def came(self, nbytes: int, sent_s: float, came_s: float) -> None:
        """Note a frame of `nbytes` bytes, sent at `sent_s` by the edge's clock and received at `came_s` by ours."""
        delay = came_s - sent_s
        self.quickest_s, self._next_s = min(self.quickest_s, delay), min(self._next_s, delay)
        self._points = (*self._points[1 - POINTS :], (nbytes, came_s - max(self._free_s, sent_s + self.quickest_s)))
        self._count += 1
        if not self._count % WINDOW:
            self.quickest_s, self._next_s = self._next_s, math.inf
        self._free_s = came_s

    @property
    def _seconds_a_byte(self) -> float:
        count, points = self._count, self._points
        if count != self._slope[0]:  # computed once for each number of frames
            nbytes, seconds = np.array(points).T
            pairs = np.triu(nbytes[:, None] != nbytes)
            slopes = (seconds[:, None] - seconds)[pairs] / (nbytes[:, None] - nbytes)[pairs]
            self._slope = count, max(0.0, float(np.median(slopes))) if len(slopes) else 0.0
        return self._slope[1]

    def seconds(self, nbytes: float) -> float:
        """Seconds for `nbytes` bytes; 0 if bytes have not been seen to take time."""
        return self._seconds_a_byte * nbytes

    @property
    def bytes_per_s(self) -> float | None:
        """Bandwidth; `None` if it has not been seen to limit anything."""
        return 1 / self._seconds_a_byte if self._seconds_a_byte else None


@dataclass
class LinkEstimate:
    """Estimates for one connection, over all its questions.

    Everything is measured and read on the connection's thread, except `seen_reply_s`: the engine's thread may read
    it at any time, so the values that it is computed from change under a lock.

    Args:
        rtt_s: seconds of a round trip.
        line: time of frames on the line; see `LineTimes`.
        answer_s: seconds from a question to the end of its answer.
        pass_s: seconds of a pass of the target after the first.
    """

    rtt_s: Ema = field(default_factory=Ema)
    line: LineTimes = field(default_factory=LineTimes)
    answer_s: Ema = field(default_factory=Ema)
    pass_s: Ema = field(default_factory=Ema)
    _replied_s: Ema = field(default_factory=Ema)  # from a commit to a draft made after it
    _drafting_s: Ema = field(default_factory=Ema)  # `_replied_s` without the network
    _begun_s: Ema = field(default_factory=Ema)  # from a question to its first draft, without the line
    _reply_bytes: Ema = field(default_factory=Ema)
    _first_bytes: Ema = field(default_factory=Ema)
    _skipped: int = 0  # questions since the last one with a draft
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def came_back(self, seconds: float) -> None:
        """Note that a ping came back `seconds` after it was sent."""
        with self._lock:
            self.rtt_s.add(seconds)

    def came(self, nbytes: int, sent_s: float, came_s: float) -> None:
        """Note a draft's frame; see `LineTimes.came`."""
        with self._lock:
            self.line.came(nbytes, sent_s, came_s)

    def replied(self, seconds: float, nbytes: int) -> None:
        """Note the reply to a commit: a frame of `nbytes` bytes, `seconds` after the commit was sent."""
        with self._lock:
            self._replied_s.add(seconds)
            self._reply_bytes.add(nbytes)
            if (rtt_s := self.rtt_s.value) is not None:
                self._drafting_s.add(seconds - rtt_s - self.line.seconds(nbytes))

    @property
    def reply_s(self) -> float | None:
        """Predicted seconds until the reply to a commit; `None` if nothing was measured."""
        rtt_s, drafting_s = self.rtt_s.value, self._drafting_s.value
        if rtt_s is None or drafting_s is None:
            return rtt_s if self._replied_s.value is None else self._replied_s.value
        return rtt_s + drafting_s + self.line.seconds(self._reply_bytes.value or 0.0)

    @property
    def seen_reply_s(self) -> float | None:
        """Predicted seconds as in `reply_s`, for any thread; `None` unless a reply was seen."""
        with self._lock:
            return None if self._replied_s.value is None else self.reply_s

    def began(self, seconds: float, nbytes: int) -> None:
        """Note a question's first draft: a frame of `nbytes` bytes, `seconds` after the question."""
        self._first_bytes.add(nbytes)
        self._begun_s.add(seconds - self.line.seconds(nbytes))

    @property
    def first_s(self) -> float | None:
        """Predicted seconds from a question to its first draft; without the round trip, as is `answer_s`."""
        begun_s = self._begun_s.value
        return None if begun_s is None else begun_s + self.line.seconds(self._first_bytes.value or 0.0)

    def answered(self, seconds: float, pass_s: float | None, *, drafted: bool, came: bool) -> None:
        """Note that an answer is complete.

        Args:
            seconds: seconds since the question.
            pass_s: seconds of the target's passes after the first; `None` if there was none.
            drafted: true if the edge was asked to draft.
            came: true if a draft came.
        """
        self.answer_s.add(seconds)
        if pass_s is not None:
            self.pass_s.add(pass_s)
        if drafted and not came:
            self._begun_s.add(UNSEEN * seconds)
        self._skipped = 0 if drafted else self._skipped + 1

    @property
    def drafts_pay(self) -> bool:
        """True if drafting pays for the next question: a draft is expected before the answer's end.

        A draft that comes during the prefill costs nothing; a later one is used as far as the answer agrees with it.
        """
        first_s, answer_s = self.first_s, self.answer_s.value
        return first_s is None or answer_s is None or first_s < answer_s or self._skipped >= PROBE_EVERY

    def rounds_pay(self, pass_s: float, nodes: int, left: int) -> bool:
        """True if drafting pays after the tokens that are committed now.

        It does not if the target alone, at a token a pass, will be past such a draft, or at the answer's end, before
        the draft arrives.

        Args:
            pass_s: seconds of a pass of the target.
            nodes: number of nodes of a draft.
            left: number of tokens that the answer may still have.
        """
        reply_s = self.reply_s
        return reply_s is None or reply_s < pass_s * min(nodes, left)

    def to_json(self) -> dict[str, float | None]:
        """Plain values."""
        rate = self.line.bytes_per_s
        times = {"rtt": self.rtt_s.value, "reply": self.reply_s, "first": self.first_s, "pass": self.pass_s.value}
        found = {f"{name}_ms": None if value is None else round(1e3 * value, 2) for name, value in times.items()}
        return {**found, "mbit_s": None if rate is None else round(8e-6 * rate, 3)}
