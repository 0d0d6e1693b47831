"""Parallel drafting: a drafter drafts on while the target verifies. One speculator, three policies.

While a draft is verified, its drafter would be idle. Instead it prepares for what may come of that: for an *outcome*
(the tokens that the target then emits) it drafts on a fork of its state as if that had been committed. What is
prepared is pushed at once, so that the target finds it when the outcome is known and waits for nobody. If another
outcome comes, the forks are dropped, and nothing is lost but idle time. What is emitted never depends on it: it only
decides when a draft is made.

The policies differ in two points, which outcomes are prepared and how long the target waits for a draft:

| policy     | prepares                             | the target waits                                           |
|------------|--------------------------------------|------------------------------------------------------------|
| `pipespec` | that everything is accepted          | until there is a draft at all (PipeSpec 2025)              |
| `pearl`    | that everything is accepted          | likewise; after a rejection not at all: it checks its own  |
|            |                                      | next token while the drafter writes (PEARL 2025)           |
| `ssd`      | likely rejections too, by their prob | for a few tokens if the outcome was not prepared (SSD 2026) |
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Generic, TypeVar

from crossdraft.engine.cache import KVCache
from crossdraft.engine.checks import drafts_of
from crossdraft.engine.devices import resolve
from crossdraft.engine.drafter import NOTHING, Budget, Draft, Drafter, Needs, Outcome, VerifyOutput
from crossdraft.engine.request import Request
from crossdraft.engine.timeline import Span
from crossdraft.engine.tree import DraftTree

NODES = 32  # longest draft that is prepared for one outcome
MOST = 12  # outcomes that are prepared for one draft; fewer if copies of the drafter's cache take too much memory
STEP = 4  # tokens after which a growing draft is sent on
LEAST_PROB = 0.01  # less likely outcomes are not worth a pass
ANY = 10**9  # "a whole draft", however long
FORK_BYTES = 2 * 2**30  # keys and values of all copies together that drafting ahead holds; for a 7B drafter about five

State = TypeVar("State")
Stop = Callable[[], bool]


@dataclass(frozen=True)
class Policy:
    """Settings of parallel drafting.

    Args:
        accepted: prepare for everything being accepted.
        rejections: prepare for likely rejections too.
        hit, miss: tokens that the target waits for where the outcome was prepared, and where it was not.
    """

    accepted: bool = True
    rejections: bool = False
    hit: int = 1
    miss: int = 1


POLICIES = {
    "off": Policy(accepted=False, hit=ANY, miss=ANY),
    "pipespec": Policy(),
    "pearl": Policy(miss=0),
    "ssd": Policy(rejections=True, miss=8),
}
BEST = "ssd"  # where the drafter has a device of its own
BY_COST = "auto"  # `BEST` while `Budget.ahead` says so, else `off`


def policy_for(device: str | None, draft_device: str | None, *, own_cores: bool) -> str:
    """The policy of a drafter on these devices: where it has one of its own, `ssd`; where it shares a GPU, `off`.

    On CPU cores of its own it is `auto`: while it is idle, they serve the target (`engine.fast.elastic`), so what is
    prepared costs the target their help. `CostModel.preparing_pays` weighs one against the other.

    Args:
        device: of the target; `None` = the GPU if there is one, else the CPU.
        draft_device: of the drafter; `None` = the target's.
        own_cores: whether the drafter has CPU cores that the target has not.
    """
    if draft_device is not None and resolve(draft_device) != resolve(device):
        return BEST
    return BY_COST if own_cores and resolve(device).type == "cpu" else "off"


@dataclass(eq=False)
class ParallelState(Generic[State]):
    """One request: the drafter's own state, and what is known between its draft and the next.

    Args:
        inner: the drafter's state.
        greedy: whether nothing is drawn.
        key: by which `Push` names the request.
        undrawn: of a sampled answer, the state before anything was drawn; see `ParallelSpeculator.missed`.
        draft: what the target verifies now.
        nodes: how much to draft for an outcome.
        ready: tokens that are drafted already after what is committed.
        predicted: whether the last outcome was prepared.
        unprepared: whether the draft is being verified, and nothing was prepared for that yet.
        waiting: outcomes to be prepared, or prepared further, likeliest last.
        prepared: for an outcome's tokens the forked state, and its draft.
        offered: the draft that was prepared for the last outcome, which the target may have taken.
        round: verify passes so far.
    """

    inner: State
    greedy: bool
    key: int = 0
    undrawn: State | None = None
    draft: Draft = NOTHING
    nodes: int = 0
    ready: int = 0
    predicted: bool = False
    unprepared: bool = False
    waiting: list[Outcome] = field(default_factory=list)
    prepared: "dict[tuple[int, ...], tuple[State, Draft]]" = field(default_factory=dict)
    offered: Draft = NOTHING
    round: int = 0

    def verifying(self, draft: Draft, nodes: int) -> None:
        """The target verifies this draft now: what is prepared begins from there."""
        self.draft, self.nodes, self.offered = draft, nodes, NOTHING
        self.ready, self.predicted, self.unprepared = 0, True, True
        self.waiting, self.prepared = [], {}


Push = Callable[[int, int, tuple[int, ...], Draft], None]
"""(key, round, tokens, draft): if that round's verify pass emits those tokens, this is the next draft."""


