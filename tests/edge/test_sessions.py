"""The server's own side of an edge's questions: who holds an answer, what is learned of it, and what is logged."""

import asyncio
import json
import secrets
import time

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from crossdraft.edge.committed import Committed
from crossdraft.edge.estimate import LinkEstimate
from crossdraft.edge.frames import AskFrame, Commit, Done, Ping, Pong, Refused, Resume, decode, encode
from crossdraft.engine.request import Origin, Piece
from crossdraft.serve.answering import Answering
from crossdraft.serve.edge_sessions import EdgeSession
from crossdraft.serve.tracing import SpanRecorder
from tests.edge.conftest import chat
from tests.edge.test_hostile import answered, connected, draft
from tests.serve.test_metrics import finished


def ask(socket, session, **more) -> None:
    socket.send(encode(AskFrame(session, json.dumps(chat(**more)).encode())))


def wait_for(socket, kind):
    until = time.monotonic() + 30
    while time.monotonic() < until:
        if isinstance(frame := decode(socket.recv(30)), kind):
            return frame
    raise AssertionError(f"no {kind.kind}")


@pytest.fixture
def estimates(monkeypatch) -> list[LinkEstimate]:
    """What is known of each connection, in their order."""
    made = []
    monkeypatch.setattr("crossdraft.serve.edge.LinkEstimate", lambda: made.append(LinkEstimate()) or made[-1])
    return made


@pytest.fixture
def unfinished(monkeypatch) -> None:
    """Answers have one token, and go on for long."""

    async def one_piece(session):
        session.pieces.append(Piece((5,), "x", Origin.TARGET))
        session.committed.add((5,))
        session.changed.set()
        await asyncio.sleep(60)

    monkeypatch.setattr(EdgeSession, "_answer", one_piece)


@pytest.mark.usefixtures("unfinished")
def test_a_ping_counts_that_is_answered_after_the_next_one_was_sent(start, fingerprint, estimates, monkeypatch):
    monkeypatch.setattr("crossdraft.serve.edge.PING_S", 0.05)
    with connected(start(), fingerprint) as socket:
        ask(socket, secrets.token_bytes(16))
        first, second, third, _ = (wait_for(socket, Ping).at for _ in range(4))
        for moment in (first, first, third, second):  # once, and none that is older than one that was answered
            socket.send(encode(Pong(moment)))
        ask(socket, secrets.token_bytes(16), model="other")
        wait_for(socket, Refused)
        rtt_s = estimates[-1].rtt_s
    assert rtt_s.weight == pytest.approx(1 + rtt_s.decay)
    assert rtt_s.value is not None
    assert rtt_s.value >= 0.09


@pytest.mark.usefixtures("unfinished")
def test_an_answer_goes_on_at_once_on_another_connection_while_the_old_one_seems_alive(start, fingerprint):
    """A connection that was cut without a word: its writer waits for pieces, too, and must not take the news."""
    running, session = start(), secrets.token_bytes(16)
    with connected(running, fingerprint) as old, connected(running, fingerprint) as new:
        ask(old, session)
        assert wait_for(old, Commit).tokens == (5,)
        new.send(encode(Resume(session, 0, Committed(session).digest(), 0)))
        assert wait_for(new, Commit).tokens == (5,)


def test_an_outage_is_not_learned_as_drafting_time(start, fingerprint, alone, estimates, monkeypatch):
    question = Answering.question

    async def late(answering, held):
        await asyncio.sleep(1.0)  # the edge is back by then
        return await question(answering, held)

    monkeypatch.setattr(Answering, "question", late)
    running, session = start(), secrets.token_bytes(16)
    with connected(running, fingerprint) as socket:
        ask(socket, session)
        wait_for(socket, Ping)
    time.sleep(0.3)
    with connected(running, fingerprint) as socket:
        socket.send(encode(Resume(session, 0, Committed(session).digest(), 0)))
        socket.send(encode(draft(session, (), alone[:4], 1)))
        report = json.loads(wait_for(socket, Done).report)["edge"]
        assert report["frames"] == 1
        assert (estimates[-1].first_s, estimates[-1].answer_s.value) == (None, None)
        assert answered(socket, secrets.token_bytes(16)) == alone
        assert estimates[-1].answer_s.value is not None, "the next question is of one connection"


def test_every_question_has_a_line_in_the_log_and_a_span(start, fingerprint, alone, caplog):
    caplog.set_level("INFO", "crossdraft.serve")
    running, kept, provider = start(), InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    running.service.spans = SpanRecorder("reference", provider)
    with connected(running, fingerprint) as socket:
        assert answered(socket, secrets.token_bytes(16)) == alone
        ask(socket, secrets.token_bytes(16), model="other")
        assert isinstance(decode(socket.recv(30)), Refused)
        lines = [(one.getMessage(), one.facts.get("new_tokens")) for one in caplog.records]
        assert lines == [("WEBSOCKET /v1/edge 200", len(alone)), ("WEBSOCKET /v1/edge 404", None)]
        assert caplog.records[0].facts["drafter"] == "event"
    spans = kept.get_finished_spans()
    outer = next(one for one in spans if one.attributes.get("crossdraft.status") == 200)
    assert outer.attributes["gen_ai.usage.output_tokens"] == len(alone)
    inner = {one.name for one in spans if one.parent is not None and one.parent.span_id == outer.context.span_id}
    assert "target prepare" in inner


def test_an_edge_is_greeted_without_work_on_the_vocabulary(start, fingerprint, monkeypatch):
    """It takes seconds of a large one, and all requests wait for the event loop."""
    running = start()

    def must_not(vocabulary):
        raise AssertionError(len(vocabulary))

    monkeypatch.setattr("crossdraft.serve.edge_sessions.fingerprint_of", must_not)
    with connected(running, fingerprint):
        pass


def test_who_leaves_an_answer_leaves_a_line_in_the_log(start, fingerprint, caplog):
    caplog.set_level("INFO", "crossdraft.serve")
    running = start(edge_resume_seconds=0.0)
    with connected(running, fingerprint) as socket:
        ask(socket, secrets.token_bytes(16), max_tokens=500)
        wait_for(socket, Ping)
    until = time.monotonic() + 10
    while len(caplog.records) < 2 and time.monotonic() < until:
        time.sleep(0.02)
    assert {one.getMessage() for one in caplog.records} == {"WEBSOCKET /v1/edge 499", "WEBSOCKET /v1/edge 101"}
    assert finished(running) == {"abort": 1}
