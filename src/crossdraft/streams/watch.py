"""Standing questions on a stream's newest window."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch

from crossdraft.engine.request import Answer, Origin, Piece, Request
from crossdraft.engine.target import Target
from crossdraft.errors import CrossdraftError
from crossdraft.streams.summary import WatchSummary
from crossdraft.streams.windows import StreamWindow
from crossdraft.video.clip import DEFAULT_FRAMES
from crossdraft.video.clip_frames import ClipFrames
from crossdraft.video.container import VideoInfo
from crossdraft.video_prompt import video_prompt

if TYPE_CHECKING:
    from crossdraft.api import Engine


OnPiece = Callable[[StreamWindow, int, Piece], None]  # a final piece, its window, and the index of the question


class Answerer(Protocol):
    """Answers a request, and hands over its pieces as they appear."""

    def __call__(self, request: Request, on_piece: Callable[[Piece], None], /) -> Answer: ...


def ask_engine(engine: "Engine") -> Answerer:
    """Asks an engine. Pieces are handed over in the calling thread; an exception there (Ctrl-C) ends the answer."""

    def ask(request: Request, on_piece: Callable[[Piece], None]) -> Answer:
        pieces = engine.stream(request, final_only=True)
        for piece in pieces:
            on_piece(piece)
        if pieces.answer is None:
            raise CrossdraftError("An answer was cancelled before it began.")
        return pieces.answer

    return ask


def frames_per_window(target: Target, length_s: float) -> int:
    """Number of frames that a target wants of a clip of so many seconds."""
    prepare = video_prompt(target.prepare)
    if prepare is None:
        return DEFAULT_FRAMES
    return prepare.sampling.count("The window", VideoInfo(1, 1, 0, 0.0, length_s, ""))


@dataclass(frozen=True, slots=True)
class QuestionAnswer:
    """The answer to one question about a window.

    Args:
        question: what was asked.
        answer: exactly that of `Engine.generate` to the same frames and events.
        first_s, whole_s: from the window's last frame to the first final token, and to the end.
        before: text of the answer for the answered window before; `None` if this is the first.
    """

    question: str
    answer: Answer
    first_s: float
    whole_s: float
    before: str | None

    @property
    def text(self) -> str:
        """Text of the answer, on one line."""
        return one_line(self.answer.text)

    @property
    def changed(self) -> bool:
        """True if the text differs from that of the answer before: the alert."""
        return self.before is not None and self.text != self.before

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for people."""
        return self.answer.other_notes

    def to_json(self) -> dict[str, object]:
        """Plain values."""
        stats = self.answer.stats
        share = stats.hidden_share
        return {
            "question": self.question,
            "text": self.text,
            "tokens": list(self.answer.tokens),
            "changed": self.changed,
            "before": self.before,
            "first_ms": round(self.first_s * 1e3, 2),
            "whole_ms": round(self.whole_s * 1e3, 2),
            "tau": round(stats.tau, 3),
            "hidden_share": None if share is None else round(share, 3),
            "notes": list(self.notes),
        }


@dataclass(frozen=True, slots=True)
class AnsweredWindow:
    """A window with its answers, in the order of the questions."""

    number: int
    start_s: float
    end_s: float
    answers: tuple[QuestionAnswer, ...]
    dropped: int

    def to_json(self) -> dict[str, object]:
        """Plain values; `dropped` counts the windows that were dropped until now."""
        return {
            "window": self.number,
            "start_s": round(self.start_s, 3),
            "end_s": round(self.end_s, 3),
            "dropped": self.dropped,
            "answers": [one.to_json() for one in self.answers],
        }


