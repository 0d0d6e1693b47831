"""A few hundred mutated requests; `python -m tests.serve.fuzzing.server 10000` sends more."""

import random
from pathlib import Path

import pytest

from crossdraft.serve.watch import WatchConnection
from crossdraft_lab.bench.serving.process import Connection
from tests.serve.fuzzing.fuzz import WAYS, Seeds, mutants, outcome, run_fuzz, sent_to
from tests.serve.fuzzing.mutations import mutated
from tests.serve.fuzzing.server import MOST_FUZZED, WARM, fuzz_server
from tests.serve.fuzzing.streams import framed, status_of, stream, watch_status

COUNT = 144
WAIT_S = 60  # a busy machine; a server that is done hangs up before


@pytest.fixture(scope="module")
def seeds(media_root):
    return Seeds.read("reference", "reference", media_root / "clip.mp4", media_root / "clip.h5")


def test_mutated_requests_are_answered_or_refused(server, seeds):
    port = server.address[1]
    with Connection(port) as connection:
        found = run_fuzz(lambda one: sent_to(port, connection, one), seeds, COUNT)
        assert connection.request("GET", "/health").status == 200
    assert not [name for name in found if "!" in name], found
    assert sum(found.values()) == COUNT
    for way in WAYS:
        assert sum(number for name, number in found.items() if name.startswith(f"{way}: refused")), found
    assert server.service.media.files.spooled == 0


def test_mutants_are_the_same_for_the_same_seed(seeds):
    assert list(mutants(seeds, 20, 1)) == list(mutants(seeds, 20, 1)) != list(mutants(seeds, 20, 2))
    assert mutated(b"abcdefgh", random.Random(1)) != b"abcdefgh"


def test_a_stream_that_is_whole_is_answered(server):
    first = b'{"questions":["What is ahead?"],"max_tokens":2,"every_ms":500,"window_ms":1000,"sensor":[64,64]}'
    assert watch_status(server.address[1], stream(first, random.Random(1), lambda given, draw: given), WAIT_S) == 200
    assert watch_status(server.address[1], framed(1, b"{}"), WAIT_S) == 400


def test_a_server_that_hangs_up_on_a_stream_without_a_word_is_caught(server, monkeypatch):
    """As uvicorn does where a handler fails: 1006 for the client."""
    port, sent = server.address[1], framed(1, b"{}")

    async def broken(handler):
        await handler._socket.accept()
        raise ZeroDivisionError

    assert watch_status(port, sent, WAIT_S) == 400
    monkeypatch.setattr(WatchConnection, "run", broken)
    with pytest.raises(EOFError):
        watch_status(port, sent, WAIT_S)


def test_a_streams_end_has_a_status():
    def said(kind: int, payload: bytes) -> bytes:
        sent = framed(kind, payload)
        return sent[:1] + bytes([sent[1] & 127]) + sent[2 : -4 - len(payload)] + payload

    error = b'{"type":"error","error":{"type":"%s"}}'
    for kind, status in ((b"server_error", 500), (b"overloaded_error", 503), (b"invalid_request_error", 400)):
        assert status_of(said(1, b'{"type":"window"}') + said(1, error % kind) + said(8, b"\x03\xf0x")) == status
    ends = {1000: 200, 1002: 400, 1011: 500}
    assert {code: status_of(said(8, code.to_bytes(2, "big"))) for code in ends} == ends
    assert status_of(said(1, b'{"type":"window","x":"%s"}' % (b"y" * 70_000)) + b"\x81") == 200


def test_outcomes():
    assert [outcome(status) for status in (200, 206, 400, 422)] == ["answered", "answered", "refused", "refused"]
    assert outcome(503) == "no room"
    assert [outcome(status) for status in (500, 502, 0)] == ["!status 500", "!status 502", "!status 0"]
    assert outcome(100) == "waiting"


def test_security_says_when_memory_grows_under_mutants():
    said = (Path(__file__).parents[3] / "docs" / "server_security.md").read_text(encoding="utf-8")
    assert f"after the first {100 * WARM:g} % of them" in said
    assert f"may lie {100 * MOST_FUZZED:g} % of their median apart" in said


@pytest.mark.slow
def test_a_server_in_a_process_of_its_own_bears_mutants(tmp_path):
    found = fuzz_server(tmp_path, 20)
    assert sum(found["outcomes"].values()) == 20
    assert not [outcome for outcome in found["outcomes"] if "!" in outcome]
    assert (found["logged_errors"], found["whole_edge"]) == (0, "answered")
    assert not any(found["left"].values())
