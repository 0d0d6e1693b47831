"""The cloud's side of an answer: which of an edge's drafts are used, and how long they are waited for."""

import threading
import time

import pytest

from crossdraft.edge.branches import frame_of
from crossdraft.edge.committed import Committed
from crossdraft.edge.events import EdgeEvents
from crossdraft.edge.frames import DraftFrame
from crossdraft.edge.held import HeldDraft
from crossdraft.edge.remote import MOST_HELD, NO_EDGE, EdgeDrafter, EdgeLink
from crossdraft.engine.checks import checked
from crossdraft.engine.drafter import Budget, Draft, VerifyOutput
from crossdraft.engine.request import Request
from crossdraft.engine.runner.wire import pack_request, unpack_request
from crossdraft.engine.tree import DraftTree
from crossdraft.errors import CrossdraftError

SESSION, V = bytes(16), 32


def frame(tokens, committed=(), serial=1, session=SESSION, **more) -> DraftFrame:
    after = Committed(session)
    after.add(committed)
    return frame_of(Draft(DraftTree.chain(tokens)), (len(after), after.digest()), serial, **more)


@pytest.fixture
def link() -> EdgeLink:
    return EdgeLink(SESSION)


@pytest.fixture
def drafter() -> EdgeDrafter:
    return EdgeDrafter(V)


@pytest.fixture
def state(link, drafter):
    return drafter.begin([Request("?", events=EdgeEvents(link))])[0]


def proposed(drafter, state, **budget) -> tuple[int, ...]:
    return drafter.propose([state], [Budget(**({"nodes": 8, "wait_s": 0.0} | budget))])[0].tree.tokens


def test_a_draft_is_used_up_to_the_budget_and_goes_on_after_what_was_committed(link, drafter, state):
    link.received(frame((1, 2, 3, 4)))
    assert proposed(drafter, state, nodes=2) == (1, 2)
    drafter.commit([state], [VerifyOutput((0,), (1, 2))])
    assert proposed(drafter, state) == (3, 4)
    drafter.commit([state], [VerifyOutput((0,), (9,))])
    assert proposed(drafter, state) == ()


def test_replays_and_old_drafts_are_dropped(link, drafter, state):
    link.received(frame((1, 2), serial=2))
    link.received(frame((7, 8), serial=2))
    link.received(frame((5, 6), serial=1))
    assert proposed(drafter, state) == (1, 2)
    assert (link.frames, link.refused) == (3, 2)


@pytest.mark.parametrize("bad", [frame((1,), (5,)), frame((1,), (), session=b"x" * 16), frame((1,), start=1)])
def test_what_does_not_follow_is_dropped(link, drafter, state, bad):
    link.received(bad)
    assert proposed(drafter, state) == ()


def test_a_draft_of_what_is_committed_a_moment_later_is_kept_for_then(link, drafter, state):
    link.received(frame((3,), (1, 2)))
    assert proposed(drafter, state) == ()
    drafter.commit([state], [VerifyOutput((), (1, 2))])
    assert proposed(drafter, state) == (3,)


@pytest.mark.parametrize(
    "bad", [DraftFrame(0, Committed(SESSION).digest(), 1, 0, (1, 2), (-1, 5)), frame((1, -4)), frame((1, V))]
)
def test_a_faulty_draft_costs_itself(link, drafter, state, bad):
    link.received(bad)
    (draft,) = drafter.propose([state], [Budget(8, wait_s=0.0)])
    with pytest.raises(CrossdraftError):
        checked(draft, V)
    link.received(frame((1, 2), serial=2))
    assert proposed(drafter, state) == (1, 2)


def test_nobody_waits_for_an_edge_that_was_never_quick_enough(link, drafter, state):
    start = time.perf_counter()
    link.estimate.rtt_s.add(0.01)  # a quick line is no quick drafter
    assert proposed(drafter, state, wait_s=20.0) == ()
    link.estimate.replied(21.0, 0)
    assert proposed(drafter, state, wait_s=20.0) == ()
    assert time.perf_counter() - start < 8


