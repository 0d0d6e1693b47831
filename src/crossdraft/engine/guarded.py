"""GuardedDrafter: the drafter as a decode loop calls it. It may be lost, the answers may not."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from crossdraft.engine.arrivals import VisualFuture
from crossdraft.engine.drafter import NO_NEEDS, NOTHING, Budget, Draft, Needs, Proposal, VerifyOutput
from crossdraft.engine.fast.elastic import poll
from crossdraft.engine.policy import SpeculationPolicy
from crossdraft.engine.prompt import Encoded
from crossdraft.engine.request import Request
from crossdraft.engine.request_state import RequestState
from crossdraft.engine.runner.runner import DrafterLost, DraftRunner, HiddenWork, OnToken
from crossdraft.engine.runner.supervisor import Supervisor
from crossdraft.engine.target import Target
from crossdraft.errors import CrossdraftError

STILL_READING = "No draft came before the answer was complete; nothing was drafted."
log = logging.getLogger(__name__)


@contextmanager
def refusals_unlogged() -> Iterator[None]:
    """For a request of one's own, such as a warm-up: that the drafter gives it up stands in its answer alone."""
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


class GuardedDrafter:
    """Calls the drafter; whatever it does, nobody fails: it is lost, and everybody goes on with the target alone.

    Args:
        supervisor: of the drafter.

    `waited_s` is what the target waited for the last drafts, by request, the drafter's reading left out.
    """

    def __init__(self, supervisor: Supervisor) -> None:
        self.supervisor = supervisor
        self.waited_s = 0.0
        self._lendable = False  # whether it has cores of its own, which the target has been given
        self._read_wait_s: dict[int, float] = {}
        self._warned = False  # that the drafter gave up on a request; each answer's notes tell of its own
        self._live: list[RequestState] = []

    @property
    def runner(self) -> DraftRunner[Any] | None:
        """The drafter's runner, while there is one."""
        return self.supervisor.runner

    @property
    def needs(self) -> Needs:
        """Needs of the drafter; none while there is no drafter."""
        return NO_NEEDS if self.runner is None else self.runner.needs

    @property
    def elsewhere(self) -> bool:
        """True if it drafts in another process, or in part."""
        return self.runner is not None and self.runner.remote

    @property
    def hides_here(self) -> bool:
        """True if it does hidden drafting in this process."""
        return self.runner is not None and not self.runner.remote and self.runner.hidden != "off"

    def spare_cores(self) -> tuple[int, ...]:
        """CPU cores of the drafter's own, while it has nothing to do."""
        cores = () if self.runner is None else self.runner.spare_cores()
        self._lendable = self._lendable or bool(cores)
        return cores

    def drafts_for(self, state: RequestState) -> bool:
        """True if the drafter that began the request still drafts for it."""
        if state.drafter is not None and state.drafter is not self.runner:  # another loop saw it lost
            self._end_drafting(state, self.supervisor.absence or "it was restarted meanwhile", "gave up")
        return state.drafter is not None

    def knows(self, state: RequestState) -> bool:
        """True if the request was started."""
        return any(live is state for live in self._live)

    def start(
        self,
        state: RequestState,
        request: Request,
        policy: SpeculationPolicy,
        on_token: OnToken | None,
        *,
        others: bool = False,
        rows: int = 1,
    ) -> bool:
        """See `DraftRunner.start`; the policy says whether the drafter reads the request, and how it drafts hidden.

        In this process it reads nothing yet where it would hold others who are answered (`others`). `rows` requests
        are to share its rounds.

        Returns:
            whether a drafter elsewhere works while the target reads.
        """
        if self.supervisor.absence is not None:
            state.drafter_error = self.supervisor.absence
            state.notes.append(f"Written without the drafter: {self.supervisor.absence}.")
        self._live.append(state)
        runner = self.runner
        if runner is None:
            return False
        # Where the clip is known there is hardly a prefill to hide behind: no draft is waited for at first.
        rounds = request.known and (runner.remote or runner.hidden == "auto")
        rounds = rounds or (others and not runner.remote)
        hidden, shared = "off" if rounds else runner.hidden, rows if runner.remote else 1
        plan = policy.plan_request(request, hidden, learns=runner.needs.learns, rows=shared, lendable=self._lendable)
        policy.began_request(plan)
        if not plan.reads:
            state.stats.undrafted = plan.why
            return False
        state.drafter = runner
        if runner.needs.visual or runner.needs.visual_frames:
            state.visual_features = VisualFuture(runner.needs.visual_frames)
        request = replace(request, visual_features=state.visual_features, prompt_ids=state.prompt_ids)
        self._call([state], "start", state.request_id, request, plan.nodes, plan.mode, on_token)
        return runner.remote and plan.mode != "off"

    def show(self, state: RequestState, target: Target, encoded: Encoded) -> None:
        """Pass the target's visual features to a drafter that asked for them."""
        if state.visual_features is not None:
            state.visual_features.set_result(target.visual_features(encoded))

    def collect(self, state: RequestState) -> Draft:
        """See `DraftRunner.collect`."""
        draft, self.waited_s = self._call([state], "collect", state.request_id)
        return self._unless_refused(draft or NOTHING, state)

    def hidden_work(self, state: RequestState) -> HiddenWork | None:
        """Return the work of the hidden draft if the cost model is to choose how to hide it, else `None`."""
        if self.runner is None or self.runner.hidden != "auto" or state.request.known:
            return None
        return self._call([state], "hidden_work", state.request_id)[0]

    def ask(self, states: Sequence[RequestState], budgets: Sequence[Budget]) -> Proposal:
        """See `DraftRunner.ask`; what is returned waits for [len(states)] drafts, whatever comes."""
        ids = [state.request_id for state in states]
        begun, began_s = self._call(states, "ask", ids, budgets)

        def wait() -> list[Draft]:
            known = [state for state in states if self.knows(state)]
            made, waited_s = self._wait(known, begun) if begun is not None else (None, 0.0)
            self.waited_s = (began_s + waited_s) / max(1, len(states))
            drafts = zip(made or [NOTHING] * len(states), states, strict=True)
            return [self._unless_refused(draft, state) if state in known else NOTHING for draft, state in drafts]

        return wait

    def commit(self, states: Sequence[RequestState], outputs: Sequence[VerifyOutput]) -> None:
        """See `DraftRunner.commit`."""
        if states:
            self._call(states, "commit", [state.request_id for state in states], outputs)

    def end(self, state: RequestState) -> float | None:
        """See `DraftRunner.end`; returns what the target waited while it was read, `None` where nothing drafted."""
        if state.visual_features is not None:
            state.visual_features.cancel()
        drafted = self.drafts_for(state)
        if drafted and state.stats.rounds > 1 and not (state.stats.drafted or state.ledger.drafted):
            state.notes.append(STILL_READING)
        self._call([state], "end", [state.request_id])
        self._live = [live for live in self._live if live is not state]
        waited = self._read_wait_s.pop(state.request_id, 0.0)
        return waited if drafted else None

    def _unless_refused(self, draft: Draft, state: RequestState) -> Draft:
        """The draft, whose notes become the answer's; nothing of one that is refused."""
        state.notes.extend(note for note in draft.notes if note not in state.notes)
        if draft.refusal is None:
            return draft
        if not self._warned and log.isEnabledFor(logging.WARNING):
            self._warned = True
            log.warning("The drafter gave up on a request; the target answers such alone: %s", draft.refusal)
        self._call([state], "end", [state.request_id])
        self._end_drafting(state, draft.refusal, "gave up")
        return replace(NOTHING, refusal=draft.refusal)

    def _call(self, states: Sequence[RequestState], name: str, *arguments: object) -> tuple[Any, float]:
        """Call a method of the runner; returns its result (`None`: no drafter), and seconds waited, without prefill."""
        return self._wait(states, lambda: getattr(self.runner, name)(*arguments))

    def _wait(self, states: Sequence[RequestState], work: Callable[[], Any]) -> tuple[Any, float]:
        """`_call` of some work of the runner."""
        runner = self.runner
        if runner is None or not any(self.drafts_for(state) for state in states):
            return None, 0.0
        start = time.perf_counter()
        try:
            result = work()
            spans, read_s = runner.drain()
        except Exception as error:
            why = str(error).rstrip(".")
            if not isinstance(error, DrafterLost | CrossdraftError):
                log.exception("The drafter failed.")
                why = f"{type(error).__name__}: {why}"
            self.supervisor.lose(why)
            for state in self._live:
                self._end_drafting(state, why, "was lost")
            return None, 0.0
        end = time.perf_counter()
        poll()
        read_s = min(read_s, end - start)
        for state in states:
            state.ledger.waited(start, end, spans)
            self._read_wait_s[state.request_id] = self._read_wait_s.get(state.request_id, 0.0) + read_s / len(states)
        return result, max(0.0, time.perf_counter() - start - read_s)

    def _end_drafting(self, state: RequestState, why: str, what: str) -> None:
        """End drafting for this request, and note why."""
        if state.drafter is not None:
            state.drafter, state.drafter_error = None, why.rstrip(".")
            state.notes.append(f"The drafter {what} ({state.drafter_error}); the target went on alone.")
