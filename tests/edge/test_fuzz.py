"""Mutated edges, as the fuzzer of tests/serve/fuzzing sends them, and what is seen of a server that fails on them."""

import asyncio
import gc
import logging
import os
import random
import struct
import time
from contextlib import contextmanager

import pytest
from starlette.websockets import WebSocketDisconnect

from crossdraft.edge.frames import Commit, Done, End, Ping, Refused, encode
from crossdraft.serve.edge import EdgeConnection
from crossdraft.serve.edge_sessions import EdgeSessions
from crossdraft.serve.keys import Client
from crossdraft.serve.logs import is_news
from crossdraft_lab.bench.serving import load
from crossdraft_lab.bench.serving.plan import ServePlan
from crossdraft_lab.bench.serving.process import Connection, ServerProcess
from tests.edge.test_edge import at
from tests.serve.fuzzing import edges
from tests.serve.fuzzing import server as fuzzed_server
from tests.serve.fuzzing.edges import CHANGES, edge_frames, edge_status, status_of_edge, whole_edge, wire
from tests.serve.fuzzing.fuzz import WAYS, Mutant, Seeds, mutants, outcome, sent_to
from tests.serve.fuzzing.server import fuzz
from tests.serve.fuzzing.streams import BINARY, CLOSE, TEXT, WAITING

COUNT = 20  # of each change
WAIT_S = 60.0  # a busy machine


@pytest.fixture
def question(fingerprint):
    return Seeds("reference", b"", b"", fingerprint).question()


def failures(caplog):
    """What the server logs as failures of its own."""
    gc.collect()  # asyncio tells then of tasks whose failure nobody asked for
    return [found for found in caplog.records if found.levelno >= logging.ERROR and is_news(found)]


