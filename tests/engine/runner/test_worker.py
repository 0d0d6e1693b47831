"""The child's side, in this process: what its drafter refuses is one request's."""

from multiprocessing import Pipe

import pytest

from crossdraft.engine.request import Request
from crossdraft.engine.runner.link import Handled
from crossdraft.engine.runner.wire import pack_request, unpack_draft
from crossdraft.engine.runner.worker import DraftServer, Inbox
from tests.engine.scripted import Refusing

QUESTIONS = ("x", "no", "xx")


@pytest.mark.parametrize("method", ["begin", "propose", "commit", "end"])
def test_what_a_drafter_refuses_is_that_requests(method, tmp_path):
    ours, theirs = Pipe()
    drafter = Refusing(method)
    outputs = [(key, (), (7,), (), True) for key in range(3)]
    for key, question in enumerate(QUESTIONS):
        ours.send(("begin", (key, pack_request(Request(question))[0], False, [])))
    for serial in (1, 2):
        ours.send(("commit", ([], outputs)))
        ours.send(("propose", (serial, [(key, 4, 0.0, False) for key in range(3)])))
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
