"""Admission: which request's prompt is read next, beside what, and when the request gets a row.

Requests are taken up by priority, then in the order in which they came. While others are answered a prompt is read
chunk by chunk between their rounds; a request of a higher priority passes those that are being read or wait for room,
and takes the row of one of a lower priority once its own prompt has been read.
"""

import logging
import math
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial

from crossdraft.engine.arrivals import VisualFuture
from crossdraft.engine.cache import KVCache
from crossdraft.engine.fast.elastic import poll
from crossdraft.engine.guarded import GuardedDrafter
from crossdraft.engine.lanes import Lanes, halves, on_lane
from crossdraft.engine.policy import SpeculationPolicy
from crossdraft.engine.prefix_cache import PrefixCache
from crossdraft.engine.processors import for_drafter
from crossdraft.engine.prompt import Encoded
from crossdraft.engine.reading import ChunkTimes, Reading, can_pair, read_pair, show_the_same
from crossdraft.engine.remote_fronts import RemoteFronts
from crossdraft.engine.request import Finish, Request
from crossdraft.engine.request_queue import RequestQueue, precedence
from crossdraft.engine.request_state import Job, OnPiece, RequestState
from crossdraft.engine.rules import check_target, rule_for
from crossdraft.engine.sampling import check_bias
from crossdraft.engine.target import Target
from crossdraft.errors import CrossdraftError

log = logging.getLogger(__name__)

AHEAD = 3  # prompts under way in another thread: while some wait for a round to end, one is read


