"""Admission: which request is opened next, when it gets a row, and when it gives it back.

Requests are opened one at a time, by priority, then in order of arrival, so that a prompt's entries in the prefix cache
serve the next request. A request of higher priority passes the others, and takes the row of one of lower priority.
"""

import logging
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from crossdraft.engine.arrivals import VisualFuture
from crossdraft.engine.cache import KVCache, KVPrefix
from crossdraft.engine.fast.cores import available_cores
from crossdraft.engine.fast.heap import RequestTrimmer
from crossdraft.engine.fast.pinning import done_on
from crossdraft.engine.opening import Opening
from crossdraft.engine.policy import SpeculationPolicy
from crossdraft.engine.prefix_cache import PrefixCache
from crossdraft.engine.processors import for_drafter
from crossdraft.engine.prompt import Encoded
from crossdraft.engine.prompt_features import SharedPrompt
from crossdraft.engine.queue import RequestQueue, precedence
from crossdraft.engine.request import Finish
from crossdraft.engine.request_state import Job, RequestState
from crossdraft.engine.rules import rule_for
from crossdraft.engine.runner.runner import DraftRunner
from crossdraft.engine.sampling import check_bias
from crossdraft.engine.target import Target
from crossdraft.errors import CrossdraftError

log = logging.getLogger(__name__)


