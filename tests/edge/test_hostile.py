"""Edges that lie, flood, replay or are not who they say: they change no answer, and not another client's."""

import json
import secrets
import time
from contextlib import contextmanager, suppress

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from crossdraft.edge.committed import Committed
from crossdraft.edge.frames import (
    ROUTE,
    AskFrame,
    Commit,
    Done,
    DraftFrame,
    End,
    Hello,
    Ping,
    Pong,
    Refused,
    Resume,
    Welcome,
    decode,
    encode,
)
from crossdraft.errors import CrossdraftError
from crossdraft.serve.edge import MOST_REFUSED
from crossdraft.serve.keys import KeyRecord, append_key, digest_of, new_key
from tests.edge.conftest import chat
from tests.edge.test_edge import at


@contextmanager
def connected(running, fingerprint, key=None):
    """A connection that says hello, and then whatever a test has it say."""
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    with connect(at(running) + ROUTE, additional_headers=headers, compression=None, proxy=None) as socket:
        socket.send(encode(Hello("event", fingerprint)))
        assert isinstance(decode(socket.recv(30)), Welcome)
        yield socket


def answered(socket, session, say=lambda frame: None) -> tuple[int, ...]:
    """AskFrame, tell `say` of every frame, and return the answer."""
    socket.send(encode(AskFrame(session, json.dumps(chat()).encode())))
    tokens = ()
    while True:
        match frame := decode(socket.recv(20)):
            case Ping(moment):
                socket.send(encode(Pong(moment)))
            case Commit():
                tokens += frame.tokens
            case Done():
                return tokens
            case _:
                raise AssertionError(frame)
        say(frame)


def draft(session, committed, tokens, serial, **more) -> DraftFrame:
    known = Committed(session)
    known.add(committed)
    parents = tuple(range(-1, len(tokens) - 1))
    return DraftFrame(len(committed), known.digest(), serial, 0, tuple(tokens), parents, **more)


