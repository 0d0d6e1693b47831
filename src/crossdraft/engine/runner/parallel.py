"""Parallel drafting: a drafter drafts on while the target verifies (SSD 2026).

While a draft is verified, its drafter would be idle. Instead it prepares for possible *outcomes* of the verification
(the tokens that the target may emit): acceptance of all tokens, and likely rejections. For each it drafts on a fork of
its state, as if those tokens were committed. A prepared draft is sent at once, so that the target need not wait once
the outcome is known. If another outcome comes, the forks are dropped, only idle time is lost, and the target waits for
a few tokens. Parallel drafting changes when a draft is made, never what is emitted.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Generic, TypeVar

from crossdraft.engine.cache import KVCache
from crossdraft.engine.checks import drafts_of
from crossdraft.engine.devices import resolve
from crossdraft.engine.drafter import NOTHING, Budget, Draft, Drafter, Outcome, VerifyOutput
from crossdraft.engine.request import Request
from crossdraft.engine.timeline import Span
from crossdraft.engine.tree import DraftTree

NODES = 32  # longest draft that is prepared for one outcome
MOST = 12  # outcomes that are prepared for one draft; fewer if copies of the drafter's cache take too much memory
STEP = 4  # tokens after which a growing draft is sent on
LEAST_PROB = 0.01  # less likely outcomes are not worth a pass
ANY = 10**9  # "a whole draft", however long
HIT, MISS = 1, 8  # tokens that the target waits for where the outcome was prepared, and where it was not
FORK_BYTES = 2 * 2**30  # most keys and values of all forks together: about five forks of a 7B drafter

State = TypeVar("State")
Stop = Callable[[], bool]


POLICIES = ("off", "ssd")
UNAWAITED = "auto"  # `ssd` while the target does not wait for drafts (`Budget.wait_s` is 0), else `off`


def policy_for(device: str | None, draft_device: str | None, *, own_cores: bool) -> str:
    """Choose the policy of a drafter: `ssd` on a device of its own, `off` on a device that it shares.

    On CPU cores of its own it is `auto`: idle drafter cores help the target (`engine.fast.elastic`), and they do not
    while they prepare drafts, which gains nothing where the target waits for the drafter anyway.

    Args:
        device: device of the target; `None` = the GPU if there is one, else the CPU.
        draft_device: device of the drafter; `None` = the target's.
        own_cores: true if the drafter has CPU cores of its own.
    """
    if draft_device is not None and resolve(draft_device) != resolve(device):
        return "ssd"
    return UNAWAITED if own_cores and resolve(device).type == "cpu" else "off"


@dataclass(eq=False)
class ParallelState(Generic[State]):
    """State of one request: the drafter's own state, and the outcomes prepared for the draft being verified.

    Args:
        inner: the drafter's state.
        greedy: true if no token is drawn at random.
        key: key by which `Push` names the request.
        undrawn: in a sampled answer, the drafter's state before the hidden draft; see `ParallelSpeculator.missed`.
        draft: the draft that the target verifies now.
        nodes: most nodes to draft for an outcome.
        ready: tokens that are drafted already after the committed ones.
        predicted: true if the last outcome was prepared.
        unprepared: true if a draft is being verified, and no outcome of it was prepared yet.
        waiting: outcomes to be prepared, or prepared further, likeliest last.
        prepared: forked state and draft by the tokens of an outcome.
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
        """Note that the target verifies this draft now; what was prepared for the draft before is dropped."""
        self.draft, self.nodes, self.offered = draft, nodes, NOTHING
        self.ready, self.predicted, self.unprepared = 0, True, True
        self.waiting, self.prepared = [], {}


Push = Callable[[int, int, tuple[int, ...], Draft], None]
"""(key, round, tokens, draft): if that round's verify pass emits those tokens, this is the next draft."""


