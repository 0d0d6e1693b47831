"""Drafts for the requests of another engine's scheduler, which waits for none of them.

The scheduler says `begin` when a request arrives, `offer` when its prompt is at the last chunk, `advance` with the
tokens that were emitted, `end`. The drafter works in its own process meanwhile. A draft is offered as long as the
emitted tokens agree with it: if it came late, or a pass had room for a part of it only, its rest is offered next.
Once it is used up, or was wrong, the drafter is told its outcome and asked for the next draft.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, cast

from crossdraft.engine.checks import checked
from crossdraft.engine.drafter import AsyncDrafter, Budget, Draft, Drafter, Proposal, VerifyOutput
from crossdraft.engine.request import Request
from crossdraft.engine.runner.process import ProcessState
from crossdraft.engine.runner.restarts import RESTARTS, Restarts
from crossdraft.engine.runner.runner import DrafterLost, DraftRunner, Worker
from crossdraft.engine.tree import common_prefix
from crossdraft.errors import CrossdraftError

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class DraftLimits:
    """Limits on the drafts, and on the wait for them.

    Args:
        hidden, later: most tokens of the first draft, and of each further draft; 0 = no such draft.
        wait_s: most seconds that one call may wait in total.
        requests: most requests that are drafted for at a time.
        vocabulary: number of ids.
        forbidden: ids that are no text.
    """

    hidden: int
    later: int
    wait_s: float
    requests: int
    vocabulary: int
    forbidden: frozenset[int] = frozenset()


class RemoteDrafter(Drafter[ProcessState], AsyncDrafter, Worker, Protocol):
    """The interface of a drafter in its own process; see `ProcessDrafter`."""

    drain_timeout_s: float

    def late_hidden(self, state: ProcessState) -> Draft | None:
        """The hidden draft that came after it was wanted; see `ProcessDrafter.late_hidden`."""
        ...


@dataclass(eq=False)
class HostedRequest:
    """One request that is drafted for.

    Args:
        state: the drafter's state of the request.
        wanted: event that is set once the hidden draft is wanted.
        hidden: function that returns the hidden draft; `None` once the draft was taken.
        nodes, tokens: nodes and tokens of the draft's main path.
        since: tokens emitted since the drafter was last told.
    """

    state: ProcessState
    wanted: threading.Event
    hidden: Proposal | None
    nodes: tuple[int, ...] = ()
    tokens: tuple[int, ...] = ()
    since: list[int] = field(default_factory=list)

    @property
    def rest(self) -> tuple[int, ...]:
        """The part of the draft that may still be accepted."""
        emitted = tuple(self.since)
        return self.tokens[len(emitted) :] if self.tokens[: len(emitted)] == emitted else ()

    def outcome(self) -> VerifyOutput:
        """The outcome of the draft: the accepted nodes, and all tokens, the last of which is the target's own."""
        accepted = min(common_prefix(self.tokens, tuple(self.since)), len(self.since) - 1)
        return VerifyOutput(self.nodes[:accepted], tuple(self.since))