def test_a_quick_edge_is_waited_for_and_no_longer_once_it_is_cut_off(link, drafter, state):
    link.estimate.replied(0.01, 0)
    threading.Timer(0.05, link.received, [frame((1, 2))]).start()
    assert proposed(drafter, state, wait_s=20.0) == (1, 2)
    drafter.commit([state], [VerifyOutput((), (9,))])
    threading.Timer(0.05, link.cut).start()
    start = time.perf_counter()
    assert proposed(drafter, state, wait_s=20.0) == ()
    assert time.perf_counter() - start < 8


def test_a_draft_is_waited_for_as_long_as_it_is_worth(link, drafter, state, monkeypatch):
    monkeypatch.setattr("crossdraft.edge.remote.LONGEST_WAIT_S", 0.05)  # where that is not known
    link.estimate.replied(0.01, 0)
    assert proposed(drafter, state, wait_s=None) == ()
    threading.Timer(0.2, link.received, [frame((1, 2))]).start()
    assert proposed(drafter, state, wait_s=20.0) == (1, 2)


def test_nobody_waits_where_the_edge_says_that_nothing_follows(link, drafter, state):
    link.estimate.replied(0.01, 0)
    link.received(frame(()))
    start = time.perf_counter()
    assert proposed(drafter, state, wait_s=20.0) == ()
    assert time.perf_counter() - start < 8
    threading.Timer(0.05, link.received, [frame((4,), (9,), serial=2)]).start()
    drafter.commit([state], [VerifyOutput((), (9,))])  # of this text it has not said so
    assert proposed(drafter, state, wait_s=20.0) == (4,)


def test_a_pass_waits_once_for_all_of_its_edges(drafter):
    links = [EdgeLink(SESSION) for _ in range(4)]
    for link in links:
        link.estimate.replied(0.01, 0)
    states = drafter.begin([Request("?", events=EdgeEvents(link)) for link in links])
    threading.Timer(0.1, links[3].received, [frame((1, 2))]).start()  # while the first one is waited for
    start = time.perf_counter()
    drafts = drafter.propose(states, [Budget(8, wait_s=0.4)] * 4)
    assert 0.4 <= time.perf_counter() - start < 1.2  # three times, if for each
    assert [draft.tree.tokens for draft in drafts] == [(), (), (), (1, 2)]


def test_of_two_drafts_that_fit_the_one_that_knew_more_is_used(link, drafter, state):
    link.received(frame((1, 2, 3), serial=1))
    link.received(frame((4, 5), (1, 2), serial=2))
    link.received(frame((1, 2, 7), serial=3))
    drafter.commit([state], [VerifyOutput((0,), (1, 2))])
    assert proposed(drafter, state) == (4, 5)


def test_so_many_drafts_are_held_and_no_more(link, drafter, state):
    for serial in range(MOST_HELD + 1):
        link.received(frame((serial % V,), serial=serial))
    link.received(frame((5,), serial=0, start=1))  # of one that is gone
    assert proposed(drafter, state) == (MOST_HELD % V,)
    assert link.refused == 1


def test_drafts_of_another_text_are_dropped_and_those_that_may_yet_fit_are_not(link, drafter, state):
    wrong, other, fits, used_up, later = range(1, 6)
    link.received(frame((1, 3, 4), serial=wrong))
    link.received(frame((1,), (1, 9), serial=other))
    link.received(frame((1, 2, 7), serial=fits))
    link.received(frame((1, 2), serial=used_up))
    link.received(frame((5,), (1, 2, 7, 8), serial=later))
    (copy,) = drafter.fork([state])
    drafter.commit([copy], [VerifyOutput((), (9, 9))])
    assert len(link._held) == 5, "what a copy says may not come true"
    drafter.commit([state], [VerifyOutput((), (1, 2))])
    assert sorted(link._held) == [fits, used_up, later]
    drafter.commit([state], [VerifyOutput((), (7, 8))])
    assert sorted(link._held) == [fits, used_up, later]
    assert proposed(drafter, state) == (5,)
    drafter.commit([state], [VerifyOutput((), (6,))])
    assert sorted(link._held) == [fits, used_up]


