"""Parallel drafting changes when a draft is made, never what is emitted."""

from dataclasses import dataclass, field, replace

import pytest
import torch

from crossdraft.drafters.base import fork_of
from crossdraft.drafters.combine.union import UnionDrafter
from crossdraft.drafters.independent import IndependentDrafter
from crossdraft.engine.cache import KVCache
from crossdraft.engine.drafter import Budget, Draft, Needs, Outcome, VerifyOutput
from crossdraft.engine.loop import DecodeLoop
from crossdraft.engine.request import Request
from crossdraft.engine.runner.parallel import (
    ANY,
    LEAST_PROB,
    MISS,
    POLICIES,
    STEP,
    ParallelSpeculator,
    copy_bytes,
    held_bytes,
)
from crossdraft.engine.runner.runner import DraftRunner
from crossdraft.engine.sampling import Sampling
from crossdraft.engine.tree import DraftTree
from tests.engine.zoo import ZOO, as_target, noisy

REQUESTS = [Request("x" * i, max_new_tokens=6 + 5 * i) for i in range(1, 6)]


@dataclass
class Count:
    """A text that counts on from its last token; `tail` is what was written of it already."""

    last: int = 0
    tail: list[int] = field(default_factory=list)


class Counting:
    """Writes 1, 2, 3 …, a token at a time, and says what else the first draft might have met."""

    needs = Needs()

    def __init__(self, outcomes: tuple[Outcome, ...] = ()) -> None:
        self.outcomes = outcomes
        self.written = 0

    def begin(self, requests):
        return [Count() for _ in requests]

    def propose(self, states, budgets):
        return [self._propose(state, budget) for state, budget in zip(states, budgets, strict=True)]

    def _propose(self, state, budget):
        while len(state.tail) < budget.nodes and not budget.stopped:
            state.tail.append((state.tail or [state.last])[-1] + 1)
            self.written += 1
            if budget.on_token is not None:
                budget.on_token(state.tail[-1])
        outcomes = self.outcomes if state.last == 0 else ()
        return Draft(DraftTree.chain(state.tail[: budget.nodes]), outcomes=outcomes)

    def commit(self, states, outputs):
        for state, output in zip(states, outputs, strict=True):
            state.last = output.tokens[-1]
            agrees = tuple(state.tail[: len(output.tokens)]) == output.tokens
            state.tail = state.tail[len(output.tokens) :] if agrees else []

    def fork(self, states):
        return [fork_of(state) for state in states]

    def end(self, states):
        pass


def wanted(policy: str):
    return lambda: policy != "off"


def begun(policy: str, drafter: Counting, nodes: int = 2, temperature: float = 0.0):
    """A request whose first draft is judged now, and what is pushed for it."""
    pushed: list[tuple[int, int, tuple[int, ...], tuple[int, ...]]] = []
    speculator = ParallelSpeculator(
        drafter, wanted(policy), lambda key, turn, tokens, draft: pushed.append((key, turn, tokens, draft.tree.tokens))
    )
    (state,) = speculator.begin([Request("?", sampling=Sampling(temperature))])
    state.key = 7
    speculator.draft_hidden(state, Budget(nodes))
    return speculator, state, pushed


def never() -> bool:
    return False


def always() -> bool:
    return True


def test_everything_accepted_is_prepared_for_and_pushed_as_it_grows():
    speculator, _, pushed = begun("ssd", Counting(), nodes=2 * STEP)
    speculator.work(never)
    draft, then = tuple(range(1, 2 * STEP + 1)), 2 * STEP + 1
    outcome = (*draft, then)  # the token that the target adds itself is the one that the drafter would say
    assert pushed == [
        (7, 0, outcome, tuple(range(then + 1, then + 1 + STEP))),
        (7, 0, outcome, tuple(range(then + 1, then + 1 + 2 * STEP))),
    ]


def test_what_was_prepared_costs_no_pass_when_it_comes():
    drafter = Counting()
    speculator, state, _ = begun("ssd", drafter)
    speculator.work(never)
    before = drafter.written
    speculator.commit([state], [VerifyOutput((0, 1), (1, 2, 3))])
    (draft,) = speculator.propose([state], [Budget(2)])
    assert draft.tree.tokens == (4, 5)
    assert drafter.written == before


@pytest.mark.parametrize(("policy", "drafted"), [("off", 16), ("ssd", MISS)])
def test_how_long_the_target_waits_where_another_outcome_came(policy, drafted):
    speculator, state, _ = begun(policy, Counting())
    speculator.work(never)
    speculator.commit([state], [VerifyOutput((0,), (1, 40))])
    (draft,) = speculator.propose([state], [Budget(16)])
    assert draft.tree.tokens == tuple(range(41, 41 + drafted))


