"""The drafter `union`: the trees of several drafters as one, under one budget.

Greedy answers: the drafters' probabilities are mixed, and the likeliest nodes kept; see `tree_merger`. Sampled answers:
a drawn token must not be dropped because of its value, so the budget is divided beforehand; each drafter's tokens keep
their own distribution, and acceptance stays exact (see `DraftTree.union`).

A part that needs nothing of the target drafts while the target reads and verifies, and its prepared draft is taken
without waiting. Parts that look into the target have to be waited for, so they are not asked where the prepared draft
alone brings more tokens a second (`BenefitGate`).

If a part refuses a request, when it begins or later, the other parts draft on.
"""

import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from crossdraft.drafters.alternatives import alternatives_of, tree_from_topk
from crossdraft.drafters.combine.tree_merger import TreeMerger
from crossdraft.engine.drafter import NOTHING, Budget, Draft, Drafter, Needs, Proposal, VerifyOutput, propose_async
from crossdraft.engine.estimates import Ema
from crossdraft.engine.request import Request
from crossdraft.errors import CrossdraftError


@dataclass(eq=False)
class UnionState:
    """One answer: the drafters' own states, and what each proposed last.

    Args:
        parts: states, by drafter; `None` for a drafter that did not begin.
        refusals: reasons for which a drafter did not begin, by drafter.
        greedy: true if nothing is drawn.
        drafts: last drafts, by drafter; empty once they are verified.
        rounds: verify passes so far.
        waited_s: seconds until the last drafts came.
        drafted: time at which the last drafts came.
        forked: true for a fork, from which nothing is learned.
    """

    parts: list[Any]
    refusals: tuple[str | None, ...]
    greedy: bool
    drafts: list[Draft] = field(default_factory=list)
    rounds: int = 0
    waited_s: float = 0.0
    drafted: float = 0.0
    forked: bool = False

    def begun(self, part: int) -> bool:
        """True if this drafter began the request."""
        return self.refusals[part] is None


Asked = tuple[int, list[int], Proposal]
"""A part, the places in the batch of the requests that it was asked about, and a function that waits for its drafts."""


class UnionDrafter:
    """Several drafters at once.

    Args:
        drafters: the first one's main path is shown as provisional text.
        ends: ids that end an answer.

    Raises:
        CrossdraftError: fewer than two drafters.
    """

    def __init__(self, drafters: Sequence[Drafter[Any]], ends: Collection[int] = ()) -> None:
        if len(drafters) < 2:
            raise CrossdraftError("A union needs two drafters or more, such as union:event,memory.")
        self.drafters = list(drafters)
        self.ends = ends
        self.merger = TreeMerger(len(drafters))
        self.gate = BenefitGate()
        self.needs = Needs.of_all([drafter.needs for drafter in drafters])
        everyone = range(len(drafters))
        self._free = [i for i in everyone if drafters[i].needs.may_hide]  # may draft while the target reads
        self._needing_target = [i for i in everyone if i not in self._free]

    def begin(self, requests: Sequence[Request]) -> list[UnionState]:
        return [self._begin(request) for request in requests]

    def propose(self, states: Sequence[UnionState], budgets: Sequence[Budget]) -> list[Draft]:
        return self.propose_async(states, budgets)()

    def propose_async(self, states: Sequence[UnionState], budgets: Sequence[Budget]) -> Proposal:
        """Ask for drafts as an `AsyncDrafter`; parts that need nothing of the target are asked first."""
        start = time.perf_counter()
        everybody = range(len(states))
        first = self._ask(self._free, states, budgets, everybody)

        def merged() -> list[Draft]:
            made = [[replace(NOTHING, refusal=why) for why in state.refusals] for state in states]
            _collect(first, made)
            asked = [k for k, state in enumerate(states) if state.rounds and self._worthwhile(state, made[k])]
            _collect(self._ask(self._needing_target, states, budgets, asked), made)
            now = time.perf_counter()
            for state, budget, drafts in zip(states, budgets, made, strict=True):
                state.drafts = [widened(d, budget.nodes, self.ends) if state.greedy else d for d in drafts]
                state.waited_s, state.drafted = now - start, now
            return [self._merge(state, budget.nodes) for state, budget in zip(states, budgets, strict=True)]

        return merged

    def commit(self, states: Sequence[UnionState], outputs: Sequence[VerifyOutput]) -> None:
        for state, output in zip(states, outputs, strict=True):
            if state.greedy and state.drafts and not state.forked:
                self.merger.learn(state.drafts, output.tokens)
                if state.rounds and self._free and self._needing_target:
                    self._teach_gate(state, output)
        for i, drafter in enumerate(self.drafters):
            begun = [(state, output) for state, output in zip(states, outputs, strict=True) if state.begun(i)]
            own = [own_output(state.drafts, i, output) for state, output in begun]
            if begun:
                drafter.commit([state.parts[i] for state, _ in begun], own)
        for state in states:
            state.drafts = []
            state.rounds += 1

    def fork(self, states: Sequence[UnionState]) -> list[UnionState]:
        forks = [replace(state, parts=[*state.parts], drafts=[*state.drafts], forked=True) for state in states]
        for i, drafter in enumerate(self.drafters):
            begun = [fork for fork in forks if fork.begun(i)]
            own = drafter.fork([fork.parts[i] for fork in begun]) if begun else []
            for fork, part in zip(begun, own, strict=True):
                fork.parts[i] = part
        return forks

    def end(self, states: Sequence[UnionState]) -> None:
        for i, drafter in enumerate(self.drafters):
            if begun := [state for state in states if state.begun(i)]:
                drafter.end([state.parts[i] for state in begun])

    def _begin(self, request: Request) -> UnionState:
        """Begin a request with the parts that do not refuse it.

        Raises:
            CrossdraftError: all parts refuse it.
        """
        parts: list[Any] = []
        refusals: list[str | None] = []
        for drafter in self.drafters:
            try:
                (state,) = drafter.begin([request])
            except CrossdraftError as error:
                parts.append(None)
                refusals.append(str(error))
            else:
                parts.append(state)
                refusals.append(None)
        if None not in refusals:
            raise CrossdraftError(str(refusals[0]))
        return UnionState(parts, tuple(refusals), request.sampling.greedy)

    def _ask(
        self, parts: Iterable[int], states: Sequence[UnionState], budgets: Sequence[Budget], asked: Iterable[int]
    ) -> list[Asked]:
        """Have the given parts draft for the asked requests, each for those that it began."""
        found: list[Asked] = []
        for part in parts:
            begun = [k for k in asked if states[k].begun(part)]
            if begun:
                own = [self._own_budget(part, states[k], budgets[k]) for k in begun]
                drafts = propose_async(self.drafters[part], [states[k].parts[part] for k in begun], own)
                found.append((part, begun, drafts))
        return found

    def _own_budget(self, part: int, state: UnionState, budget: Budget) -> Budget:
        budget = self.merger.share(budget, part, greedy=state.greedy)
        waits = budget.until is not None or not self._needing_target or part in self._needing_target
        return budget if waits else replace(budget, wait_s=0.0)

    def _worthwhile(self, state: UnionState, drafts: Sequence[Draft]) -> bool:
        """True if the parts that look into the target are asked too."""
        if not self._needing_target:
            return False
        return not (state.greedy and self._free and self.gate.enough([drafts[i] for i in self._free]))

    def _merge(self, state: UnionState, nodes: int) -> Draft:
        """Merge the parts' drafts; the result is a refusal only if every part that could be asked refuses."""
        drafts = state.drafts
        draft = self.merger.merge(drafts, nodes, greedy=state.greedy)
        refusals = [drafts[i].refusal for i in range(len(drafts)) if state.rounds or i in self._free]
        refusal = refusals[0] if refusals and all(refusals) and (state.rounds or not self._needing_target) else None
        spans = tuple(span for one in drafts for span in one.spans)
        notes = tuple(note for one in drafts for note in one.notes)
        return replace(draft, refusal=refusal, notes=notes, spans=spans)

    def _teach_gate(self, state: UnionState, output: VerifyOutput) -> None:
        prepared = [state.drafts[i] for i in self._free]
        written = any(len(state.drafts[i].tree) for i in self._needing_target)
        self.gate.saw(prepared, output, state.waited_s, time.perf_counter() - state.drafted, written=written)