class Admission:
    """Opens waiting requests, gives them rows and takes rows back. Arguments: see `DecodeLoop`."""

    def __init__(
        self,
        target: Target,
        drafter: DraftRunner[Any],
        policy: SpeculationPolicy,
        cache: KVCache,
        queue: RequestQueue,
        prefixes: PrefixCache,
        rule: str | None,
        kv_bytes: int | None,
    ) -> None:
        self.target, self.drafter, self.policy = target, drafter, policy
        self.cache, self.queue, self.prefixes = cache, queue, prefixes
        self.rule, self.kv_bytes = rule, kv_bytes
        self._side: ThreadPoolExecutor | None = None  # one thread, from the first work on
        self.heap = RequestTrimmer()
        self._shared: dict[object, SharedPrompt] = {}  # prompts that waiting requests share, by their group

    def spare_cores(self) -> tuple[int, ...]:
        """Cores that the loop may use besides its own."""
        return () if any(opening.busy for opening in self.queue.openings) else self.drafter.spare_cores()

    def take_up(self, held_s: float | None) -> None:
        """Let waiting requests join; running answers are held up for at most `held_s`, `None` = without limit."""
        queue = self.queue
        if self.kv_bytes is None:
            self.cache.expect(len(queue.states) + len(queue.waiting))
        while self._open_next() or queue.openings:
            if not queue.openings:
                continue  # this request could not be begun
            opening = queue.openings[0]
            try:
                if not opening.state.over and not self._ready(opening, held_s):
                    return
                queue.openings.remove(opening)
                if opening.state.over:
                    self._close(opening)
                else:
                    self._join(opening.state)
            except BaseException as error:  # Ctrl-C too, where the loop is driven by the main thread
                if opening in queue.openings:
                    queue.openings.remove(opening)
                opening.close()
                self._give_up(opening.state.job, opening.state, error)
                if not isinstance(error, Exception):
                    raise

    def _ready(self, opening: Opening, held_s: float | None) -> bool:
        """Go on with opening a request; true if its prompt may be read and there is room for it."""
        if held_s is None or not self.queue.rows:
            opening.finish()
        elif not opening.advance(self._submit, held_s):
            return False
        while not opening.state.over and not self._fits(opening.state):
            if not self._preempt(opening.state.request.priority):
                return False
        return True

    def _submit(self, work: Callable[[], Any]) -> "Future[Any]":
        """Have work done in the other thread, on the drafter's cores if they are spare."""
        spare = self.drafter.spare_cores()
        cores = spare or available_cores()
        self._side = self._side or ThreadPoolExecutor(1, "opening")
        return self._side.submit(done_on, work, cores, min(len(cores), torch.get_num_threads()))

    def _open_next(self) -> bool:
        """Open the next request, or reopen one that lost its row; false if there is none, or no row for it.

        While a prompt is read, only a request of a higher priority is opened.
        """
        queue = self.queue
        least = [row.request.priority for row in queue.rows if row.pending]
        least += [opening.state.request.priority for opening in queue.openings]
        if len(queue.rows) + len(queue.openings) >= self.cache.max_rows:
            least.append(min((row.request.priority for row in queue.rows), default=0))
        first = queue.next(above=max(least) if least else None)
        if first is None:
            return False
        if isinstance(first, RequestState):
            queue.paused.remove(first)
            self._open(first.job, first)
        else:
            self._open(queue.waiting.pop(first.request_id), None)
        queue.openings.sort(key=lambda opening: precedence(opening.state))
        return True

    def _open(self, job: Job, state: RequestState | None) -> None:
        """Begin a request; if that fails, end the request with its error."""
        try:
            state = self._started(job) if state is None else state
            show, needs = partial(self._show, state), self.drafter.needs
            self.queue.openings.append(Opening(state, self.target, self.prefixes, needs, show))
        except BaseException as error:
            self._give_up(job, state, error)
            if not isinstance(error, Exception):
                raise

    def _started(self, job: Job) -> RequestState:
        """Make the state of a new request; the drafter may have begun the request before the target."""
        job.request.check_length(self.target.context)  # before any model reads it
        group = job.request.group
        job = replace(job, request=self.prefixes.identify(self.target.defaults.resolve(job.request)))
        check_bias(job.request.sampling.token_bias, self.target.vocab_size)
        self.drafter.resume()
        state = RequestState(job, rule_for(self.rule, job.request.sampling), learns=self.drafter.needs.learns)
        if group is not None:
            state.shared = self._shared.setdefault(group, SharedPrompt(group.size))
            state.shared.awaited -= 1
        if self.queue.rows and self.drafter.needs.visual:
            state.visual_features = VisualFuture()  # begun now, the drafter would hold up others' drafts
        else:
            self._start_drafter(state)
        return state

    def _start_drafter(self, state: RequestState) -> None:
        """Have the drafter take up a request, as the policy says.

        A drafter in this process reads nothing yet if that would hold up running answers.
        """
        runner, target, policy = self.drafter, self.target, self.policy
        state.drafter_decided = True
        runner.note_absence(state)
        if runner.drafter is None:
            return
        state.repeats = state.request.sampling.greedy
        request = for_drafter(state.request, target.defaults.most(target.context), state.rule)
        # A known clip leaves hardly a prefill to hide behind, so the first round does not wait for a draft.
        known = request.known or (state.shared is not None and state.shared.known is not None)
        first_in_rounds = bool(self.queue.rows) and not runner.remote
        first_in_rounds |= known and (runner.remote or runner.hidden == "auto")
        rows = min(self.cache.max_rows, len({state, *self.queue.states}) + len(self.queue.waiting))
        mode = "off" if first_in_rounds else runner.hidden
        plan = policy.plan_request(request, mode, rows, learns=runner.needs.learns)
        policy.began_request(plan)
        if not plan.reads:
            state.stats.undrafted = plan.why
            return
        if runner.needs.visual:
            state.visual_features = VisualFuture()
        request = replace(request, visual_features=state.visual_features, prompt_ids=state.prompt_ids)
        runner.start(state, request, plan.nodes, plan.mode, state.provisional(target), plan.least)

    def _show(self, state: RequestState, encoded: Encoded) -> None:
        """Give the drafter the target's visual features, and start it if it has not begun yet."""
        if not state.drafter_decided:
            self._start_drafter(state)
        if state.visual_features is not None:
            state.visual_features.set_result(self.target.visual_features(encoded))

    def _join(self, state: RequestState) -> None:
        """Give a request a row, filled with the cached prefix of its prompt."""
        row = self.cache.add_row(self._room(state))
        self.cache.rope_deltas[row] = state.rope_delta
        try:
            self.cache.append(row, state.prefix)
        except BaseException:
            self.cache.drop_row(row)
            raise
        state.cache_row, state.prefix = row, KVPrefix()
        self.queue.rows.append(state)

    def _fits(self, state: RequestState) -> bool:
        """True if a request may have a row now; a request that is alone always may."""
        if self.cache.rows == self.cache.max_rows:
            return False
        if self.kv_bytes is None or not self.queue.rows:
            return True
        room = self._room(state)
        if self.cache.nbytes_with(room) > self.kv_bytes:
            self.cache.shrink(at_once=True)
        return self.cache.nbytes_with(room) <= self.kv_bytes

    def _room(self, state: RequestState) -> int:
        """Tokens that a request's row must hold."""
        drafted = max(self.policy.nodes, self.policy.hidden_nodes) + 1
        return state.stats.prompt_tokens + state.request.token_limit + drafted

    def _preempt(self, priority: int) -> bool:
        """Take the row of the latest request of the lowest priority, if that priority is below `priority`.

        That request waits for another row, for which its keys and values are computed again unless the prefix cache
        keeps them.
        """
        state = max(self.queue.rows, key=precedence, default=None)
        if state is None or state.request.priority >= priority:
            return False
        self._drop_row(state)
        state.pending = []
        self.queue.paused.append(state)
        return True

    # -- leaving ---------------------------------------------------------------------------------------------------

    def retire(self) -> None:
        """Take back the rows of requests that are over; the last row moves into the gap."""
        queue = self.queue
        for state in queue.states:
            if state.pending or state not in queue.rows:
                state.check_cancelled()
                if state.tokens:
                    state.check_time()
        for state in [state for state in queue.rows if state.over]:
            self._drop_row(state)
            self._end(state, state.error)
        for state in [state for state in queue.paused if state.over]:
            queue.paused.remove(state)
            self._end(state, state.error)
        for opening in [opening for opening in queue.openings if opening.state.over]:
            queue.openings.remove(opening)
            self._close(opening)
        if self._shared:
            waiting = {job.request.group for job in queue.waiting.values()}
            awaited = [state.shared for state in queue.states if state.shared is not None and state.shared.awaited > 0]
            self._shared = {group: one for group, one in self._shared.items() if group in waiting or one in awaited}
            for state in queue.states:
                state.shared = state.shared if state.shared in self._shared.values() else None

    def _close(self, opening: Opening) -> None:
        opening.close()
        self._end(opening.state, opening.state.error)

    def _drop_row(self, state: RequestState) -> None:
        """Take a request's row; the prefix cache may keep its keys and values for later requests."""
        state.keep_answer(self.cache)
        self.cache.drop_row(state.cache_row)
        last = self.queue.rows.pop()
        if last is not state:
            last.cache_row, self.queue.rows[state.cache_row] = state.cache_row, last

    def _end(self, state: RequestState, error: Exception | None) -> None:
        """End a request: its answer can be fetched."""
        if state.drafting:
            state.stats.undrafted = state.why_undrafted()
        state.end()
        read_wait_s = self.drafter.end(state)
        state.ledger.close()
        if state.tokens:
            self.policy.saw_answer(len(state.tokens), read_wait_s, state.stats.hidden_drafting_s)
        self.heap.ended()
        self.queue.end(state.job, error or state)

    def _give_up(self, job: Job, state: RequestState | None, error: BaseException) -> None:
        """End a request that could not be begun, with the error."""
        ended = error if isinstance(error, Exception) else CancelledError()
        if not isinstance(ended, CrossdraftError | CancelledError):
            log.error("A request could not be begun.", exc_info=error)
        if state is None:
            self.queue.end(job, ended)
        elif state in self.queue.rows:
            state.fail(ended)
        else:
            self._end(state, ended)

    def drop(self) -> None:
        """Cancel every request at once."""
        for request_id in [*self.queue.waiting]:
            self.queue.cancel(request_id)
        for state in self.queue.states:
            state.finish = Finish.CANCELLED
        self.retire()

    def close(self, *, wait: bool) -> None:
        """Open nothing more; with `wait`, return when the other thread is done."""
        if self._side is not None:
            self._side.shutdown(wait=wait)
