"""The child's side, in this process: what its drafter refuses is one request's."""

from dataclasses import replace
from multiprocessing import Pipe

import pytest
import torch

from crossdraft.engine.drafter import Draft
from crossdraft.engine.request import Request
from crossdraft.engine.runner.link import Handled
from crossdraft.engine.runner.wire import pack_request, pack_tensor, unpack_draft
from crossdraft.engine.runner.worker import DraftServer, Inbox, ServedRequest, VisualInbox
from crossdraft.engine.sampling import Sampling
from crossdraft.engine.tree import DraftTree
from tests.engine.scripted import Counting, Refusing

QUESTIONS = ("x", "no", "xx")


@pytest.mark.parametrize("method", ["begin", "propose", "commit", "end"])
def test_what_a_drafter_refuses_is_that_requests(method, tmp_path):
    ours, theirs = Pipe()
    drafter = Refusing(method)
    outputs = [(key, 0, (7,), {}) for key in range(3)]
    for key, question in enumerate(QUESTIONS):
        ours.send(("begin", (key, pack_request(Request(question))[0], [])))
    for serial in (1, 2):
        ours.send(("commit", ([], outputs)))
        ours.send(("propose", (serial, [(key, 4, 0.0) for key in range(3)])))
    ours.send(("close", None))
    server = DraftServer(drafter, Inbox(theirs, Handled(tmp_path, create=True)))
    server.run()
    refusal = None if method == "end" else "not this one"
    for serial in (1, 2):
        kind, (replied, _, drafts) = ours.recv()
        assert (kind, replied) == ("answer", serial)
        assert [unpack_draft(draft).refusal for draft in drafts] == [None, refusal, None]
    ours.send(("end", [0, 1, 2]))
    ours.send(("close", None))
    server.run()
    assert drafter.ended == [question for question in QUESTIONS if question in drafter.begun]
    assert drafter.committed.count("x") == drafter.committed.count("xx") == 2
    assert not server.requests
    assert not server.refused


@pytest.mark.parametrize(
    ("message", "interrupts"),
    [
        (("commit", ([], [(7, 0, (1,), {})])), False),
        (("ahead", (1, [(8, 4, 0.0)])), False),
        (("end", [8]), False),
        (("end", [8, 7]), True),
        (("propose", (1, [(8, 4, 0.0)])), True),
        (("hidden", (1, (8, 4, False))), True),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_a_draft_that_nobody_waits_for_ends_where_another_is_waited_for(message, interrupts, tmp_path):
    class Slow(Counting):
        """Looks for messages after a token."""

        def _propose(self, state, budget):
            return super()._propose(state, replace(budget, nodes=1 if budget.stopped else budget.nodes, stop=None))

    ours, theirs = Pipe()
    inbox = Inbox(theirs, Handled(tmp_path, create=True))
    server = DraftServer(Slow(), inbox)
    server._begin((7, pack_request(Request("?"))[0], []), [])
    ours.send(("ahead", (1, [(7, 5, 0.0)])))
    ours.send(message)
    kind, value, _ = inbox.receive()
    server._answer(kind, *value)
    _, (_, spans, drafts) = ours.recv()
    assert len(unpack_draft(drafts[0]).tree) == (1 if interrupts else 5)
    assert [span.name for span in spans] == ["read", "ahead"]


class Tossing(Counting):
    """Draws every token, 0 or 1, with one half each, and ends a text at its first 0."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(0)

    def _propose(self, state, budget):
        while len(state.tail) < budget.nodes and 0 not in state.tail:
            state.tail.append(int(torch.rand((), generator=self.generator) < 0.5))
        return Draft(DraftTree.chain(state.tail[: budget.nodes]))


def share_behind_a_missed_draft(folder) -> float:
    """The share of 1 among the next words where the first draft went on for so long that it was not waited for."""
    ours, theirs = Pipe()
    server = DraftServer(Tossing(), Inbox(theirs, Handled(folder, create=True)))
    packed = pack_request(Request("?", sampling=Sampling(temperature=1.0)))[0]
    firsts = []
    for key in range(1600):
        server._begin((key, packed, []), [])
        server._answer("hidden", 0, (key, 4, False))
        if 0 not in unpack_draft(ours.recv()[1][2]).tree.tokens:
            server._commit([key], [(key, 0, (1,), {})])
            server._answer("propose", 0, [(key, 4, 0.0)])
            firsts.append(unpack_draft(ours.recv()[1][2][0]).tree.tokens[0])
        server._end([key], copies=False)
    assert len(firsts) > 60
    return sum(firsts) / len(firsts)


def test_a_first_draft_that_was_not_waited_for_is_not_drafted_on(tmp_path):
    assert abs(share_behind_a_missed_draft(tmp_path) - 0.5) < 0.18  # three standard errors


def test_drafting_it_on_would_be_seen(tmp_path, monkeypatch):
    monkeypatch.setattr(ServedRequest, "missed", lambda self: None)
    assert share_behind_a_missed_draft(tmp_path) > 0.9


def test_a_prompts_ids_are_taken_up_as_they_come_and_nobody_stops_waiting_for_them(tmp_path):
    """A drafter that waits for what the target sees goes on: the ids of its own prompt come first."""
    ours, theirs = Pipe()
    inbox, features = Inbox(theirs, Handled(tmp_path, create=True)), torch.ones(4, 2)
    packed, arrays = pack_tensor(features)
    ours.send(("hidden", (1, (7, 8, False))))
    ours.send(("prompt", (7, (5, 6))))
    ours.send(("visual", (7, packed, [array.nbytes for array in arrays])))
    for array in arrays:
        ours.send_bytes(array)
    assert torch.equal(VisualInbox(inbox, 7)(), features)
    assert inbox.prompts[7].result(0) == (5, 6)  # before the request was begun, too
    assert inbox.receive()[0] == "hidden"
    ours.send(("prompt", (9, (1,))))
    assert not inbox._arrived()
    ours.send(("close", None))
    assert inbox.receive()[0] == "close"