@dataclass
class BenefitGate:
    """A gate that compares tokens a second with prepared drafts alone and with drafts of all parts.

    Args:
        both, both_s: tokens and seconds of a round in which all parts drafted.
        check_s: seconds from the drafts to their acceptance.
        expected, kept: accepted tokens of the prepared drafts, as expected by their probabilities, and as counted.
    """

    both: Ema = field(default_factory=Ema)
    both_s: Ema = field(default_factory=Ema)
    check_s: Ema = field(default_factory=Ema)
    expected: Ema = field(default_factory=lambda: Ema(weight=1.0, total=4.0))
    kept: Ema = field(default_factory=lambda: Ema(weight=1.0, total=4.0))

    def enough(self, prepared: Sequence[Draft]) -> bool:
        """True if the prepared drafts may be verified alone; false until both ways have been tried."""
        both, both_s, check_s = self.both.value, self.both_s.value, self.check_s.value
        expected = expected_tokens(prepared)
        if not expected or both is None or both_s is None or check_s is None:
            return False
        fulfilled = (self.kept.value or 0.0) / (self.expected.value or 1.0)
        return (1 + fulfilled * expected) * both_s > both * check_s

    def saw(
        self, prepared: Sequence[Draft], output: VerifyOutput, waited_s: float, checked_s: float, *, written: bool
    ) -> None:
        """Learn from a round's output and its times of drafting and verifying; `written` if all parts drafted."""
        if written or any(len(draft.tree) for draft in prepared):
            self.check_s.add(checked_s)
        if written:
            self.both.add(len(output.tokens))
            self.both_s.add(waited_s + checked_s)
        if expected := expected_tokens(prepared):
            accepted = output.tokens[: len(output.path)]
            self.expected.add(expected)
            self.kept.add(max(len(draft.tree.follow(accepted)) for draft in prepared))


def _collect(asked: Iterable[Asked], made: list[list[Draft]]) -> None:
    """Wait for the drafts, and store each in `made` by request and part."""
    for part, requests, proposal in asked:
        for k, draft in zip(requests, proposal(), strict=True):
            made[k][part] = draft


def expected_tokens(drafts: Sequence[Draft]) -> float:
    """Largest number of main-path tokens that a drafter expects to be accepted; 0 without probabilities."""
    return max((sum(d.path_probs[node] for node in d.tree.main_path) for d in drafts if d.path_probs), default=0.0)


def own_output(drafts: Sequence[Draft], i: int, output: VerifyOutput) -> VerifyOutput:
    """The output as if only the tree of drafter i had been verified."""
    if not drafts:  # the prompt's features, before anything was proposed
        return output
    return replace(output, path=tuple(drafts[i].tree.follow(output.tokens[: len(output.path)])))


def widened(draft: Draft, nodes: int, ends: Collection[int] = ()) -> Draft:
    """Widen a chain by the alternatives that its drafter weighed, so that the union can choose among them."""
    if not draft.tree.is_chain or not draft.outcomes or not draft.path_probs:
        return draft
    wide = tree_from_topk(alternatives_of(draft), nodes, ends=ends)
    return replace(draft, tree=wide.tree, path_probs=wide.path_probs)