def test_it_prepares_while_it_is_to_and_else_drafts_whole_drafts():
    pushed, now = [], [False]
    speculator = ParallelSpeculator(Counting(), lambda: now[0], lambda *push: pushed.append(push))
    (state,) = speculator.begin([Request("?")])
    speculator.draft_hidden(state, Budget(2))
    speculator.work(never)
    assert not pushed
    speculator.commit([state], [VerifyOutput((0,), (1, 40))])
    (whole,) = speculator.propose([state], [Budget(16)])
    now[0] = True
    speculator.work(never)
    assert pushed
    speculator.commit([state], [VerifyOutput((), (60,))])
    (part,) = speculator.propose([state], [Budget(16)])
    assert [len(draft.tree) for draft in (whole, part)] == [16, MISS]


def test_a_draft_that_was_verified_in_part_is_still_there():
    drafter = Counting()
    speculator, state, _ = begun("ssd", drafter, nodes=6)
    before = drafter.written
    speculator.commit([state], [VerifyOutput((0,), (1, 2))])
    (draft,) = speculator.propose([state], [Budget(16)])
    assert draft.tree.tokens == (3, 4, 5, 6)
    assert drafter.written == before


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_who_is_never_asked_prepares_on_after_a_miss(temperature):
    """But for drawn tokens: of those it would be told too late, and only of those that took long."""
    speculator, state, pushed = begun("ssd", Counting(), temperature=temperature)
    speculator.work(never)
    pushed.clear()
    for turn in (1, 2):
        speculator.commit([state], [VerifyOutput((), (40 * turn,))], [False])
        speculator.work(never)
    prepared = [
        (7, 1, (41,), tuple(range(42, 42 + len(pushed[0][3])))) if pushed else None,
        (7, 2, (81,), tuple(range(82, 82 + len(pushed[-1][3])))) if pushed else None,
    ]
    assert [pushed[0], pushed[-1]] == prepared if temperature == 0 else not pushed


def test_rejections_are_prepared_for_the_likeliest_first():
    outcomes = (Outcome((1, 30), 0.2), Outcome((20,), 0.4), Outcome((1, 50), LEAST_PROB / 2))
    speculator, state, pushed = begun("ssd", Counting(outcomes))
    speculator.work(never)
    prepared = list(dict.fromkeys(tokens for _, _, tokens, _ in pushed))
    assert prepared == [(1, 2, 3), (20,), (1, 30)]
    assert pushed[-1][3][0] == 31
    speculator.commit([state], [VerifyOutput((0,), (1, 30))])
    assert speculator.propose([state], [Budget(2)])[0].tree.tokens == (31, 32)


def test_outcomes_are_prepared_whole_one_after_another_and_pushed_as_they_grow():
    outcomes = (Outcome((20,), 0.6), Outcome((1, 30), 0.2))
    speculator, _, pushed = begun("ssd", Counting(outcomes), nodes=2 * STEP)
    speculator.work(never)
    whole = tuple(range(1, 2 * STEP + 2))
    assert [(tokens, len(draft)) for _, _, tokens, draft in pushed] == [
        (tokens, length) for tokens in (whole, (20,), (1, 30)) for length in (STEP, 2 * STEP)
    ]


@pytest.mark.parametrize("words", range(30))
def test_an_interruption_costs_nothing_that_was_prepared_and_ends_nothing(words):
    """A message that asks for nothing may come at any time."""
    drafter = Counting((Outcome((20,), 0.4),))
    speculator, _, pushed = begun("ssd", drafter, nodes=2 * STEP)
    before = drafter.written
    speculator.work(lambda: drafter.written >= before + words)
    speculator.work(never)
    last = {tokens: draft for _, _, tokens, draft in pushed}
    whole = tuple(range(1, 2 * STEP + 2))
    assert last == {
        (20,): tuple(range(21, 21 + 2 * STEP)), whole: tuple(range(2 * STEP + 2, 4 * STEP + 2)),
    }  # fmt: skip


class Anew(Counting):
    """Keeps no text: each draft is written, and told, from its first word on."""

    def _propose(self, state, budget):
        state.tail = []
        return super()._propose(state, budget)


def test_a_drafter_that_writes_anew_is_prepared_whole_too():
    outcomes = (Outcome((20,), 0.6),)
    speculator, _, pushed = begun("ssd", Anew(outcomes), nodes=2 * STEP)
    speculator.work(never)
    whole = tuple(range(1, 2 * STEP + 2))
    assert [(tokens, len(draft)) for _, _, tokens, draft in pushed] == [
        (tokens, length) for tokens in (whole, (20,)) for length in (STEP, 2 * STEP)
    ]