def whole(fingerprint, question, number=1):
    return whole_edge(fingerprint, question, random.Random(number))


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_mutated_edges_are_answered_or_refused(start, edge, fingerprint, question, alone, change, caplog):
    running = start()
    port = running.address[1]
    for number in range(COUNT // 2):
        draw = random.Random(number)
        status = edge_status(port, change(whole_edge(fingerprint, question, draw), draw))
        assert "!" not in outcome(status), number
    until = time.monotonic() + WAIT_S
    while running.service.limits.active and time.monotonic() < until:  # answers whose edges may come again
        time.sleep(0.02)
    with edge.client(at(running)) as client:
        assert edge.ask(client).tokens == alone
    assert not failures(caplog)


def test_an_edge_that_is_whole_is_answered_and_a_cut_one_waited_for(start, fingerprint, question):
    port = start().address[1]
    frames = whole(fingerprint, question)
    assert edge_status(port, wire(frames), WAIT_S) == 200
    assert edge_status(port, wire(frames)[:-1], WAIT_S) == 200  # the question is whole
    asked = wire(frames[:3])
    assert edge_status(port, asked[:-1]) == WAITING
    assert edge_status(port, wire([*frames[:2], *frames[3:5]])) == WAITING  # drafts of an answer that nobody asked for
    assert edge_status(port, wire([(TEXT, b"hello")]), WAIT_S) == 400
    assert edge_status(port, wire([*frames[:2], (BINARY, encode(frames[2])[:-9])]), WAIT_S) == 400


def test_edges_are_the_same_for_the_same_seed_and_all_differ_from_a_whole_one(fingerprint, question):
    same = [edge_frames(fingerprint, question, random.Random(7)) for _ in range(2)]
    assert same[0] == same[1] != edge_frames(fingerprint, question, random.Random(8))
    untouched = [0] * len(CHANGES)
    for number, change in enumerate(CHANGES):
        for seed in range(COUNT):
            frames, draw = whole(fingerprint, question, seed), random.Random(seed)
            untouched[number] += change([*frames], draw) == wire(frames)
    assert max(untouched) <= COUNT // 4  # a frame may be moved to where it was


def test_they_are_among_the_mutants(fingerprint):
    every = mutants(Seeds("reference", b"clip", b"events", fingerprint), 18, 1)
    assert [(one.path, one.method) for one in every if one.way == "edge"] == [("/v1/edge", "GET")] * 2


def ended(port, fingerprint, question) -> str:
    """How a mutant ends as the fuzzer counts it."""
    sent = Mutant("/v1/edge", wire(whole(fingerprint, question)), {}, "edge", "GET")
    with Connection(port) as connection:
        return outcome(sent_to(port, connection, sent))


def test_a_server_that_fails_on_a_frame_is_caught(start, fingerprint, question, monkeypatch):
    """It says so, by an error of its own."""
    running = start()
    assert ended(running.address[1], fingerprint, question) == "answered"

    async def broken(*_):
        raise ZeroDivisionError

    monkeypatch.setattr(EdgeConnection, "_ask", broken)
    assert ended(running.address[1], fingerprint, question) == "!status 500"


def test_a_server_that_hangs_up_without_a_word_is_caught(start, fingerprint, question, monkeypatch):
    """As uvicorn does where a handler fails: 1006 for the client."""

    async def broken(connection):
        await connection._socket.accept()
        raise ZeroDivisionError

    monkeypatch.setattr(EdgeConnection, "run", broken)
    with pytest.raises(EOFError):
        ended(start().address[1], fingerprint, question)


def test_a_server_that_hangs_is_caught(start, fingerprint, question, monkeypatch):
    """Also one that still pings."""

    async def broken(connection):
        await connection._socket.accept()
        while True:
            await asyncio.sleep(0.05)
            await connection._send(Ping(0.5))

    monkeypatch.setattr(EdgeConnection, "run", broken)
    monkeypatch.setattr(edges, "HANG_S", 0.5)
    with pytest.raises(TimeoutError):
        ended(start().address[1], fingerprint, question)


def said(kind, payload):
    return bytes([0x80 | kind, len(payload)]) + payload


def closed(code):
    return said(CLOSE, struct.pack(">H", code))


def test_an_edges_end_has_a_status():
    refused = {code: said(BINARY, encode(Refused(code, "No."))) for code in ("500", "queue_full", "invalid_frame")}
    done, commit = encode(Done(1, bytes(8), "stop", b"{}")), encode(Commit(0, bytes(8), (5,), (1,), (2,), ("a",), 8))
    ends = {
        said(BINARY, commit): WAITING,
        said(BINARY, commit) + said(BINARY, done): 200,
        said(BINARY, done) + closed(1000): 200,
        said(BINARY, done) + closed(1008): 400,
        closed(1001): WAITING,
        closed(1011): 500,
        refused["500"] + closed(1008): 500,
        refused["queue_full"]: 503,
        refused["invalid_frame"]: 400,
        refused["500"] + refused["queue_full"]: 500,
        said(BINARY, b"\x00"): 500,  # no frame of ours
        said(TEXT, b"{}"): 500,
    }
    assert {received: status_of_edge(received) for received in ends} == ends


def test_what_is_written_for_an_edge_that_has_gone_is_no_failure_of_the_server(
    start, fingerprint, question, monkeypatch, caplog
):
    """The writer is cancelled while what it wrote has failed already: then the failure is what it ends with."""
    ends = iter([WebSocketDisconnect(1006), ZeroDivisionError()])

    async def gone(*_):
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise next(ends) from None

    monkeypatch.setattr(EdgeConnection, "_write", gone)
    port = start().address[1]
    hello, _, ask, *_ = whole(fingerprint, question)
    frames = [hello, ask, End()]
    edge_status(port, wire(frames))
    assert not failures(caplog)
    edge_status(port, wire(frames))
    assert [record.getMessage() for record in failures(caplog)] == ["What was written for an edge failed."]


def test_text_that_is_no_utf8_ends_the_connection_and_is_no_failure_of_the_servers(
    start, fingerprint, question, caplog
):
    """uvicorn logs it with a traceback; should it change its words, this is where it is noticed."""
    port = start().address[1]
    assert outcome(edge_status(port, wire([(TEXT, b"\xff\xfe"), *whole(fingerprint, question)]))) == "refused"
    until = time.monotonic() + WAIT_S
    while not (said := any("UTF-8" in found.getMessage() for found in caplog.records)) and time.monotonic() < until:
        time.sleep(0.02)
    assert said
    assert not failures(caplog)


@pytest.fixture
def fuzzed(media, tmp_path, monkeypatch):
    """What the fuzzer says of a server in this process, of whose memory nothing is asked."""
    monkeypatch.setattr(fuzzed_server, "MOST_FUZZED", 1.0)
    monkeypatch.setattr(load, "SOON_S", WAIT_S)
    (tmp_path / "clips").symlink_to(media)

    def run(running):
        server = ServerProcess(os.getpid(), running.address[1], tmp_path, tmp_path / "log")
        return fuzz(ServePlan(tmp_path), server, len(WAYS))

    return run


def test_behind_the_mutants_nothing_is_left_and_a_whole_edge_is_answered(start, fuzzed):
    found = fuzzed(start())
    assert (found["passed"], found["whole_edge"], set(found["left"].values())) == (True, "answered", {0})


def test_places_of_edges_that_leak_are_seen_though_no_mutant_fails(start, fuzzed, monkeypatch):
    connected = EdgeSessions.connected

    @contextmanager
    def leaking(sessions, service, client):
        with connected(sessions, service, client):
            yield
        sessions._connected[client.name] += 1

    monkeypatch.setattr(EdgeSessions, "connected", leaking)
    found = fuzzed(start(edges=1))
    assert (found["passed"], found["whole_edge"], set(found["left"].values())) == (False, "no room", {0})


def test_a_request_that_stays_is_seen_though_no_mutant_fails(start, fuzzed, monkeypatch):
    monkeypatch.setattr(load, "SOON_S", 0.1)
    running = start()
    with running.service.limits.admitted(Client()):
        found = fuzzed(running)
    assert found["left"]["num_requests_running"]
    assert not found["passed"]
