"""The child's side, in this process: what its drafter refuses is one request's."""

from multiprocessing import Pipe

import pytest
import torch

from crossdraft.engine.request import Request
from crossdraft.engine.runner.link import Handled
from crossdraft.engine.runner.wire import pack_request, pack_tensor, unpack_draft
from crossdraft.engine.runner.worker import DraftServer, Inbox, VisualInbox
from tests.engine.scripted import Refusing

QUESTIONS = ("x", "no", "xx")


@pytest.mark.parametrize("method", ["begin", "propose", "commit", "end"])
def test_what_a_drafter_refuses_is_that_requests(method, tmp_path):
    ours, theirs = Pipe()
    drafter = Refusing(method)
    outputs = [(key, (), (7,), True) for key in range(3)]
    for key, question in enumerate(QUESTIONS):
        ours.send(("begin", (key, pack_request(Request(question))[0], False, [])))
    for serial in (1, 2):
        ours.send(("commit", ([], outputs)))
        ours.send(("propose", (serial, [(key, 4, 0.0) for key in range(3)])))
    ours.send(("close", None))
    server = DraftServer(drafter, "off", Inbox(theirs, Handled(tmp_path, create=True)))
    server.run(works_while_read=False)
    refusal = None if method == "end" else "not this one"
    for serial in (1, 2):
        kind, (replied, _, drafts) = ours.recv()
        assert (kind, replied) == ("answer", serial)
        assert [unpack_draft(draft).refusal for draft in drafts] == [None, refusal, None]
    ours.send(("end", [0, 1, 2]))
    ours.send(("close", None))
    server.run(works_while_read=False)
    assert drafter.ended == [question for question in QUESTIONS if question in drafter.begun]
    assert drafter.committed.count("x") == drafter.committed.count("xx") == 2
    assert not server.states
    assert not server.refused


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
