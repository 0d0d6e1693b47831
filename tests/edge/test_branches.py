"""Drafting for what the target may make of a draft, worked by hand."""

from dataclasses import dataclass, field

import pytest
import torch

from crossdraft.edge import branches as edge_branches
from crossdraft.edge.branches import BRANCH_NODES, FIRST, MOST, MOST_BEHIND, DraftBranch, DraftBranches, caches_of
from crossdraft.edge.committed import Committed
from crossdraft.edge.events import EdgeEvents
from crossdraft.edge.remote import EdgeDrafter, EdgeLink
from crossdraft.engine.cache import KVCache
from crossdraft.engine.drafter import Budget, Draft, Outcome, VerifyOutput
from crossdraft.engine.request import Request
from crossdraft.engine.tree import DraftTree
from tests.engine.scripted import Count, Counting

SESSION = bytes(16)


class Sure(Counting):
    """Counts on, and knows how sure it is: 0.9 of each token; after 0 the target may say 50, or 1 and then 70."""

    def _propose(self, state, budget):
        draft = super()._propose(state, budget)
        probs = tuple(0.9 ** (1 + depth) for depth in range(len(draft.tree)))
        outcomes = (Outcome((50,), 0.3), Outcome((1, 70), 0.1), Outcome((1, 2, 90), 0.001))
        return Draft(draft.tree, probs, outcomes=outcomes if state.last == 0 else ())


def begun(drafter) -> DraftBranches:
    (state,) = drafter.begin([Request("?")])
    return DraftBranches(drafter, DraftBranch(Committed(SESSION), state))


def grow(branches: DraftBranches, branch: DraftBranch, nodes: int) -> None:
    (branch.draft,) = branches.drafter.propose([branch.state], [Budget(nodes)])


def worked(branches: DraftBranches, steps: int, most: int = 12) -> list[tuple[int, ...]]:
    """Texts of the branches that are drafted for, in their order."""
    texts = []
    for _ in range(steps):
        branch = branches.likeliest(most, ahead=True)
        if branch is None:
            return texts
        grow(branches, branch, min(most, len(branch.draft.tree) + 4))
        texts.append(tuple(branch.text.tokens))
    return texts


def test_the_likeliest_text_is_drafted_for_first():
    branches = begun(Sure())
    # The first nodes count as sure, so 12 come before the outcome of 0.3, though 0.9^12 is less.
    texts = worked(branches, 20)
    assert texts[:4] == [(), (), (), (50,)]
    assert (1, 70) in texts
    assert (1, 2, 90) not in texts
    assert branches.likeliest(12, ahead=False) is None


def test_the_main_branch_alone_grows_where_nothing_is_drafted_ahead():
    branches = begun(Sure())
    assert branches.likeliest(12, ahead=False) is branches.main
    grow(branches, branches.main, 12)
    assert branches.likeliest(12, ahead=False) is None


def test_a_prepared_outcome_goes_on_and_the_others_end():
    branches = begun(Sure())
    worked(branches, 20)
    branches.commit((50,))
    assert branches.main.draft.tree.tokens[:3] == (51, 52, 53)
    assert (branches.main.prob, dict(branches.others)) == (1.0, {})


def test_what_may_still_come_stays():
    branches = begun(Sure())
    worked(branches, 20)
    branches.commit((1,))
    assert list(branches.others) == [(1, 70)]
    grow(branches, branches.main, 3)
    assert branches.main.draft.tree.tokens == (2, 3, 4)
    branches.commit((70, 71))
    assert branches.main.text.tokens == [1, 70, 71]
    grow(branches, branches.main, 2)
    assert branches.main.draft.tree.tokens == (72, 73)


def test_an_outcome_nobody_prepared_for_is_drafted_from_the_main_branch():
    branches = begun(Sure())
    worked(branches, 20)
    branches.commit((8, 9))
    grow(branches, branches.main, 2)
    assert (branches.main.draft.tree.tokens, dict(branches.others)) == ((10, 11), {})


def test_no_more_branches_than_there_may_be():
    class Unsure(Sure):
        def _propose(self, state, budget):
            draft = super()._propose(state, budget)
            return Draft(draft.tree, draft.path_probs, outcomes=tuple(Outcome((100 + i,), 0.02) for i in range(90)))

    branches = begun(Unsure())
    worked(branches, 500)
    assert len(branches.others) == MOST