LIES = {
    "wrong tokens": lambda session, known, n: draft(session, known, [7] * 30, n),
    "tokens that there are not": lambda session, known, n: draft(session, known, [10**6, -5], n),
    "an image": lambda session, known, n: draft(session, known, [32000, 4095], n),
    "another text": lambda session, known, n: draft(session, [1, 2, 3], [4, 5], n),
    "more than is committed": lambda session, known, n: draft(session, [*known, 9, 9], [4, 5], n),
    "another answer's": lambda session, known, n: draft(bytes(16), known, [4, 5], n),
    "no tree": lambda session, known, n: DraftFrame(
        len(known), draft(session, known, [1], 1).digest, n, 0, (1, 2), (-1, 9)
    ),
    "no distribution": lambda session, known, n: draft(
        session, known, [4, 5], n, origins=(0, 0), counts=(2,), ids=(4, 5), values=(float("nan"), 3.0)
    ),
    "no probabilities": lambda session, known, n: draft(session, known, [4, 5], n, probs=(2.0, float("inf"))),
    "the end": lambda session, known, n: draft(session, known, [2, 2, 2], n),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lying_edge_changes_no_answer(start, fingerprint, alone, lie):
    session, known, sent = secrets.token_bytes(16), [], 0

    with connected(start(), fingerprint) as socket:

        def say(frame):
            nonlocal sent
            if isinstance(frame, Commit):
                known.extend(frame.tokens)
            sent += 1
            socket.send(encode(LIES[lie](session, known, sent)))

        assert answered(socket, session, say) == alone
    assert sent > 1


def test_replays_change_no_answer(start, fingerprint, alone):
    """What one answer's edge sent is sent again for the next, and again; and frames of an answer that is whole."""
    session, frames, known = secrets.token_bytes(16), [], []
    with connected(start(), fingerprint) as socket:

        def record(frame):
            if isinstance(frame, Commit):
                known.extend(frame.tokens)
            frames.append(encode(draft(session, known, alone[len(known) : len(known) + 4], len(frames) + 1)))
            socket.send(frames[-1])

        def replay(frame):
            for one in frames[:20]:
                socket.send(one)

        assert answered(socket, session, record) == alone
        for one in frames:
            socket.send(one)
        socket.send(encode(End()))
        assert answered(socket, secrets.token_bytes(16), replay) == alone


def test_a_flooding_edge_is_cut_off_and_others_are_answered(start, edge, fingerprint, alone):
    running = start(edge_frames=100)
    session = secrets.token_bytes(16)
    with connected(running, fingerprint) as socket, edge.client(at(running)) as other:
        other.open()
        socket.send(encode(AskFrame(session, json.dumps(chat()).encode())))
        with pytest.raises(ConnectionClosed):
            for serial in range(100_000):
                socket.send(encode(draft(session, [], [7] * 64, serial)))
        assert edge.ask(other).tokens == alone
        last = None
        with pytest.raises(ConnectionClosed):
            while True:
                last = decode(socket.recv(30))
        assert isinstance(last, Refused) or socket.close_code in {1006, 1008}


def test_an_edge_that_sends_too_many_bytes_is_cut_off(start, fingerprint):
    """Few frames may be large ones, each of which takes time to read."""
    with connected(start(edge_bytes=1 << 17), fingerprint) as socket:
        with pytest.raises(ConnectionClosed):
            for serial in range(1000):
                socket.send(encode(draft(secrets.token_bytes(16), [], [7] * 4000, serial)))
            socket.recv(30)
        assert socket.close_code in {1006, 1008}


def test_questions_that_are_refused_again_and_again_end_the_connection(start, fingerprint):
    running = start()
    bodies = [b"{}", json.dumps(chat(model="other")).encode(), b"[" + b"{}," * 10_000 + b"{}]"]
    with connected(running, fingerprint) as socket:
        refused = []
        with pytest.raises(ConnectionClosed):
            for number in range(100):
                socket.send(encode(AskFrame(secrets.token_bytes(16), bodies[number % 3])))
                refused.append(decode(socket.recv(30)))
        assert len(refused) == MOST_REFUSED + 1
        assert refused[-1].code == "too_many_refused"
        assert all(isinstance(one, Refused) for one in refused)
        assert "values" in refused[2].message  # counted before any is validated, as in any body


def test_refused_questions_count_as_requests_do(start, fingerprint, tmp_path):
    key = new_key()
    record = KeyRecord(name="anna", sha256=digest_of(key), requests_per_minute=2)
    (tmp_path / "keys.yaml").write_text(json.dumps([record.model_dump()]))
    running = start(keys_file=tmp_path / "keys.yaml")
    codes = []
    for _ in range(2):
        with connected(running, fingerprint, key) as socket:
            for _ in range(2):
                socket.send(encode(AskFrame(secrets.token_bytes(16), b"{}")))
                codes.append(decode(socket.recv(30)).code)
    assert codes == ["invalid_value", "invalid_value", "rate_limit_exceeded", "rate_limit_exceeded"]


def refusal(running, key=None) -> tuple[int, dict]:
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    with pytest.raises(InvalidStatus) as error:
        connect(at(running) + ROUTE, additional_headers=headers, proxy=None).__enter__()
    response = error.value.response
    assert response.headers["retry-after"]
    return response.status_code, json.loads(response.body)["error"]


def test_edges_are_bounded_and_starve_nobody(start, fingerprint):
    """Neither another edge's place once one is free, nor requests over HTTP."""
    running = start(edges=2, connections=2)
    with connected(running, fingerprint), connected(running, fingerprint):
        assert httpx.get(f"{running.url}/health").status_code == 200
        status, said = refusal(running)
        assert (status, said["code"], said["type"]) == (503, "edges_full", "overloaded_error")
        body = {"model": "reference", "messages": [{"role": "user", "content": "?"}], "max_tokens": 1}
        assert running.post(body).status_code == 200
    until = time.monotonic() + 10
    while time.monotonic() < until:
        with suppress(InvalidStatus), connected(running, fingerprint):
            return
    raise AssertionError("the places are free again")


def test_a_client_has_so_many_edges(start, fingerprint, keys):
    running = start(keys_file=keys[0], client_edges=1)
    with connected(running, fingerprint, keys[1]["anna"]):
        assert refusal(running, keys[1]["anna"])[0] == 429
        with connected(running, fingerprint, keys[1]["ben"]):
            pass


def test_an_edge_that_asks_nothing_is_hung_up_on_whatever_else_it_sends(start, edge, fingerprint, alone):
    running = start(edge_idle_seconds=0.5)
    with connected(running, fingerprint) as socket, pytest.raises(ConnectionClosed):
        for _ in range(100):
            socket.send(encode(Pong(1.0)))
            time.sleep(0.05)
        socket.recv(30)
    with edge.client(at(running)) as client:
        client.open()
        time.sleep(1.0)
        assert edge.ask(client).tokens == alone, "it comes again"


@pytest.mark.parametrize(
    ("first", "words"),
    [
        (b"\x00", "no msgpack array"),
        (encode(Hello("event", bytes(32))), "vocabulary"),
        (encode(End()), "begin with hello"),
        (b"\x94\x63\xa5hello\xa0\xc4\x00", "version 99"),
    ],
)
def test_what_is_no_hello_is_refused_with_a_sentence(start, first, words):
    with connect(at(start()) + ROUTE, proxy=None) as socket:
        socket.send(first)
        refused = decode(socket.recv(30))
        assert isinstance(refused, Refused)
        assert words in refused.message
        with pytest.raises(ConnectionClosed):
            socket.recv(30)
        assert socket.close_code == 1008


def test_text_and_what_is_too_long_end_the_connection(start, fingerprint):
    running = start()
    for message in ("text", bytes(2 << 20), encode(Ping(1.0))):
        with connected(running, fingerprint) as socket:
            socket.send(message)
            with pytest.raises(ConnectionClosed):
                while True:
                    socket.recv(30)


def test_who_says_nothing_is_hung_up_on(start):
    with connect(at(start(header_seconds=0.3)) + ROUTE, proxy=None) as socket, pytest.raises(ConnectionClosed):
        socket.recv(30)


@pytest.fixture
def keys(tmp_path):
    file = tmp_path / "keys.yaml"
    found = {name: new_key() for name in ("anna", "ben")}
    for name, key in found.items():
        append_key(file, KeyRecord(name=name, sha256=digest_of(key)))
    return file, found


def test_a_wrong_key_is_refused(start, edge, keys, alone):
    running = start(keys_file=keys[0])
    for key in (None, "cd-wrong"):
        with pytest.raises(CrossdraftError, match="API key"):
            edge.client(at(running), key).open()
    with pytest.raises(InvalidStatus) as error:
        connect(at(running) + ROUTE, proxy=None).__enter__()
    assert error.value.response.status_code == 401
    with edge.client(at(running), keys[1]["anna"]) as client:
        assert edge.ask(client).tokens == alone


def test_a_page_of_another_origin_is_refused(start):
    with pytest.raises(InvalidStatus) as error:
        connect(at(start()) + ROUTE, origin="https://evil.example", proxy=None).__enter__()
    assert error.value.response.status_code == 403


def test_another_clients_answer_cannot_be_resumed(start, fingerprint, keys, alone):
    running = start(keys_file=keys[0])
    session = secrets.token_bytes(16)
    nothing = Resume(session, 0, Committed(session).digest(), 0)
    with connected(running, fingerprint, keys[1]["anna"]) as socket:
        socket.send(encode(AskFrame(session, json.dumps(chat()).encode())))
        socket.recv(30)
    with connected(running, fingerprint, keys[1]["ben"]) as socket:
        socket.send(encode(nothing))
        refused = decode(socket.recv(30))
        assert isinstance(refused, Refused)
        assert refused.code == "unknown_session"
    with connected(running, fingerprint, keys[1]["anna"]) as socket:
        socket.send(encode(Resume(session, 1, bytes(8), 1)))
        assert isinstance(decode(socket.recv(30)), Refused)
    with connected(running, fingerprint, keys[1]["anna"]) as socket:
        socket.send(encode(nothing))
        tokens = ()
        while not isinstance(frame := decode(socket.recv(30)), Done):
            tokens += frame.tokens if isinstance(frame, Commit) else ()
        assert tokens == alone


def test_an_answer_that_nobody_wants_ends(start, fingerprint):
    running = start()
    with connected(running, fingerprint) as socket:
        socket.send(encode(AskFrame(secrets.token_bytes(16), json.dumps(chat(max_tokens=500)).encode())))
        socket.send(encode(End()))
        until = time.monotonic() + 10
        while running.service.limits.active and time.monotonic() < until:
            time.sleep(0.02)
        assert (running.service.limits.active, running.rows()) == (0, 0)


def test_a_server_without_edges_says_so(start, edge):
    with pytest.raises(CrossdraftError, match="--drafter edge"):
        edge.client(at(start(drafter="union:memory,ngram"))).open()
