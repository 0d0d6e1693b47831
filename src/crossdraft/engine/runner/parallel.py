"""Drafting on while the target verifies: one scheduler, four policies.

While a draft is judged, its drafter would be idle. Instead it prepares for what the judgement may be: for an *outcome*
(the tokens that the target then emits) it drafts on a fork of its state as if that had been committed. What is
prepared is pushed at once, so that the target finds it beside its verdict and waits for nobody. If another outcome
comes, the forks are dropped, and nothing is lost but idle time. What is emitted never depends on it: it only decides
when a draft is made.

The policies differ in two points, which outcomes are prepared and how long the target waits for a draft:

| policy     | prepares                          | the target waits                                          |
|------------|-----------------------------------|-----------------------------------------------------------|
| `pipespec` | that everything is accepted       | until there is a draft at all (PipeSpec 2025)             |
| `pearl`    | that everything is accepted       | likewise; after a rejection not at all: it judges its own |
|            |                                   | next token while the drafter writes (PEARL 2025)          |
| `ssd`      | likely rejections too, by chance  | for a few words if the outcome was not prepared (SSD 2026) |
| `spare`    | likewise                          | never: another drafter writes meanwhile                    |
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from crossdraft.engine.cost import CostModel
from crossdraft.engine.devices import resolve
from crossdraft.engine.drafter import Budget, Draft, Drafter, Outcome, VerifyOutput
from crossdraft.engine.request import Request
from crossdraft.engine.runner.fork_memory import FORK_BYTES, copy_bytes, held_bytes
from crossdraft.engine.runner.runner import NOTHING, Held, Inline
from crossdraft.engine.tree import DraftTree
from crossdraft.errors import CrossdraftError

NODES = 32  # longest draft that is prepared for one outcome
MOST = 12  # outcomes that are prepared for one draft; fewer if copies of the drafter's cache take too much memory
STEP = 4  # tokens behind which a growing draft is sent on
FAINT = 0.01  # less likely outcomes are not worth a pass
ANY = 10**9  # "a whole draft", however long

State = TypeVar("State")
Stop = Callable[[], bool]
Push = Callable[[int, int, tuple[int, ...], Draft], None]
"""(ticket, round, tokens, draft): if the verdict of that round emits those tokens, this is the next draft."""


@dataclass(frozen=True)
class Policy:
    """How to draft ahead.

    Args:
        whole: prepare for everything being accepted.
        rejections: prepare for those too.
        hit, miss: tokens that the target waits for where the outcome was prepared, and where it was not.
    """

    whole: bool = True
    rejections: bool = False
    hit: int = 1
    miss: int = 1


POLICIES = {
    "off": Policy(whole=False, hit=ANY, miss=ANY),
    "pipespec": Policy(),
    "pearl": Policy(miss=0),
    "ssd": Policy(rejections=True, miss=8),
    "spare": Policy(rejections=True, hit=0, miss=0),
}
BEST = "ssd"  # where the drafter has a place of its own


def policy_for(device: str | None, draft_device: str | None, *, own_cores: bool, lends_cores: bool = False) -> str:
    """The policy of a drafter on these devices: where it shares the target's device or cores, it would only slow it.

    Args:
        device: of the target; `None` = the GPU if there is one, else the CPU.
        draft_device: of the drafter; `None` = the target's.
        own_cores: on a CPU, whether they share no core.
        lends_cores: whether the target computes on them while the drafter is idle, and gains more by that than by
            drafts that are prepared meanwhile; see `elastic.lending_pays`.
    """
    shared = draft_device is None or resolve(draft_device) == resolve(device)
    if shared and lends_cores:
        return "off"
    return BEST if own_cores or not shared else "off"


@dataclass
class _Prospect(Generic[State]):
    """What is known of one request between its draft and the next.

    Args:
        draft: what the target judges now.
        nodes: how much to draft for an outcome.
        ready: tokens that are drafted already behind what is committed.
        foreseen: whether the last outcome was prepared.
        judged: whether the draft is being judged, and nothing was prepared for that yet.
        waiting: outcomes to be prepared, or prepared further, likeliest last.
        prepared: for an outcome's tokens the forked state, and its draft.
        offered: the draft that was prepared for the last outcome, which the target may have taken.
        round: verdicts so far.
    """

    draft: Draft
    nodes: int
    ready: int = 0
    foreseen: bool = True
    judged: bool = True
    waiting: list[Outcome] = field(default_factory=list)
    prepared: "dict[tuple[int, ...], tuple[State, Draft]]" = field(default_factory=dict)
    offered: Draft = NOTHING
    round: int = 0


class Ahead(Inline[State]):
    """A drafter in this process that is given the time between its drafts, by `work`.

    Args:
        drafter, policy: see the module's text.
        push: told every draft that is prepared.
        fork_bytes: most memory of the keys and values of all copies together; what has no room is not prepared.
    """

    def __init__(
        self, drafter: Drafter[State], policy: Policy, push: Push | None = None, fork_bytes: int = FORK_BYTES
    ) -> None:
        super().__init__(drafter, CostModel(), hidden="before")
        self.fork_bytes = fork_bytes
        # What the target's own outputs will tell a drafter cannot be foreseen.
        self.policy = policy if drafter.needs.nothing and not drafter.needs.probes else POLICIES["off"]
        self.push = push or (lambda request_id, turn, tokens, draft: None)
        self._prospects: dict[int, _Prospect[State]] = {}

    def start_until(self, request_id: int, request: Request, budget: Budget) -> None:
        super().start_until(request_id, request, budget)
        if (draft := self.collect(request_id)).refusal is None:
            self._prospects[request_id] = _Prospect(draft, min(NODES, budget.nodes))

    def missed(self, request_ids: Sequence[int]) -> None:
        """Their first drafts came too late for the target to judge.

        What was drawn for them is not drafted any more: that it took long says something of it (that the text did not
        end at once), and so it would follow another law than the one told with it.
        """
        for request_id in request_ids:
            held = self._held[request_id]
            if held.undrawn is not None:
                held.state = held.undrawn
                self._prospects[request_id] = _Prospect(NOTHING, self._prospects[request_id].nodes)

    def propose(self, request_ids: Sequence[int], budgets: Sequence[Budget]) -> list[Draft]:
        # A draft that was prepared for this verdict is the draft, though the target asked before it saw that. What was
        # drawn would otherwise be drawn anew where it took long, and follow another law than the one told with it.
        drafts = {request_id: self._prospect(request_id).offered for request_id in request_ids}
        asked = [(t, b) for t, b in zip(request_ids, budgets, strict=True) if not len(drafts[t].tree)]
        drafts |= self._ask(asked)
        # Of what was drafted before, a drafter that keeps no text has nothing ready.
        asked = [(t, b) for t, b in asked if not len(drafts[t].tree) and self._prospect(t).ready]
        drafts |= self._ask(asked, anew=True)
        return [self._judged(t, drafts[t], b.nodes) for t, b in zip(request_ids, budgets, strict=True)]

    def _ask(self, asked: Sequence[tuple[int, Budget]], *, anew: bool = False) -> dict[int, Draft]:
        if not asked:
            return {}
        request_ids = [request_id for request_id, _ in asked]
        made = super().propose(request_ids, [self._patience(t, b, anew=anew) for t, b in asked])
        return dict(zip(request_ids, made, strict=True))

    def _prospect(self, request_id: int) -> _Prospect[State]:
        """What is known; of a request that the drafter comes to late, nothing."""
        return self._prospects.get(request_id) or _Prospect(NOTHING, 0, foreseen=False)

    def _judged(self, request_id: int, draft: Draft, nodes: int) -> Draft:
        """The draft as far as the target judges it now: what follows is prepared from there."""
        draft = draft.first(nodes)
        if draft.refusal is None:
            self._prospects[request_id] = _Prospect(draft, nodes, round=self._prospect(request_id).round)
        return draft

    def took(self, request_id: int, tree: DraftTree) -> None:
        """The target judges this part of the draft that was pushed for its last verdict."""
        before = self._prospects[request_id]
        draft = replace(before.offered, tree=tree, path_probs=())
        self._prospects[request_id] = _Prospect(draft, before.nodes, round=before.round)

    def commit(self, request_ids: Sequence[int], outputs: Sequence[VerifyOutput]) -> None:
        for request_id in request_ids:
            self._held[request_id].undrawn = None
        unforeseen = [entry for entry in zip(request_ids, outputs, strict=True) if not self._adopt(*entry)]
        super().commit([request_id for request_id, _ in unforeseen], [output for _, output in unforeseen])

    def end(self, request_ids: Sequence[int]) -> None:
        for request_id in request_ids:
            self._prospects.pop(request_id, None)
        super().end(request_ids)

    def _first(self, held: Held[State], budget: Budget) -> Draft:
        if not held.request.sampling.greedy and (state := self._begun(held)) is not None:
            held.undrawn = self.drafter.fork([state])[0]
        return super()._first(held, budget)

    def work(self, stop: Stop) -> None:
        """Prepare outcomes, the likeliest of all requests first, until told to stop or nothing is left."""
        for request_id, prospect in self._prospects.items():
            if prospect.judged and self.policy.whole and not stop():
                prospect.judged = False
                prospect.waiting = self._foresee(request_id, prospect, stop)
                prospect.judged = not prospect.prepared and stop()  # it was interrupted: once more, then
        while not stop():
            chances = {t: p.waiting[-1].prob for t, p in self._prospects.items() if p.waiting}
            if not chances:
                return
            request_id = max(chances, key=lambda request_id: chances[request_id])
            self._prepare(request_id, self._prospects[request_id], stop)

    def _foresee(self, request_id: int, prospect: _Prospect[State], stop: Stop) -> list[Outcome]:
        """The outcomes to prepare, likeliest last: that everything is accepted, and what the draft says may be."""
        if not self._room(request_id):
            return []
        start = time.perf_counter()
        fork = self._forked(request_id)
        draft, waiting = prospect.draft, []
        if self.policy.rejections:
            likely = [o for o in draft.outcomes if o.prob >= FAINT and _may_come(o, draft.tree)]
            waiting = sorted(likely, key=lambda outcome: outcome.prob)[-MOST:]
        tokens = self._say_more(fork, draft.tree, stop)
        if tokens is not None:
            prospect.prepared[tokens] = fork, NOTHING
            waiting = [outcome for outcome in waiting if outcome.tokens != tokens]
            waiting.append(Outcome(tokens, 1.0))
        self._record("ahead", start)
        return waiting

    def _room(self, request_id: int) -> bool:
        """Whether one more copy of the request's state fits beside those that are held."""
        forks = (fork for prospect in self._prospects.values() for fork, _ in prospect.prepared.values())
        return sum(map(held_bytes, forks)) + copy_bytes(self._state(request_id)) <= self.fork_bytes

    def _forked(self, request_id: int) -> State:
        """A copy of the drafter's state.

        Raises:
            CrossdraftError: the drafter could not read the request.
        """
        state = self._state(request_id)
        if state is None:
            raise CrossdraftError(self._held[request_id].refusal or "The drafter could not read the request.")
        return self.drafter.fork([state])[0]

    def _say_more(self, fork: State, tree: DraftTree, stop: Stop) -> tuple[int, ...] | None:
        """Tell the fork that everything was accepted, and its own next word behind it; `None` if it has none.

        The verdict will bring one token more than the draft has: it takes that for the target's.
        """
        said = tree.main_path_tokens
        budget = _until(Budget(len(tree) + 1, stop=stop), 1, said)
        longer = self.drafter.propose([fork], [budget])[0].tree
        tokens = longer.main_path_tokens[: len(said) + 1]
        if len(tokens) > len(said) and tokens[:-1] == said:
            self.drafter.commit([fork], [VerifyOutput(tuple(longer.follow(said)), tokens)])
            return tokens
        if stop():
            return None
        # Its next word is there when it is asked for that alone: in a larger tree others came first.
        if said:
            self.drafter.commit([fork], [VerifyOutput(tuple(tree.main_path), said)])
        last = self.drafter.propose([fork], [Budget(1, stop=stop)])[0].tree.main_path_tokens
        if not last:
            return None
        self.drafter.commit([fork], [VerifyOutput((0,), last)])
        return (*said, *last)

    def _prepare(self, request_id: int, prospect: _Prospect[State], stop: Stop) -> None:
        """Draft a few words more for the likeliest outcome that waits, and push what there is of them."""
        start = time.perf_counter()
        outcome = prospect.waiting.pop()
        tokens = outcome.tokens
        if tokens not in prospect.prepared and not self._room(request_id):
            return
        if tokens in prospect.prepared:
            fork, before = prospect.prepared[tokens]
        else:
            fork, before = self._forked(request_id), NOTHING
            self.drafter.commit([fork], [VerifyOutput(tuple(prospect.draft.tree.follow(tokens[:-1])), tokens)])
        # What is drawn is drawn once: of two draws, the longer one would not follow the law that is told with it.
        greedy = self._held[request_id].request.sampling.greedy
        budget = Budget(prospect.nodes, stop=stop)
        step = _until(budget, STEP, before.tree.main_path_tokens) if greedy else budget
        draft = self.drafter.propose([fork], [step])[0]
        if greedy and _extent(draft) <= _extent(before) and step.stopped and not stop():
            draft = self.drafter.propose([fork], [budget])[0]  # what was told was no more than a part's
        grown = _extent(draft) > _extent(before)
        prospect.prepared[tokens] = fork, draft if grown else before
        if grown:
            self.push(request_id, prospect.round, tokens, draft)
        if greedy and (grown or stop()):
            prospect.waiting.append(outcome)  # it is still the likeliest
        self._record("ahead", start)

    def _adopt(self, request_id: int, output: VerifyOutput) -> bool:
        """Go on from what was prepared for this verdict; false if nothing was."""
        before = self._prospects.get(request_id)
        if before is None:
            return False
        fork, draft = before.prepared.get(output.tokens, (None, NOTHING))
        said, count = before.draft.tree.main_path_tokens, len(output.tokens)
        # Where the target judged a part only of what was drafted, the rest of it may be what follows.
        kept = len(said) - count if said[:count] == output.tokens else 0
        # Who is never asked prepares for the target's own next word where it has nothing to offer.
        unasked = self.policy.hit == 0 and fork is None and self._held[request_id].request.sampling.greedy
        self._prospects[request_id] = _Prospect(
            NOTHING,
            before.nodes,
            ready=kept if fork is None else 0,
            foreseen=fork is not None or kept > 0,
            judged=unasked,
            offered=draft,
            round=before.round + 1,
        )
        if fork is not None:
            self._held[request_id].state = fork
        return fork is not None

    def _patience(self, request_id: int, budget: Budget, *, anew: bool) -> Budget:
        """The budget, with a stop signal for when the target has waited for enough."""
        prospect = self._prospect(request_id)
        enough = self.policy.hit if prospect.foreseen else self.policy.miss
        return _until(budget, enough if anew else enough - prospect.ready)


def _may_come(outcome: Outcome, tree: DraftTree) -> bool:
    """Whether the target may leave the tree so, if this is all of a draft that it judges."""
    return len(tree.follow(outcome.tokens)) == len(outcome.tokens) - 1


def _extent(draft: Draft) -> tuple[int, int]:
    """How large it is: nodes, and where there may be no more of them, depth."""
    return len(draft.tree), draft.tree.depth


def _until(budget: Budget, enough: int, known: Sequence[int] = ()) -> Budget:
    """The budget, to be stopped, too, when so many tokens have been written behind the `known` ones.

    A drafter that writes anew from the root is told of those again, one that keeps its text is not: they do not count.
    """
    told = written = 0

    def on_token(token: int) -> None:
        nonlocal told, written
        if written == 0 and told < len(known) and known[told] == token:
            told += 1
        else:
            written += 1

    return replace(budget, stop=lambda: written >= enough or budget.stopped, on_token=on_token)