def filled() -> KVCache:
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


class CountingWithCache(Sure):
    def begin(self, requests):
        return [Cached() for _ in requests]


@pytest.mark.parametrize("copies", [0, 1, 2])
def test_branches_hold_no_more_keys_and_values_than_they_may(copies, monkeypatch):
    monkeypatch.setattr(edge_branches, "BRANCH_BYTES", copies * filled().copy_bytes)
    branches = begun(CountingWithCache())
    worked(branches, 40)
    assert [*branches.others] == [(50,), (1, 70)][:copies]  # the likeliest


def test_the_caches_of_a_state_are_found_in_states_within_states():
    one = Cached()
    assert caches_of([(one, 1), {"no": 1}]) == [one.cache]
    assert caches_of(Count()) == caches_of(None) == caches_of([1, 2]) == []


def test_a_frame_holds_what_the_cloud_does_not():
    branches = begun(Sure())
    grow(branches, branches.main, 2)
    first = branches.main.frame(1, 0)
    assert first is not None
    assert (first.tokens, first.start, first.serial, first.known) == ((1, 2), 0, 1, 0)
    assert branches.main.frame(2, 0) is None
    grow(branches, branches.main, 4)
    second = branches.main.frame(2, 0)
    assert second is not None
    assert (second.tokens, second.start, second.serial) == ((3, 4), 2, 1)
    branches.commit((1, 2))
    grow(branches, branches.main, 3)  # 3, 4, 5: the first two are there
    third = branches.main.frame(2, 2)
    assert third is not None
    assert (third.tokens, third.start, third.length, third.known) == ((5,), 4, 0, 2)
    assert third.probs == pytest.approx((0.9**2 * 0.9**3,))  # after the two that were committed


def test_the_target_finds_the_next_draft_when_it_knows_the_outcome():
    """Frames are sent once, before anything is committed; then the link is cut: no reply ever comes."""
    branches, link = begun(Sure()), EdgeLink(SESSION)
    worked(branches, 20)
    for serial, branch in enumerate((branches.main, *branches.others.values())):
        frame = branch.frame(serial, 0)
        assert frame is not None
        link.received(frame)
    link.cut()
    drafter = EdgeDrafter(128)
    for outcome, follows in (((50,), (51, 52)), ((1, 70), (71, 72)), ((1, 2), (3, 4)), ((9,), ())):
        # Copies: what one text contradicts must still be there for the next.
        (state,) = drafter.fork(drafter.begin([Request("?", events=EdgeEvents(link))]))
        drafter.commit([state], [VerifyOutput((), outcome)])
        (draft,) = drafter.propose([state], [Budget(2, wait_s=0.0)])
        assert draft.tree.tokens == follows


def test_the_first_nodes_reach_as_far_as_their_text():
    branch = DraftBranch(Committed(SESSION), None, prob=0.5)
    for nodes in (1, FIRST, FIRST + 1):
        branch.draft = Draft(DraftTree.chain(range(nodes)), tuple(0.5 ** (1 + i) for i in range(nodes)))
        assert branch.reach == (0.5 if nodes <= FIRST else 0.5 * 0.5**nodes)
    assert branch.grows(BRANCH_NODES)
    assert not branch.grows(FIRST + 1)
    branch.whole = True
    assert not branch.grows(BRANCH_NODES)


def test_distributions_go_on_with_the_draft():
    branch = DraftBranch(Committed(SESSION), None)
    dists = torch.eye(8)[[1, 2, 3]]
    branch.draft = Draft(DraftTree.chain((1, 2), dists[:2]))
    assert branch.frame(1, 0) is not None
    branch.draft = Draft(DraftTree.chain((1, 2, 3), dists))
    more = branch.frame(2, 0)
    assert more is not None
    assert (more.tokens, more.start, more.ids, more.counts) == ((3,), 2, (3,), (1,))


def test_a_draft_that_the_cloud_may_have_forgotten_is_begun_anew():
    branches = begun(Sure())
    grow(branches, branches.main, 2)
    assert branches.main.frame(1, 0) is not None
    grow(branches, branches.main, 4)
    again = branches.main.frame(2 + MOST_BEHIND, 0)
    assert again is not None
    assert (again.tokens, again.start, again.serial) == ((1, 2, 3, 4), 0, 2 + MOST_BEHIND)
    assert branches.main.frame(3 + MOST_BEHIND, 0) is None
