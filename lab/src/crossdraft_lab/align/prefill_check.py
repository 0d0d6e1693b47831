"""The check of a speculative prefill: compares a request's answer with the answer after predicted tokens.

    the request           reads the whole clip; its pieces are sent as they are generated, and are the target's own
    a shadow request      reads the predicted tokens, in the same batch; its answer is sent to nobody
    after both            the threshold learns the loss, and the answer is handed over, with a note

So a checked request has the target's own answer, whatever the check finds: no text has to be taken back. It alone
waits for its shadow, which is queued like any request but takes no place there. It waits at most for its own time limit
(`Request.max_time`): then it is handed over unchecked, and its shadow is cancelled. A sampled request has two shadows,
both greedy, the second with the whole clip, as sampled answers differ by chance.
"""

import logging
import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace

from crossdraft.compressions import CHECK
from crossdraft.engine.request import Answer, Finish, Request
from crossdraft.engine.scheduler import HandOver, PendingAnswer
from crossdraft.errors import CrossdraftError
from crossdraft_lab.align.checked import PrefillController, Read, rouge_l

log = logging.getLogger(__name__)

ENDED = frozenset((Finish.EOS, Finish.LENGTH, Finish.STOP))  # ends of complete answers
NOT_ENDED = "The check did not end, and nothing was learned of it."


class PrefillCheck:
    """The check of one request, if it is chosen for one; an `AnswerCheck`, safe for any thread.

    Args:
        controller: controller that learns the loss.
        request: the request that is being answered.
        ask: queues a shadow request.
    """

    def __init__(
        self, controller: PrefillController, request: Request, ask: Callable[[Request], PendingAnswer]
    ) -> None:
        self.controller = controller
        self._request, self._ask = request, ask
        self._shadows: list[PendingAnswer] = []  # with one shadow, its answer is compared with the request's
        self._lock = threading.Lock()
        self._over = False  # true: no further shadow starts
        self._max_time: float | None = None  # limit of the request

    def start(self, prepared: Request) -> None:
        """Start the check of a request that is read whole; `prepared` also holds the gate's features of its events."""
        shadow = replace(self._request, namespace=None, logprobs=False, top_logprobs=0)
        greedy = prepared.sampling.greedy
        if not greedy:
            shadow = replace(shadow, sampling=replace(shadow.sampling, temperature=0.0))
        ways = (Read.PREDICTED,) if greedy else (Read.PREDICTED, Read.WHOLE)
        with self._lock:
            self._max_time = prepared.max_time
            try:
                for way in () if self._over else ways:
                    asked = replace(shadow, extras={**prepared.extras, CHECK: way})
                    self._shadows.append(self._ask(asked))
            except CrossdraftError:  # the engine is being closed
                log.info("A speculative prefill is not checked.", exc_info=True)
                self._over = True

    def cancel(self) -> None:
        """Cancel the check and its shadow requests."""
        with self._lock:
            self._over = True
            shadows = [*self._shadows]
        for one in shadows:
            one.cancel()

    def settle(self, result: Answer | BaseException, hand_over: HandOver) -> None:
        """Hand a finished answer over after its comparison."""
        with self._lock:
            chosen, wanted, self._over = bool(self._shadows), not self._over, True
        if not chosen or not isinstance(result, Answer):
            self.cancel()
            hand_over(result)
        elif not wanted or result.finish not in ENDED:
            self.cancel()
            hand_over(_noted(result, NOT_ENDED))
        else:
            self._wait(result, hand_over)

    def _wait(self, answer: Answer, hand_over: HandOver) -> None:
        """Hand the answer over with its check's result, when all shadow requests are over or its time is up."""
        written, left = time.perf_counter(), {one.future for one in self._shadows}

        def ended(future: "Future[Answer]") -> None:
            with self._lock:
                last = left == {future}
                left.discard(future)
            if last:
                timer.cancel()
                hand_over(self._compared(answer, time.perf_counter() - written))

        def late() -> None:
            with self._lock:
                waiting = bool(left)
                left.clear()
            if waiting:
                self.cancel()
                answer.stats.check_s = time.perf_counter() - written
                hand_over(_noted(answer, NOT_ENDED))

        timer = threading.Timer(self._left_s(answer), late)
        timer.daemon = True
        if self._max_time is not None:
            timer.start()
        for future in [*left]:
            future.add_done_callback(ended)

    def _left_s(self, answer: Answer) -> float:
        """Seconds that the request may still take."""
        left = math.inf if self._max_time is None else self._max_time - answer.stats.total_s
        return min(max(0.0, left), threading.TIMEOUT_MAX)

    def _compared(self, answer: Answer, waited_s: float) -> Answer:
        """Add a note with the check's result to the answer."""
        found = [_whole_answer(one.future) for one in self._shadows]
        lossy, own = found[0], answer if len(found) == 1 else found[1]
        answer.stats.check_s = waited_s
        if lossy is None or own is None:
            return _noted(answer, NOT_ENDED)
        answer.stats.prefill_loss = loss = 1 - rouge_l(lossy.tokens, own.tokens)
        self.controller.learn(loss)
        greedy = "" if own is answer else ", greedily,"
        return _noted(answer, f"The check: after predicted tokens the answer would{greedy} have lost {loss:.2f}.")


def _whole_answer(done: "Future[Answer]") -> Answer | None:
    """Return the answer, or `None` if it was cancelled, failed, or ran out of time."""
    if done.cancelled() or done.exception() is not None or done.result().finish not in ENDED:
        return None
    return done.result()


def _noted(answer: Answer, note: str) -> Answer:
    return replace(answer, notes=(*answer.notes, note))