class HostedDrafts:
    """A drafter and the requests, by the scheduler's names. To be used by one thread.

    If the drafter is lost, the requests go on without drafts, and the drafter is restarted for later ones.

    Args:
        drafter: drafter in its own process.
        limits: limits on the drafts, and on the wait for them.
    """

    def __init__(self, drafter: RemoteDrafter, limits: DraftLimits) -> None:
        self.limits = limits
        self._runner = DraftRunner(drafter, "beside", None, [drafter], Restarts(RESTARTS))
        self._requests: dict[str, HostedRequest] = {}
        self._waiting: deque[tuple[str, Request]] = deque()  # for a place in `_requests`
        self._warned: set[str] = set()

    def __contains__(self, name: str) -> bool:
        """True if the request `name` is drafted for."""
        return name in self._requests

    @property
    def absence(self) -> str | None:
        """The reason why there is no drafter now; `None` if there is one."""
        return self._runner.absence

    def begin(self, name: str, request: Request) -> None:
        """Have the drafter read a request and draft for it."""
        self._waiting.append((name, request))
        self.refresh()

    def refresh(self) -> None:
        """Take up a drafter that was restarted, and the requests that wait for a place."""
        self._runner.resume()
        while self._waiting and len(self._requests) < self.limits.requests:
            name, request = self._waiting.popleft()
            self._guarded(lambda drafter, name=name, request=request: self._begin(drafter, name, request))

    def offer(self, name: str, most: int) -> list[int]:
        """Return a draft for a request whose prompt the next pass reads to its end."""
        one = self._requests.get(name)
        if one is None:
            return []
        self._collect({name: one}, self._deadline())
        return list(one.rest[:most])

    def advance(self, emitted: Mapping[str, Sequence[int]]) -> dict[str, list[int]]:
        """Take the tokens emitted by each request; return the drafts to verify next, for requests that are drafted for.

        Args:
            emitted: tokens since the last call.
        """
        begun, until = [name for name, tokens in emitted.items() if tokens], self._deadline()
        known = {name: one for name in begun if (one := self._requests.get(name))}
        self._forget_waiting(begun)  # too late: a drafter would draft from the answer's first token
        for name, one in known.items():
            one.since += emitted[name]
        self._collect(known, until)
        live = [(name, one) for name, one in known.items() if name in self._requests]
        over = [(name, one) for name, one in live if not one.rest and one.hidden is None]
        if self.limits.later:
            self._guarded(lambda drafter: self._ask(drafter, over, until))
        else:
            self._drop([name for name, _ in over])
        return {name: list(one.rest) for name, one in live if name in self._requests and one.rest}

    def end(self, name: str) -> None:
        """Forget a request that is over."""
        self._forget_waiting([name])
        self._drop([name])

    def close(self) -> None:
        """Stop the drafter."""
        self._requests.clear()
        self._runner.close()

    def _begin(self, drafter: RemoteDrafter, name: str, request: Request) -> None:
        (state,) = drafter.begin([request])
        wanted = threading.Event()
        hidden = drafter.propose_async([state], [Budget(self.limits.hidden, until=wanted)])
        self._requests[name] = HostedRequest(state, wanted, hidden)

    def _forget_waiting(self, names: Collection[str]) -> None:
        if self._waiting:
            self._waiting = deque(entry for entry in self._waiting if entry[0] not in names)

    def _deadline(self) -> float:
        """Time until which a call that begins now may wait."""
        return time.monotonic() + self.limits.wait_s

    def _collect(self, named: Mapping[str, HostedRequest], until: float) -> None:
        """Stop the hidden drafts of the requests in `named`, and take the tokens drafted so far."""
        for name, one in named.items():
            if one.hidden is not None:
                self._guarded(lambda drafter, name=name, one=one: self._take(drafter, name, one, until))

    def _take(self, drafter: RemoteDrafter, name: str, one: HostedRequest, until: float) -> None:
        if one.hidden is None or name not in self._requests:  # the drafter was lost with another request
            return
        first = not one.wanted.is_set()
        one.wanted.set()
        if first:
            drafter.drain_timeout_s = max(0.0, until - time.monotonic())
            (draft,) = one.hidden()
        else:
            draft = drafter.late_hidden(one.state)
        if one.state.hidden is None and draft is not None:
            one.hidden = None
            self._keep(name, one, draft)

    def _ask(self, drafter: RemoteDrafter, over: Sequence[tuple[str, HostedRequest]], until: float) -> None:
        """Tell the drafter the outcomes of the drafts that are `over`, and ask for new drafts."""
        if not over:
            return
        states = [one.state for _, one in over]
        drafter.commit(states, [one.outcome() for _, one in over])
        for _, one in over:
            one.nodes, one.tokens, one.since = (), (), []
        budget = Budget(self.limits.later, wait_s=max(0.0, until - time.monotonic()))
        for (name, one), draft in zip(over, drafter.propose(states, [budget] * len(over)), strict=True):
            self._keep(name, one, draft)

    def _keep(self, name: str, one: HostedRequest, draft: Draft) -> None:
        """Hold a draft, if it can be verified."""
        if draft.refusal is not None:
            self._warn("A request is answered without drafts", draft.refusal)
            self._drop([name])
            return
        try:
            tree = checked(draft, self.limits.vocabulary, forbidden=self.limits.forbidden).tree
        except CrossdraftError as error:
            self._warn("A draft was dropped", error)
            return
        one.nodes, one.tokens = tuple(tree.main_path), tree.main_path_tokens

    def _drop(self, names: Sequence[str]) -> None:
        dropped = [one for name in names if (one := self._requests.pop(name, None)) is not None]
        for one in dropped:
            one.wanted.set()
        if dropped:
            self._guarded(lambda drafter: drafter.end([one.state for one in dropped]))

    def _guarded(self, work: Callable[[RemoteDrafter], None]) -> None:
        """Call `work` with the drafter, if there is one; an error costs the drafter, and the scheduler goes on."""
        if (drafter := self._runner.drafter) is None:
            return
        try:
            work(cast("RemoteDrafter", drafter))
        except Exception as error:
            why = str(error).rstrip(".")
            if not isinstance(error, DrafterLost | CrossdraftError):
                log.exception("The drafter failed.")
                why = f"{type(error).__name__}: {why}"
            log.warning("The drafter is lost, and requests are answered without drafts: %s.", why)
            self._requests.clear()
            self._runner.lose(why)

    def _warn(self, what: str, why: object) -> None:
        """Log a warning, once for each reason."""
        if str(why) not in self._warned and len(self._warned) < 100:
            self._warned.add(str(why))
            log.warning("%s: %s", what, why)