class Reporting(Counting):
    """What leads a union, as a memory does: other words than the other's, all told at once."""

    def _propose(self, state, budget):
        words = [70 + position for position in range(min(budget.nodes, STEP + 1))]
        for word in words if budget.on_token is not None else ():
            budget.on_token(word)
        return Draft(DraftTree.chain(words), path_probs=(0.1,) * len(words))


class Sure(Counting):
    """So sure of its words that they are the union's main path."""

    def _propose(self, state, budget):
        draft = super()._propose(state, budget)
        return Draft(draft.tree, path_probs=(0.9,) * len(draft.tree))


def test_who_leads_a_union_does_not_keep_the_others_from_writing():
    speculator, _, pushed = begun("ssd", UnionDrafter([Reporting(), Sure()]), nodes=6)
    speculator.work(never)
    (tokens,) = {tokens for _, _, tokens, _ in pushed}
    assert tokens[0] == 1, "the likelier words are the main path"
    last = pushed[-1][3]
    assert len(last) == 6
    assert tokens[-1] + 1 in last


@pytest.mark.parametrize("policy", POLICIES)
def test_a_drafter_that_writes_anew_drafts_where_a_part_of_its_draft_was_verified(policy):
    speculator, state, _ = begun(policy, Anew(), nodes=6)
    speculator.commit([state], [VerifyOutput((0,), (1, 2))])
    (draft,) = speculator.propose([state], [Budget(4)])
    assert draft.tree.tokens[0] == 3