class ParallelSpeculator(Generic[State]):
    """A drafter that prepares drafts between its proposals; `work` gives it the time.

    Args:
        drafter: the drafter.
        wanted: returns true while drafts are to be prepared.
        push: called with every draft that is prepared.
        fork_bytes: most bytes of keys and values of all forks together; outcomes without room are not prepared.
        spans: list that gets a span of each piece of work.
    """

    def __init__(
        self,
        drafter: Drafter[State],
        wanted: Callable[[], bool],
        push: Push | None = None,
        fork_bytes: int = FORK_BYTES,
        spans: list[Span] | None = None,
    ) -> None:
        self.drafter = drafter
        self.needs = drafter.needs
        self.fork_bytes = fork_bytes
        self._wanted = wanted
        self.push = push or (lambda key, turn, tokens, draft: None)
        self.spans = [] if spans is None else spans
        self._states: list[ParallelState[State]] = []

    @property
    def preparing(self) -> bool:
        """True while it prepares drafts; what needs the target's outputs cannot, as they are not known then."""
        return self.needs.nothing and self._wanted()

    def begin(self, requests: Sequence[Request]) -> list[ParallelState[State]]:
        inner = self.drafter.begin(requests)
        states = [ParallelState(state, request.sampling.greedy) for state, request in zip(inner, requests, strict=True)]
        self._states += states
        return states

    def draft_hidden(self, state: ParallelState[State], budget: Budget) -> Draft:
        """Make the hidden draft, for the ride-along pass."""
        if not state.greedy:
            state.undrawn = self.drafter.fork([state.inner])[0]
        (draft,) = drafts_of(self.drafter.propose([state.inner], [budget]), 1)
        state.verifying(draft, min(NODES, budget.nodes))
        return draft

    def expect_first(self, state: ParallelState[State]) -> None:
        """Have `work` prepare for the target's first token, which comes without a draft; greedy answers only."""
        if state.greedy:
            state.verifying(NOTHING, NODES)

    def missed(self, states: Sequence[ParallelState[State]]) -> None:
        """Drop hidden drafts that came too late for the target to verify.

        Their sampled tokens are not used again: being late says something about them (that the text did not end at
        once), so they would follow another distribution than the one sent with them.
        """
        for state in states:
            if state.undrawn is not None:
                state.inner = state.undrawn
                state.verifying(NOTHING, state.nodes)

    def propose(self, states: Sequence[ParallelState[State]], budgets: Sequence[Budget]) -> list[Draft]:
        # A draft prepared for this outcome is used although the target asked before the draft reached it. Otherwise
        # tokens that took long would be drawn anew, and follow another distribution than the one sent with them.
        drafts = {id(state): state.offered for state in states}
        asked = [(state, b) for state, b in zip(states, budgets, strict=True) if not len(state.offered.tree)]
        drafts |= self._ask(asked)
        # A drafter that keeps no text has none of the `ready` tokens: it is asked for a whole draft.
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
        """Note that the target verifies this part of the draft that was pushed for the last outcome."""
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
            if state.unprepared and self.preparing and not stop():
                state.unprepared = False
                state.waiting = self._predict(state, stop)
                state.unprepared = not state.prepared and stop()  # it was interrupted: try again next time
        while not stop():
            able = [state for state in self._states if state.waiting]
            if not able:
                return
            self._prepare(max(able, key=lambda state: state.waiting[-1].prob), stop)

    def _predict(self, state: ParallelState[State], stop: Stop) -> list[Outcome]:
        """Outcomes to prepare, likeliest last: acceptance of all tokens, and likely ones among `Draft.outcomes`."""
        if not self._room(state):
            return []
        start = time.perf_counter()
        (fork,) = self.drafter.fork([state.inner])
        draft = state.draft
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
        """Commit the whole main path to a fork, and the drafter's own next token; returns these tokens.

        The target emits one token more than the draft has: the drafter's own stands in for it. `None` if it has none.
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
        # Asked for one node the drafter gives its next token: in the larger tree other nodes came first.
        if accepted:
            self.drafter.commit([fork], [VerifyOutput(tuple(tree.main_path), accepted)])
        last = self.drafter.propose([fork], [Budget(1, stop=stop)])[0].tree.main_path_tokens
        if not last:
            return None
        self.drafter.commit([fork], [VerifyOutput((0,), last)])
        return (*accepted, *last)

    def _prepare(self, state: ParallelState[State], stop: Stop) -> None:
        """Draft a few tokens more for the likeliest waiting outcome, and push its draft if that grew."""
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
        # A sampled draft is drawn once: the longer of two draws would not follow the distribution sent with it.
        budget = Budget(state.nodes, stop=stop)
        step = _until(budget, STEP, before.tree.main_path_tokens) if state.greedy else budget
        draft = self.drafter.propose([fork], [step])[0]
        if state.greedy and _extent(draft) <= _extent(before) and step.stopped and not stop():
            draft = self.drafter.propose([fork], [budget])[0]  # only one part of the drafter reported tokens
        grown = _extent(draft) > _extent(before)
        state.prepared[tokens] = fork, draft if grown else before
        if grown:
            self.push(state.key, state.round, tokens, draft)
        if state.greedy and (grown or stop()):
            state.waiting.append(outcome)  # it is still the likeliest
        self._record(start)

    def _adopt(self, state: ParallelState[State], output: VerifyOutput, *, asked: bool) -> bool:
        """Continue from the fork prepared for this outcome; false if there is none."""
        fork, draft = state.prepared.get(output.tokens, (None, NOTHING))
        drafted, count = state.draft.tree.main_path_tokens, len(output.tokens)
        # If the target verified only a part of the draft, the rest of the draft may continue the answer.
        kept = len(drafted) - count if drafted[:count] == output.tokens else 0
        state.verifying(NOTHING, state.nodes)
        state.offered, state.ready = draft, kept if fork is None else 0
        state.predicted = fork is not None or kept > 0
        # A drafter that is not asked, and has no draft to offer, prepares for the target's own next token.
        state.unprepared = not asked and fork is None and state.greedy
        state.round += 1
        if fork is not None:
            state.inner = fork
        return fork is not None

    def _wait_for(self, state: ParallelState[State], budget: Budget, *, anew: bool) -> Budget:
        """Limit a budget to the tokens that the target waits for: a whole draft, where none are prepared."""
        enough = ANY if not self.preparing else HIT if state.predicted else MISS
        return _until(budget, enough if anew else enough - state.ready)

    def _record(self, start: float) -> None:
        self.spans.append(Span("drafter", "ahead", start, time.perf_counter()))


def _possible(outcome: Outcome, tree: DraftTree) -> bool:
    """True if the outcome is still possible when the target verifies only this tree of a draft."""
    return len(tree.follow(outcome.tokens)) == len(outcome.tokens) - 1


def _extent(draft: Draft) -> tuple[int, int]:
    """Size of a draft: its nodes, then its depth, which can still grow when the number of nodes cannot."""
    return len(draft.tree), draft.tree.depth


def _until(budget: Budget, enough: int, known: Sequence[int] = ()) -> Budget:
    """Budget that also stops once `enough` tokens have been written after the `known` ones.

    A drafter that writes anew from the root reports the known tokens once more; these are not counted.
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