class ParallelSpeculator(Generic[State]):
    """A drafter that is given the time between its drafts, by `work`.

    Args:
        drafter: whatever drafts.
        policy: see the module's text.
        ahead: says whether it holds now; else it is `off`.
        push: called with every draft that is prepared.
        fork_bytes: most memory of the keys and values of all copies together; what has no room is not prepared.
        spans: gets a span of each piece of work.
    """

    def __init__(
        self,
        drafter: Drafter[State],
        policy: Policy,
        push: Push | None = None,
        fork_bytes: int = FORK_BYTES,
        spans: list[Span] | None = None,
        ahead: Callable[[], bool] | None = None,
    ) -> None:
        self.drafter = drafter
        self.needs = drafter.needs
        self.fork_bytes = fork_bytes
        self._policy = policy if prepares(drafter.needs) else POLICIES["off"]
        self._ahead = ahead or (lambda: True)
        self.push = push or (lambda key, turn, tokens, draft: None)
        self.spans = [] if spans is None else spans
        self._states: list[ParallelState[State]] = []

    @property
    def policy(self) -> Policy:
        """The policy in use now."""
        return self._policy if self._ahead() else POLICIES["off"]

    def begin(self, requests: Sequence[Request]) -> list[ParallelState[State]]:
        inner = self.drafter.begin(requests)
        states = [ParallelState(state, request.sampling.greedy) for state, request in zip(inner, requests, strict=True)]
        self._states += states
        return states

    def draft_hidden(self, state: ParallelState[State], budget: Budget) -> Draft:
        """The first draft, for the ride-along."""
        if not state.greedy:
            state.undrawn = self.drafter.fork([state.inner])[0]
        (draft,) = drafts_of(self.drafter.propose([state.inner], [budget]), 1)
        state.verifying(draft, min(NODES, budget.nodes))
        return draft

    def expect_first(self, state: ParallelState[State]) -> None:
        """The target writes its first token without a draft: prepare for what that will be, greedily."""
        if state.greedy:
            state.verifying(NOTHING, NODES)

    def missed(self, states: Sequence[ParallelState[State]]) -> None:
        """Drop first drafts that came too late for the target to verify.

        Their drawn tokens are not drafted any more: the long time tells something of them (that the text did not end at
        once), so they would follow another distribution than the one sent with them.
        """
        for state in states:
            if state.undrawn is not None:
                state.inner = state.undrawn
                state.verifying(NOTHING, state.nodes)

    def propose(self, states: Sequence[ParallelState[State]], budgets: Sequence[Budget]) -> list[Draft]:
        # A draft that was prepared for this outcome is the draft, though the target asked before it saw that. What was
        # drawn would otherwise be drawn anew where it took long, and follow another distribution than the one sent.
        drafts = {id(state): state.offered for state in states}
        asked = [(state, b) for state, b in zip(states, budgets, strict=True) if not len(state.offered.tree)]
        drafts |= self._ask(asked)
        # Of what was drafted before, a drafter that keeps no text has nothing ready.
        asked = [(state, b) for state, b in asked if not len(drafts[id(state)].tree) and state.ready]
        drafts |= self._ask(asked, anew=True)
        made = []
        for state, budget in zip(states, budgets, strict=True):
            made.append(drafts[id(state)].first(budget.nodes))
            state.verifying(made[-1], budget.nodes)
        return made

    def _ask(self, asked: Sequence[tuple[ParallelState[State], Budget]], *, anew: bool = False) -> dict[int, Draft]:
        if not asked:
            return {}
        budgets = [self._wait_for(state, budget, anew=anew) for state, budget in asked]
        made = drafts_of(self.drafter.propose([state.inner for state, _ in asked], budgets), len(asked))
        return {id(state): draft for (state, _), draft in zip(asked, made, strict=True)}

    def took(self, state: ParallelState[State], tree: DraftTree) -> None:
        """The target verifies this part of the draft that was pushed for its last outcome."""
        draft = replace(state.offered, tree=tree, path_probs=())
        state.verifying(draft, state.nodes)

    def commit(
        self, states: Sequence[ParallelState[State]], outputs: Sequence[VerifyOutput], asked: Sequence[bool] = ()
    ) -> None:
        """See `Drafter.commit`; `asked[i]`: whether the target will wait for state i's next draft, by default yes."""
        for state in states:
            state.undrawn = None
        will_ask = asked or [True] * len(states)
        unpredicted = [
            (state, output)
            for state, output, ask in zip(states, outputs, will_ask, strict=True)
            if not self._adopt(state, output, asked=ask)
        ]
        if unpredicted:
            self.drafter.commit([state.inner for state, _ in unpredicted], [output for _, output in unpredicted])

    def fork(self, states: Sequence[ParallelState[State]]) -> list[ParallelState[State]]:
        forks = self.drafter.fork([state.inner for state in states])
        return [ParallelState(inner, state.greedy) for inner, state in zip(forks, states, strict=True)]

    def end(self, states: Sequence[ParallelState[State]]) -> None:
        self._states = [state for state in self._states if state not in states]
        self.drafter.end([state.inner for state in states])

    def work(self, stop: Stop) -> None:
        """Prepare outcomes, the likeliest of all requests first, until told to stop or nothing is left."""
        for state in self._states:
            if state.unprepared and self.policy.accepted and not stop():
                state.unprepared = False
                state.waiting = self._predict(state, stop)
                state.unprepared = not state.prepared and stop()  # it was interrupted: once more, then
        while not stop():
            able = [state for state in self._states if state.waiting]
            if not able:
                return
            self._prepare(max(able, key=lambda state: state.waiting[-1].prob), stop)

    def _predict(self, state: ParallelState[State], stop: Stop) -> list[Outcome]:
        """The outcomes to prepare, likeliest last: that everything is accepted, and what the draft says may be."""
        if not self._room(state):
            return []
        start = time.perf_counter()
        (fork,) = self.drafter.fork([state.inner])
        draft, waiting = state.draft, []
        if self.policy.rejections:
            likely = [o for o in draft.outcomes if o.prob >= LEAST_PROB and _possible(o, draft.tree)]
            waiting = sorted(likely, key=lambda outcome: outcome.prob)[-MOST:]
        tokens = self._accept_all(fork, draft.tree, stop)
        if tokens is not None:
            state.prepared[tokens] = fork, NOTHING
            waiting = [outcome for outcome in waiting if outcome.tokens != tokens]
            waiting.append(Outcome(tokens, 1.0))
        self._record(start)
        return waiting

    def _room(self, state: ParallelState[State]) -> bool:
        """True if one more copy of the request's state fits in addition to those that are held."""
        forks = (fork for one in self._states for fork, _ in one.prepared.values())
        return sum(map(held_bytes, forks)) + copy_bytes(state.inner) <= self.fork_bytes

    def _accept_all(self, fork: State, tree: DraftTree, stop: Stop) -> tuple[int, ...] | None:
        """Tell the fork that everything was accepted, and its own next token after it; `None` if it has none.

        The target will emit one token more than the draft has: the drafter takes its own for that.
        """
        accepted = tree.main_path_tokens
        budget = _until(Budget(len(tree) + 1, stop=stop), 1, accepted)
        longer = self.drafter.propose([fork], [budget])[0].tree
        tokens = longer.main_path_tokens[: len(accepted) + 1]
        if len(tokens) > len(accepted) and tokens[:-1] == accepted:
            self.drafter.commit([fork], [VerifyOutput(tuple(longer.follow(accepted)), tokens)])
            return tokens
        if stop():
            return None
        # Its next token is there when it is asked for that alone: in a larger tree others came first.
        if accepted:
            self.drafter.commit([fork], [VerifyOutput(tuple(tree.main_path), accepted)])
        last = self.drafter.propose([fork], [Budget(1, stop=stop)])[0].tree.main_path_tokens
        if not last:
            return None
        self.drafter.commit([fork], [VerifyOutput((0,), last)])
        return (*accepted, *last)

    def _prepare(self, state: ParallelState[State], stop: Stop) -> None:
        """Draft a few tokens more for the likeliest outcome that waits, and push what there is of them."""
        start = time.perf_counter()
        outcome = state.waiting.pop()
        tokens = outcome.tokens
        if tokens not in state.prepared and not self._room(state):
            return
        if tokens in state.prepared:
            fork, before = state.prepared[tokens]
        else:
            (fork,), before = self.drafter.fork([state.inner]), NOTHING
            self.drafter.commit([fork], [VerifyOutput(tuple(state.draft.tree.follow(tokens[:-1])), tokens)])
        # What is drawn is drawn once: of two draws, the longer one would not follow the distribution sent with it.
        budget = Budget(state.nodes, stop=stop)
        step = _until(budget, STEP, before.tree.main_path_tokens) if state.greedy else budget
        draft = self.drafter.propose([fork], [step])[0]
        if state.greedy and _extent(draft) <= _extent(before) and step.stopped and not stop():
            draft = self.drafter.propose([fork], [budget])[0]  # what was told was no more than a part's
        grown = _extent(draft) > _extent(before)
        state.prepared[tokens] = fork, draft if grown else before
        if grown:
            self.push(state.key, state.round, tokens, draft)
        if state.greedy and (grown or stop()):
            state.waiting.append(outcome)  # it is still the likeliest
        self._record(start)

    def _adopt(self, state: ParallelState[State], output: VerifyOutput, *, asked: bool) -> bool:
        """Go on from what was prepared for this outcome; false if nothing was."""
        fork, draft = state.prepared.get(output.tokens, (None, NOTHING))
        drafted, count = state.draft.tree.main_path_tokens, len(output.tokens)
        # Where the target verified a part only of what was drafted, the rest of it may be what follows.
        kept = len(drafted) - count if drafted[:count] == output.tokens else 0
        state.verifying(NOTHING, state.nodes)
        state.offered, state.ready = draft, kept if fork is None else 0
        state.predicted = fork is not None or kept > 0
        # Who is not asked prepares for the target's own next token where it has nothing to offer.
        state.unprepared = not asked and fork is None and state.greedy
        state.round += 1
        if fork is not None:
            state.inner = fork
        return fork is not None

    def _wait_for(self, state: ParallelState[State], budget: Budget, *, anew: bool) -> Budget:
        """The budget, with a stop signal for when the target has waited for enough."""
        enough = self.policy.hit if state.predicted else self.policy.miss
        return _until(budget, enough if anew else enough - state.ready)

    def _record(self, start: float) -> None:
        self.spans.append(Span("drafter", "ahead", start, time.perf_counter()))


