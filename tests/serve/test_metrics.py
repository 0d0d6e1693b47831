"""What is counted of answers, by how they end."""

import json
from collections import Counter
from concurrent.futures import Future

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from crossdraft.engine.request import Finish, Origin, Piece
from crossdraft.engine.stats import Stats
from crossdraft.serve.metrics import FINISHED, FinishedReason, Metrics, ServerState
from tests.serve.conftest import body
from tests.serve.test_security import reaches


def samples(text: str) -> dict[str, float]:
    """Each sample of a server, by its name behind the prefix and its labels other than the model's."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = [value for name, value in sample.labels.items() if name != "model_name"]
            found[" ".join([sample.name.partition(":")[2], *labels])] = sample.value
    return found


def finished(server) -> dict[str, int]:
    """Answers by how they ended, those of which there are none left out."""
    return +Counter({reason: int(count(server, f"request_success_total {reason}")) for reason in FinishedReason})


def count(server, name: str) -> float:
    return samples(httpx.get(f"{server.url}/metrics", timeout=60).text)[name]


class Endless:
    """An answer of so many pieces that goes on for long, or fails."""

    def __init__(self, pieces: int, error: Exception | None = None) -> None:
        self._pieces, self._error = pieces, error

    def submit(self, question, on_piece, **_) -> "Endless":
        self.future: Future = Future()
        for _ in range(self._pieces):
            on_piece(Piece((5,), "x", Origin.TARGET))
        if self._error is not None:
            self.future.set_exception(self._error)
        return self

    def cancel(self) -> None:
        self.future.cancel()


def test_answers_end_in_vllms_words(start):
    server = start()
    assert count(server, "request_success_total abort") == 0  # each is there from the start
    assert server.post(body(max_tokens=2)).status_code == 200
    assert server.post(body(max_tokens=100)).json()["choices"][0]["finish_reason"] == "stop"
    assert server.post(body(max_tokens=100, stop=" ahead", stream=True)).status_code == 200
    assert finished(server) == {"length": 1, "stop": 2}
    assert FINISHED.keys() == set(Finish)
    assert (FINISHED[Finish.TIME], FINISHED[Finish.CANCELLED]) == ("length", "abort")


def test_a_client_that_leaves_is_counted_once_whenever_it_does(start, monkeypatch):
    """Before its whole answer is there, and before and behind the first piece of a stream."""
    server, asked = start(), []

    for number, (stream, pieces) in enumerate(((False, 0), (True, 0), (True, 1)), 1):
        monkeypatch.setattr(
            server.engine,
            "submit",
            lambda *given, pieces=pieces, **more: asked.append(0) or Endless(pieces).submit(*given, **more),
        )
        data = json.dumps(body(stream=stream)).encode()
        with server.connection() as connection:
            head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n"
            connection.sendall(head.encode() + data)
            if pieces:
                assert connection.recv(1) == b"H"
            assert reaches(lambda: len(asked), number)
        assert reaches(lambda: finished(server).get("abort", 0), number)
    assert finished(server) == {"abort": 3}
    assert reaches(lambda: server.service.limits.active, 0)


def test_an_answer_that_fails_is_counted_once_and_one_that_is_refused_is_none(start, monkeypatch):
    server = start()

    monkeypatch.setattr(server.engine, "submit", Endless(0, RuntimeError("broken")).submit)
    assert server.post(body()).status_code == 500
    for pieces in (0, 1):
        monkeypatch.setattr(server.engine, "submit", Endless(pieces, RuntimeError("broken")).submit)
        assert '"code":"internal_error"' in server.post(body(stream=True)).text
    assert server.post(body(max_tokens=100_000)).status_code == 400
    assert finished(server) == {"error": 3}
    assert count(server, "request_failure_total 500") == 3


def test_a_server_is_looked_at_when_it_is_asked():
    states = [ServerState(running, 0, 3, 4, drafter=False, rows=5, prefill=None) for running in (1, 2)]
    metrics = Metrics("m", lambda: states.pop(0))
    assert [samples(metrics.text().decode())["num_requests_running"] for _ in range(2)] == [1, 2]


def test_times_begin_when_the_engine_is_asked():
    metrics = Metrics("m", lambda: ServerState(0, 0, 0, 0, drafter=True, rows=0, prefill=None))
    metrics.answered(Stats(new_tokens=3, queued_s=1.0, ttft_s=0.5, total_s=2.5, check_s=0.25), Finish.EOS)
    found = samples(metrics.text().decode())
    assert found["time_to_first_token_seconds_sum"] == pytest.approx(1.5)
    assert found["e2e_request_latency_seconds_sum"] == pytest.approx(3.75)
    assert found["request_time_per_output_token_seconds_sum"] == pytest.approx(1.0)
    assert found["request_queue_time_seconds_sum"] == pytest.approx(1.0)