@pytest.mark.parametrize(
    ("paths", "committed", "contradicted"),
    [
        ([[1, 2], [1, 3], [4]], (), False),
        ([[1, 2], [1, 3], [4]], (4,), False),
        ([[1, 2], [1, 3], [4]], (1, 3), False),
        ([[1, 2], [1, 3], [4]], (1, 3, 9), False),  # it may grow
        ([[1, 2], [1, 3], [4]], (1, 9), True),
        ([[1, 2], [1, 3], [4]], (9,), True),
    ],
)
def test_a_tree_is_contradicted_where_its_branches_all_say_otherwise(paths, committed, contradicted):
    after = Committed(SESSION)
    held = HeldDraft(frame_of(Draft(DraftTree.from_paths(paths)), (0, after.digest()), 1))
    after.add(committed)
    assert held.follow(after) is not contradicted


def test_what_is_held_is_bounded_by_entries_too(link, drafter, state, monkeypatch):
    monkeypatch.setattr("crossdraft.edge.remote.MOST_HELD_ENTRIES", 90)
    after = Committed(SESSION)
    for node in range(40):
        parts = (node,), (node - 1,), (node,), (), (9,), tuple(range(9)), (1 / 9,) * 9
        link.received(DraftFrame(0, after.digest(), 1, node, *parts))
    assert link.refused == 29, "the draft that became too large is dropped, and so is what follows it"
    assert proposed(drafter, state) == ()
    link.received(frame((5,), serial=2))
    assert proposed(drafter, state) == (5,)


def test_drafts_are_tried_from_the_one_that_knew_most(link, drafter, state, monkeypatch):
    for serial in range(1, 20):
        link.received(frame((1, 2, serial), serial=serial))
    tried: list[int] = []
    after = HeldDraft.after

    def noted(held, *given, **more):
        tried.append(held.frame.serial)
        return after(held, *given, **more)

    monkeypatch.setattr(HeldDraft, "after", noted)
    assert proposed(drafter, state) == (1, 2, 19)
    assert tried == [19]


def test_a_reply_is_what_was_sent_knowing_a_commit(link):
    start = time.perf_counter()
    link.committed(2)
    link.committed(3)
    link.received(frame((4,), (1, 2, 3), serial=1))  # drafted for what might be committed
    assert link.estimate.reply_s is None
    link.received(frame((4,), (1, 2), serial=2, known=2))
    first = link.estimate.reply_s
    assert first is not None
    assert first <= time.perf_counter() - start
    link.received(frame((4,), (1, 2), serial=3, known=2))  # counts once
    assert link.estimate.reply_s == first


def test_an_edge_that_drafts_no_more_is_not_waited_for(drafter):
    link = EdgeLink(SESSION, replies=False)
    link.estimate.replied(0.01, 0)
    (state,) = drafter.begin([Request("?", events=EdgeEvents(link))])
    start = time.perf_counter()
    assert proposed(drafter, state, wait_s=20.0) == ()
    assert time.perf_counter() - start < 8


def test_a_hidden_draft_is_taken_when_the_target_is_there(link, drafter, state):
    until = threading.Event()
    wait = drafter.propose_async([state], [Budget(8, until=until)])
    link.received(frame((1, 2)))
    until.set()
    (draft,) = wait()
    assert draft.tree.tokens == (1, 2)
    assert [span.name for span in draft.spans] == ["hidden draft"]


def test_a_copy_goes_its_own_way(link, drafter, state):
    link.received(frame((1, 2, 3)))
    (copy,) = drafter.fork([state])
    drafter.commit([copy], [VerifyOutput((0,), (1, 2))])
    assert proposed(drafter, copy) == (3,)
    assert proposed(drafter, state) == (1, 2, 3)


def test_another_process_learns_where_the_events_are_and_no_more(link):
    packed, arrays = pack_request(Request("?", events=EdgeEvents(link)))
    found = unpack_request(packed, [bytearray(array) for array in arrays])
    assert (found.events, str(found.events)) == (EdgeEvents(), "at the edge")
    drafter = EdgeDrafter(V)
    assert drafter.propose(drafter.begin([found]), [Budget(8)])[0].refusal == NO_EDGE


def test_a_request_without_an_edge_is_refused():
    drafter = EdgeDrafter(V)
    (draft,) = drafter.propose(drafter.begin([Request("?")]), [Budget(8)])
    assert draft.refusal == NO_EDGE