def prepares(needs: Needs) -> bool:
    """True if a drafter of these needs can prepare drafts: the target's outputs are not known yet by then."""
    return needs.nothing and not needs.probes


def _possible(outcome: Outcome, tree: DraftTree) -> bool:
    """True if the outcome is still possible when the target verifies only this tree of a draft."""
    return len(tree.follow(outcome.tokens)) == len(outcome.tokens) - 1


def _extent(draft: Draft) -> tuple[int, int]:
    """Size of a draft: nodes, then depth, which may grow where there may be no more nodes."""
    return len(draft.tree), draft.tree.depth


def _until(budget: Budget, enough: int, known: Sequence[int] = ()) -> Budget:
    """The budget, to be stopped, too, when so many tokens have been written after the `known` ones.

    A drafter that writes anew from the root is told of those again, one that keeps its text is not: they do not count.
    """
    repeated = written = 0

    def on_token(token: int) -> None:
        nonlocal repeated, written
        if written == 0 and repeated < len(known) and known[repeated] == token:
            repeated += 1
        else:
            written += 1

    return replace(budget, stop=lambda: written >= enough or budget.stopped, on_token=on_token)


def held_bytes(state: object) -> int:
    """Bytes of the keys and values that a state holds."""
    return sum(cache.nbytes for cache in caches_of(state))


def copy_bytes(state: object) -> int:
    """Bytes of the keys and values that a copy of the state would hold."""
    return sum(cache.copy_bytes for cache in caches_of(state))


def caches_of(state: object) -> list[KVCache]:
    """The caches in a drafter's state: a dataclass, whose fields and lists may hold further states."""
    if isinstance(state, KVCache):
        return [state]
    if is_dataclass(state):
        return [cache for field in fields(state) for cache in caches_of(getattr(state, field.name))]
    if isinstance(state, list | tuple) and state and not isinstance(state[0], int | float | str):
        return [cache for part in state for cache in caches_of(part)]
    return []