class Forked(Anew):
    """Anew, and of the nodes it may have it gives some to siblings before the text goes on."""

    def _propose(self, state, budget):
        depth = super()._propose(state, replace(budget, nodes=(budget.nodes + 1) // 2)).tree.depth
        chain, concurrent = tuple(state.tail[:depth]), budget.nodes // 2
        return Draft(DraftTree((*chain, *range(90, 90 + concurrent)), (*range(-1, depth - 1), *[-1] * concurrent)))


def test_the_next_word_is_found_though_a_larger_tree_would_not_show_it():
    drafter = Forked()
    speculator, state, _ = begun("ssd", drafter, nodes=7)
    before = drafter.written
    speculator._predict(state, never)
    assert list(state.prepared) == [(1, 2, 3, 4, 5)]
    assert drafter.written - before <= 6


def test_outcomes_that_cannot_come_any_more_are_not_prepared():
    """They lie after words that were cut off; or they leave the tree by a word that stands in it."""
    outcomes = (Outcome((1, 2, 3, 40), 0.9), Outcome((1, 30), 0.2), Outcome((1, 2), 0.8))
    speculator, state, pushed = begun("ssd", Counting(outcomes), nodes=4)
    state.verifying(state.draft.first(2), 2)
    speculator.work(never)
    assert {tokens for _, _, tokens, _ in pushed} == {(1, 2, 3), (1, 30)}


class Deepening(Counting):
    """Trees that are as large as they may be from the first, and grow by depth alone."""

    def _propose(self, state, budget):
        depth = super()._propose(state, budget).tree.depth
        chain, concurrent = tuple(state.tail[:depth]), budget.nodes - depth
        return Draft(DraftTree((*chain, *range(90, 90 + concurrent)), (*range(-1, depth - 1), *[-1] * concurrent)))


def test_a_tree_that_has_no_more_nodes_grows_in_depth():
    speculator, _, pushed = begun("ssd", Deepening(), nodes=16)
    speculator.work(never)
    sizes = [(len(draft), sum(token < 90 for token in draft)) for *_, draft in pushed]
    assert sizes == [(16, 4), (16, 8), (16, 12), (16, 16)]


def test_the_policy_off_prepares_nothing_and_a_stop_signal_is_heeded():
    for policy, stop in (("off", never), ("ssd", lambda: True)):
        drafter = Counting((Outcome((20,), 0.4),))
        speculator, _, pushed = begun(policy, drafter)
        speculator.work(stop)
        assert (pushed, drafter.written) == ([], 2)


def test_a_draft_that_the_target_took_is_the_one_that_is_verified_next():
    speculator, state, pushed = begun("ssd", Counting())
    speculator.work(never)
    speculator.commit([state], [VerifyOutput((0, 1), (1, 2, 3))])
    speculator.took(state, DraftTree.chain([4]))
    pushed.clear()
    speculator.work(never)
    assert [(turn, tokens) for _, turn, tokens, _ in pushed] == [(1, (4, 5))]


def test_a_drafter_that_reads_the_target_is_left_alone():
    drafter = Counting()
    drafter.needs = Needs(hidden_layers=(-1,))
    assert not ParallelSpeculator(drafter, always).preparing
    assert ParallelSpeculator(Counting(), always).preparing


class Busy(ParallelSpeculator):
    """Has time for so many passes between a draft and the verify pass's end."""

    passes = 0

    def propose(self, states, budgets):
        if all(state.round == 0 for state in states):
            drafts = [self.draft_hidden(state, budget) for state, budget in zip(states, budgets, strict=True)]
        else:
            drafts = super().propose(states, budgets)
        left = self.passes * len(states)

        def stop() -> bool:
            nonlocal left
            left -= 1
            return left < 0

        self.work(stop)
        return drafts


@pytest.fixture(scope="module")
def target():
    return as_target(*ZOO["video_llava"]())


@pytest.fixture(scope="module")
def alone(target):
    return [answer.tokens for answer in DecodeLoop(target).generate(REQUESTS)]


@pytest.mark.parametrize("words", [1, 3])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("passes", [0, 3, ANY])
@pytest.mark.parametrize("policy", POLICIES)
def test_greedy_answers_are_the_targets_own(target, alone, policy, passes, batch, words):
    model, prompt = ZOO["video_llava"]()
    speculator = Busy(IndependentDrafter(as_target(noisy(model, 1e-3), prompt), words=words), wanted(policy))
    speculator.passes = passes
    runner = DraftRunner(speculator, "before")
    found = DecodeLoop(target, runner, max_batch=batch, adaptive=False, nodes=6).generate(REQUESTS)
    assert [answer.tokens for answer in found] == alone
    assert sum(answer.stats.accepted for answer in found) > 0


def filled():
    cache = KVCache(1, capacity=64 * 40)
    cache.add_row(64 * 40)
    cache.open_window(slice(0, 1), 10)
    cache._stores[0].update(torch.zeros(1, 2, 10, 4), torch.zeros(1, 2, 10, 4))
    cache.advance(0, 10)
    return cache


@dataclass
class Cached(Count):
    """With keys and values, of which a copy takes a twentieth of what is opened."""

    cache: KVCache = field(default_factory=filled)


class CountingWithCache(Counting):
    def begin(self, requests):
        return [Cached() for _ in requests]


@pytest.mark.parametrize("copies", [0, 1, 3, 12])
def test_copies_of_the_cache_take_no_more_memory_than_they_may(copies):
    outcomes = tuple(Outcome((20 + i,), 0.1 - 0.001 * i) for i in range(8))
    one = filled().copy_bytes
    speculator = ParallelSpeculator(CountingWithCache(outcomes), always, fork_bytes=copies * one)
    (state,) = speculator.begin([Request("x")])
    speculator.draft_hidden(state, Budget(2))
    speculator.work(never)
    prepared = state.prepared
    assert len(prepared) == min(copies, 9)  # eight rejections, and that all is accepted
    assert held_bytes([fork for fork, _ in prepared.values()]) == len(prepared) * one
    assert all((20 + i,) in prepared for i in range(min(copies, 9) - 1))  # the likeliest
    speculator.commit([state], [VerifyOutput((), (20,))])
    assert speculator.propose([state], [Budget(4)])[0].tree.tokens[0] == 21


def test_what_a_state_holds_is_found_in_states_within_states():
    cache = filled()
    assert held_bytes([(Cached(), 1), {"no": 1}]) == cache.nbytes
    assert copy_bytes(Cached()) == cache.copy().nbytes < cache.nbytes / 10
    assert held_bytes(Count()) == held_bytes(None) == held_bytes([1, 2]) == 0


@pytest.mark.parametrize(("policy", "temperature"), [("ssd", 0.0), ("off", 0.0), ("ssd", 1.0)])
def test_without_a_hidden_draft_the_targets_first_token_is_prepared_for(policy, temperature):
    """Greedily, where anything is prepared: what is drawn beforehand would be drawn for a part of the outcomes."""
    pushed: list[tuple[int, int, tuple[int, ...], tuple[int, ...]]] = []
    speculator = ParallelSpeculator(
        Counting(), wanted(policy), lambda *push: pushed.append((*push[:3], push[3].tree.tokens))
    )
    (state,) = speculator.begin([Request("x", sampling=Sampling(temperature=temperature))])
    speculator.expect_first(state)
    speculator.work(lambda: len(pushed) > 2)
    if policy == "off" or temperature:
        assert not pushed
        return
    assert pushed[-1][:3] == (0, 0, (1,))  # that is what it would have written itself
    assert pushed[-1][3][:2] == (2, 3)
    speculator.commit([state], [VerifyOutput((), (1,))])
    assert speculator.propose([state], [Budget(2)])[0].tree.tokens == (2, 3)