class Admission(RequestQueue):
    """See the module's text; a decode loop adds what becomes of requests that have a row. Arguments: see `Decoder`."""

    def __init__(
        self,
        target: Target,
        drafter: GuardedDrafter,
        policy: SpeculationPolicy,
        cache: KVCache,
        *,
        rule: str | None,
        on_piece: OnPiece | None,
        prefixes: PrefixCache,
        fronts: RemoteFronts | None,
        prefill_chunk: int | None,
        kv_bytes: int | None,
    ) -> None:
        super().__init__(on_piece)
        check_target(rule, target)
        self.target, self.drafter, self.policy, self.cache = target, drafter, policy, cache
        self.rule, self.prefixes, self.fronts = rule, prefixes, fronts
        self.chunks, self.kv_bytes = ChunkTimes(prefill_chunk), kv_bytes
        self._readings: list[Reading] = []  # those that were taken up and have no row yet
        self._parted = False  # whether the cores are in two halves, for two threads
        self._narrow = False  # whether a round's pass goes without the drafter's cores
        self._lanes: Lanes | None = None  # the halves, where prompts are read in another thread
        self._since = 0.0  # when those that are read without rounds of others began
        self._took_up = 0.0  # when the last round was over
        self._side = ThreadPoolExecutor(1, "reading")  # its thread begins with the first prompt read beside others

    def _spare_cores(self) -> tuple[int, ...]:
        """Cores that the loop may use besides its own."""
        return () if self._parted or self._narrow or self._reads_elsewhere else self.drafter.spare_cores()

    @contextmanager
    def _without_spare_cores(self) -> Iterator[None]:
        """The loop runs on its own cores alone."""
        self._narrow = True
        try:
            poll()
            yield
        finally:
            self._narrow = False

    @property
    def _reads_elsewhere(self) -> bool:
        """True if another thread is working on a prompt, on cores of its own."""
        return any(reading.borrows for reading in self._readings)

    @contextmanager
    def _own_lane(self) -> Iterator[None]:
        """This thread's half of the cores, while another thread has the other one."""
        with nullcontext() if self._lanes is None or not self._reads_elsewhere else self._lane(self._lanes):
            yield

    @contextmanager
    def _lane(self, lanes: Lanes) -> Iterator[None]:
        """This thread's half of the cores; what is borrowed is given back."""
        parted, self._parted = self._parted, True
        try:
            poll()
            with on_lane(lanes.cores[0], lanes.threads):
                yield
        finally:
            self._parted = parted

    def _halves(self) -> Lanes | None:
        """All cores that the loop may use, in two halves; what is borrowed is given back."""
        spare, self._parted = self.drafter.spare_cores(), True
        try:
            poll()
            return halves(spare)
        finally:
            self._parted = False

    @property
    def _reads_in_lanes(self) -> bool:
        """True if two threads may prefill at once, or one may prefill while the other decodes."""
        return self.fronts is None and self.target.reads_pairs and not self.drafter.hides_here

    @property
    def _other_thread_reads(self) -> bool:
        """True if another thread may prefill during rounds: not if a drafter here uses the target's own layers."""
        return self._reads_in_lanes and (self.drafter.runner is None or self.drafter.elsewhere)

    def _take_up(self) -> None:
        """Let waiting requests join: at once while nobody is answered, else chunk by chunk, between rounds."""
        if self.kv_bytes is None:
            self.cache.expect(len(self._states()) + len(self._waiting))
        self._took_up = time.perf_counter()
        while self._open_higher() or self._readings or self._open_next():
            self._since, tokens = time.perf_counter(), 0
            if self._read_elsewhere():
                return
            together = self._read_pair()
            for reading in self._readings[: together or 1]:
                if self._read_on():
                    return
                tokens += len(reading.prompt)
                if not reading.chunked:
                    self.chunks.prompt_s.add((time.perf_counter() - self._since) / (1 + reading.paired))
            if together:
                self.policy.saw_prompts(time.perf_counter() - self._since, tokens)
            if self._between_rounds:
                return

    def _open_higher(self) -> bool:
        """Begin to read a request of a higher priority than those that are being read, which wait for it."""
        most = max((reading.state.request.priority for reading in self._readings), default=None)
        waiting = (one.request.priority for one in (*self._waiting.values(), *self._paused))
        return most is not None and max(waiting, default=most) > most and self._open_next()

    def _read_pair(self) -> int:
        """Read the fronts of two prompts at once.

        Returns:
            how many prompts were read: 0 where two could not be, 1 where one alone is to be read, for comparison.
        """
        if not self._open_second():
            return 0
        lanes = self._halves()
        if lanes is None or not self.policy.reads_pairs():
            return 0 if lanes is None else 1
        self._parted = True
        try:
            poll()
            read_pair(self._readings, lanes, self._side)
            return 2
        finally:
            self._parted = False

    def _read_elsewhere(self) -> bool:
        """Have another thread read prompts while others are answered, on half of the cores; false if it may not."""
        if not self._between_rounds or self.chunks.size is not None or not self._other_thread_reads:
            return False
        begun = any(reading.elsewhere for reading in self._readings)  # goes on where it began
        self._lanes = self._halves() or (self._lanes if begun else None)
        if self._lanes is None:
            return False
        with self._lane(self._lanes):
            self._advance()
            if (mine := self._for_this_thread()) is not None:
                while mine.unread:
                    self._read_here(mine)
                    self._advance(mine)
        self._lanes = self._lanes if self._readings else None
        return True

    def _advance(self, mine: Reading | None = None) -> None:
        """Have the other thread go on with prompts; requests whose prompts are read join. `mine` is this thread's."""
        while len(self._readings) < AHEAD + (mine is not None) and self._open_next():
            pass
        under_way: list[Reading] = []
        for reading in [*self._readings]:
            if not any(show_the_same(earlier, reading) for earlier in under_way):
                under_way.append(reading)
                if reading is not mine or not reading.unread:
                    self._read_on(reading, elsewhere=True)

    def _for_this_thread(self) -> Reading | None:
        """A prompt to be read here before the next round, beside the other thread's: more wait than are answered."""
        if not (self._crowded and self._reads_elsewhere) or len(self._readings) > AHEAD:
            return None
        found = self._unlike_others()
        return self._unlike_others() if found is None and self._open_next() else found

    def _unlike_others(self) -> Reading | None:
        """A prompt that is yet to be read, and of which nothing will be known when the others have been."""
        for one in self._readings:
            if one.fresh and not any(show_the_same(one, other) for other in self._readings if other is not one):
                return one
        return None

    def _read_here(self, reading: Reading) -> None:
        """One step of a prompt in this thread; what ends the thread ends its request."""
        try:
            reading.read_here()
        except BaseException as error:
            self._close_reading(reading)
            self._give_up(reading.state.job, reading.state, error)
            raise

    def _open_second(self) -> bool:
        """True if two prompts can be prefilled at once; takes up the second one if need be."""
        if self._between_rounds or not self._reads_in_lanes:
            return False
        room = self.cache.rows + 1 < self.cache.max_rows
        if room and len(self._readings) == 1 and self._readings[0].fresh:
            self._open_next()
        return len(self._readings) == 2 and can_pair(*self._readings)

    def _open_next(self) -> bool:
        """Begin to read the next request, or one again that had to leave; false if there is none, or no row for it.

        A row that one of a lower priority has is one: that leaves when this one's prompt has been read.
        """
        free = self.cache.rows + len(self._readings) < self.cache.max_rows
        if not free and not any(self._outranks(one) for one in (*self._waiting.values(), *self._paused)):
            return False
        found = [one for one in (self._ready_job(), *self._paused) if one is not None and (free or self._outranks(one))]
        if not found:
            return False
        first = min(found, key=precedence)
        if isinstance(first, RequestState):
            self._reopen(first)
        else:
            self._open(self._waiting.pop(first.request_id))
        self._readings.sort(key=lambda reading: precedence(reading.state))
        return True

    def _outranks(self, asked: Job | RequestState) -> bool:
        """True if its priority is above that of a request that has a row, or is being prefilled for one."""
        states = (*self._live, *(reading.state for reading in self._readings))
        return asked.request.priority > min((state.request.priority for state in states), default=math.inf)

    def _reopen(self, state: RequestState) -> None:
        """Begin to read a request again that had to leave; one that cannot be begun is over."""
        self._paused.remove(state)
        try:
            self._readings.append(self._reading_of(state))
        except Exception as error:  # noqa: BLE001 - it is the request's
            self._give_up(state.job, state, error)

    def _preempt(self, priority: int) -> bool:
        """Have the live request that came last of those of the lowest priority leave, if that is a lower one than this.

        It waits for another row, for which its keys and values are made again, unless the prefix cache keeps them.
        """
        state = max(self._live, key=precedence, default=None)
        if state is None or state.request.priority >= priority:
            return False
        self._drop_row(state)
        self._paused.append(state)
        return True

    @property
    def _chunked(self) -> bool:
        """True if prompts are prefilled between the rounds of other requests."""
        return self.chunks.size != 0 and (self.fronts is None or not self.fronts.alive)

    @property
    def _between_rounds(self) -> bool:
        """True if a prompt is to be prefilled between the rounds of requests that are being answered.

        False where more requests wait than would be held: prefilling first brings more answers sooner than it delays.
        """
        crowded = self.chunks.size is None and self._crowded and not self._reads_elsewhere
        return bool(self._live) and self._chunked and not crowded

    @property
    def _crowded(self) -> bool:
        """True if prompts should be prefilled before the next decode round.

        That is, if more requests that have room wait than are decoded. On a CPU, where this thread prefills, also if a
        prompt takes no longer than a chunk for each that waits: on a GPU a chunk adds little to the pass of a round.
        """
        asked = len(self._readings) + len(self._waiting) + len(self._paused)
        waiting = min(asked, self.cache.max_rows - self.cache.rows)
        if not waiting:
            return False
        if waiting > len(self._live):
            return True
        held_s = time.perf_counter() - self._took_up
        may = self.target.device.type == "cpu" and not self._other_thread_reads
        return may and self.chunks.fits_prompt(waiting, held_s)

    def _states(self) -> list[RequestState]:
        return [*super()._states(), *(reading.state for reading in self._readings)]

    def _ready_job(self) -> Job | None:
        """The next request that can be taken up without holding those that are answered."""
        fronts = self.fronts if self._live else None
        return self._next_job(None if fronts is None else lambda job: fronts.ready(job, self.drafter.needs))

    def _open(self, job: Job) -> None:
        """Begin to read one request; one that cannot be begun is over."""
        state = None
        try:
            job.request.check_length(self.target.context)  # before anybody reads it
            job = replace(job, request=self._identified(job))
            check_bias(job.request.sampling.token_bias, self.target.vocab_size)
            self.drafter.supervisor.take_up()
            rule = rule_for(self.rule, job.request.sampling)
            state = RequestState(job, rule, learns=self.drafter.needs.learns)
            if (self._between_rounds or self._readings) and self.drafter.needs.visual:
                state.visual_features = VisualFuture()  # it would hold the drafts of others until they are there
            else:
                self._start_drafter(state)
            self._readings.append(self._reading_of(state))
        except BaseException as error:  # Ctrl-C too, where the loop is driven by the main thread
            self._give_up(job, state, error)
            if not isinstance(error, Exception):
                raise

    def _identified(self, job: Job) -> Request:
        """The request as the prefix cache knows it."""
        if self.fronts is not None:
            return self.fronts.identify(job)
        return self.prefixes.identify(self.target.defaults.resolve(job.request))

    def _reading_of(self, state: RequestState) -> Reading:
        needs, show = self.drafter.needs, partial(self._show, state)
        interleaved = self._between_rounds
        return Reading(
            state, self.target, self.prefixes, self.fronts, needs, self.chunks, show, interleaved=interleaved
        )

    def _start_drafter(self, state: RequestState) -> None:
        target = self.target
        asked = for_drafter(state.request, target.defaults.most(target.context), state.rule)
        rows = min(self.cache.max_rows, len(self._live) + len(self._readings) + len(self._waiting) + 1)
        # Where it may have to wait for a row, drafts of others would be asked for meanwhile.
        waits = self.kv_bytes is not None or self.cache.rows == self.cache.max_rows
        on_token, others = state.provisional(target), bool(self._live) and (self._chunked or waits)
        state.read_overlapped = self.drafter.start(state, asked, self.policy, on_token, others=others, rows=rows)

    def _show(self, state: RequestState, encoded: Encoded) -> None:
        """Give the drafter the target's visual features, and start it if it has not begun yet."""
        if not self.drafter.knows(state):
            self._start_drafter(state)
        self.drafter.show(state, self.target, encoded)

    def _read_on(self, reading: Reading | None = None, *, elsewhere: bool = False) -> bool:
        """Read on in a prompt, whose request then may join; true if it can do no more before others have gone on.

        Args:
            reading: which; `None` = the first one.
            elsewhere: another thread reads it, whatever has changed since that was decided.
        """
        if not self._readings:
            return False
        reading = reading or self._readings[0]
        state = reading.state
        try:
            if not state.over and not self._may_join(reading, elsewhere=elsewhere):
                return True
            self._readings.remove(reading)
            if state.over:
                reading.close()
                self._end(state, state.error)
            elif reading.again:
                self._rejoin(reading)
            else:
                self._join(reading)
        except BaseException as error:
            self._close_reading(reading)
            self._give_up(state.job, state, error)
            if not isinstance(error, Exception):
                raise
        return False

    def _close_reading(self, reading: Reading) -> None:
        """A prompt is read no further."""
        if reading in self._readings:
            self._readings.remove(reading)
        reading.close()

    def _fits(self, reading: Reading) -> bool:
        """True if a request may have a row now; one that is alone always may."""
        if self.kv_bytes is None or not self._live:
            return True
        return self.cache.nbytes_with(self._room(reading)) <= self.kv_bytes

    def _room(self, reading: Reading) -> int:
        """Tokens that a request's row must hold."""
        drafted = max(self.policy.nodes, self.policy.hidden_nodes) + self.policy.probes + 1
        return len(reading.prompt) + reading.state.request.token_limit + drafted

    def _may_join(self, reading: Reading, *, elsewhere: bool) -> bool:
        """Read on; whether all of a prompt but the last piece is read, and there is room for it."""
        if reading.paired or not (elsewhere or self._between_rounds):
            reading.finish()
        elif not reading.advance(self._side, self.drafter.spare_cores(), self._lanes):
            return False
        if reading.state.over:  # by now: nobody leaves for it
            return True
        while self.cache.rows == self.cache.max_rows or not self._fits(reading):
            if not self._preempt(reading.state.request.priority):
                return False
        return True

    def _give_up(self, job: Job, state: RequestState | None, error: BaseException) -> None:
        """A request could not be begun."""
        ended = error if isinstance(error, Exception) else CancelledError()
        if not isinstance(ended, CrossdraftError | CancelledError):
            log.error("A request could not be begun.", exc_info=error)
        if state is None:
            self._finish(job, ended)
        elif state not in self._live:
            self._end(state, ended)
        elif ended is error:
            state.fail(ended)
        else:  # it has an answer: what was emitted
            state.finish = Finish.CANCELLED

    def _join(self, reading: Reading) -> None:
        """A request whose front has been read gets a row."""
        raise NotImplementedError

    def _rejoin(self, reading: Reading) -> None:
        """A request that had to leave gets a row again."""
        raise NotImplementedError

    def _drop_row(self, state: RequestState) -> None:
        """A request has no row any more."""
        raise NotImplementedError

    def _end(self, state: RequestState, error: Exception | None) -> None:
        """A request is over."""
        raise NotImplementedError