class Watch:
    """Asks standing questions about a stream, always about its newest window.

    Drop policy, latest window wins: one window is answered at a time, and at most one waits. A window that falls due
    meanwhile takes the place of the one that waits, which is dropped and counted. An answer that has begun is finished.

    Args:
        ask: whoever answers, such as `ask_engine(engine)`.
        questions: requests without video and events, which every window brings.
        now: the clock of `StreamWindow.due_at`.

    Raises:
        CrossdraftError: there is no question, or one brings a clip of its own.
    """

    def __init__(
        self, ask: Answerer, questions: Sequence[Request], now: Callable[[], float] = time.perf_counter
    ) -> None:
        if not questions:
            raise CrossdraftError("There is no question to ask of the stream; give one or more.")
        for question in questions:
            if question.visuals or question.inputs is not None or question.events is not None:
                raise CrossdraftError(
                    "A standing question brings a clip or events of its own; leave them to the stream's windows."
                )
        self.summary = WatchSummary()
        self._ask = ask
        self._questions = tuple(questions)
        self._now = now
        self._changed = threading.Condition()
        self._waiting: StreamWindow | None = None
        self._closed = False
        self._error: Exception | None = None
        self._signals: deque[bool] = deque()  # lost or back, to be said
        self._said: dict[int, str] = {}  # by the question's index, the last answer

    def offer(self, window: StreamWindow) -> None:
        """Take a window that is due; returns at once, in any thread. A closed watch ignores the window."""
        with self._changed:
            if self._closed:
                return
            self.summary.due += 1
            self.summary.dropped += self._waiting is not None
            self._waiting = window
            self._changed.notify()

    def count_dropped(self, windows: int) -> None:
        """Count windows that were due but were never made, as a newer one replaces them."""
        with self._changed:
            if self._closed:
                return
            self.summary.due += windows
            self.summary.dropped += windows

    def signal(self, *, there: bool) -> None:
        """Say that the stream's source has no signal, or has it again.

        A window that waits is of before, and is dropped when the signal is lost: no old answer is given as a new one.
        """
        with self._changed:
            self._signals.append(there)
            if not there:
                self.summary.signal_losses += 1
                self.summary.dropped += self._waiting is not None
                self._waiting = None
            self._changed.notify()

    def close(self, error: Exception | None = None) -> None:
        """End the windows; the one that waits is still answered, then `error` is raised if there is one.

        The first call counts: closing again changes nothing.
        """
        with self._changed:
            if not self._closed:
                self._closed, self._error = True, error
            self._changed.notify()

    def answers(
        self,
        on_piece: OnPiece = lambda window, question, piece: None,
        on_signal: Callable[[bool], None] = lambda there: None,
    ) -> Iterator[AnsweredWindow]:
        """Answer the newest window again and again until the watch is closed.

        Args:
            on_piece: takes the final pieces as they appear.
            on_signal: is told when the signal is lost (false), and when it is back.

        Raises:
            CrossdraftError: what the stream ended with, or what is wrong with a request.
        """
        start = self._now()
        try:
            while (window := self._next(on_signal)) is not None:
                answers = tuple(self._answer(window, index, on_piece) for index in range(len(self._questions)))
                self.summary.answered += 1
                self.summary.seconds = self._now() - start
                yield AnsweredWindow(window.number, window.start_s, window.end_s, answers, self.summary.dropped)
        finally:
            self.summary.seconds = self._now() - start

    def _next(self, on_signal: Callable[[bool], None]) -> StreamWindow | None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._signals or self._waiting or self._closed)
                if not self._signals:
                    return self._taken()
                there = self._signals.popleft()
            on_signal(there)

    def _taken(self) -> StreamWindow | None:
        """The window that waits; `None` once the watch is closed, or the error that it was closed with."""
        window, self._waiting = self._waiting, None
        if window is None and self._error is not None:
            raise self._error
        return window

    def _answer(
        self, window: StreamWindow, index: int, on_piece: Callable[[StreamWindow, int, Piece], None]
    ) -> QuestionAnswer:
        question = self._questions[index]
        first_at: float | None = None

        def on_final(piece: Piece) -> None:
            nonlocal first_at
            if piece.origin is Origin.PROVISIONAL:
                return
            first_at = self._now() if first_at is None else first_at
            on_piece(window, index, piece)

        shown = ClipFrames(torch.from_numpy(window.frames), np.array(window.times_s) - window.times_s[0])
        answer = self._ask(replace(question, video=shown, events=window.events), on_final)
        done_at = self._now()
        first_s = (done_at if first_at is None else first_at) - window.due_at
        found = QuestionAnswer(question.question, answer, first_s, done_at - window.due_at, self._said.get(index))
        self._said[index] = found.text
        self.summary.count(answer.stats, first_s, found.whole_s, changed=found.changed)
        return found


def one_line(text: str) -> str:
    """A text without line breaks and doubled spaces."""
    return " ".join(text.split())
