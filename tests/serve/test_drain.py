"""An orderly end: what runs may end, within a deadline; what comes is refused."""

import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from crossdraft import Engine, Options
from tests.serve.conftest import Runner, settings
from tests.serve.test_security import reaches
from tests.support import endless_target


@pytest.fixture
def endless(pair, tmp_path):
    """An engine whose answers take many seconds: no token ends them."""
    folder = endless_target(pair, tmp_path / "endless")
    with Engine.load(folder, None, Options(max_batch=2, max_queue=4)) as engine:
        yield engine


def ask(server, tokens: int, lines: list[str], begun: threading.Event) -> None:
    body = {
        "model": "endless",
        "messages": [{"role": "user", "content": "what is the car doing?"}],
        "max_tokens": tokens,
        "stream": True,
    }
    with httpx.stream("POST", f"{server.url}/v1/chat/completions", json=body, timeout=60) as response:
        for line in response.iter_lines():
            begun.set()
            lines.append(line)


def answering(endless, tmp_path, tokens: int, seconds: float):
    """A server, its network and thread, and who reads an answer that has begun, with the lines that came."""
    chosen = settings(target=str(tmp_path / "endless"), max_new_tokens=20_000, drain_seconds=seconds)
    server, network, thread = Runner(endless, tmp_path).start(chosen)
    lines, begun = list[str](), threading.Event()
    reader = threading.Thread(target=ask, args=(server, tokens, lines, begun))
    reader.start()
    assert begun.wait(60)
    return server, network, thread, reader, lines


@pytest.mark.parametrize(("tokens", "seconds", "whole"), [(300, 30, True), (15_000, 0.3, False)])
def test_answers_end_or_are_ended_with_an_error(endless, tmp_path, tokens, seconds, whole):
    server, network, thread, reader, lines = answering(endless, tmp_path, tokens, seconds)
    network.handle_exit(signal.SIGTERM, None)
    reader.join(60)
    thread.join(60)
    assert not thread.is_alive()
    said = [line for line in lines if line]
    assert said[-1] == "data: [DONE]"
    assert any('"error"' in line and "shutting_down" in line for line in said) != whole
    assert any('"finish_reason":"length"' in line for line in said) == whole
    server.service.close()


def test_what_comes_while_it_drains_is_refused_and_what_runs_ends_whole(endless, tmp_path, held_rounds):
    server, network, thread, reader, lines = answering(endless, tmp_path, 300, 60)
    network.handle_exit(signal.SIGTERM, None)
    assert reaches(lambda: network._draining is not None, True)
    found = [httpx.get(f"{server.url}/{path}").status_code for path in ("ready", "health")]
    refused = server.post({"model": "endless", "messages": [{"role": "user", "content": "what?"}]})
    held_rounds.go.set()
    reader.join(60)
    thread.join(60)
    assert found == [503, 200]
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")
    assert refused.headers["retry-after"]
    assert not thread.is_alive()
    said = [line for line in lines if line]
    assert said[-1] == "data: [DONE]"
    assert any('"finish_reason":"length"' in line for line in said)
    server.service.close()


def test_a_second_signal_ends_at_once(endless, tmp_path):
    server, network, thread, reader, _ = answering(endless, tmp_path, 15_000, 60)
    began = time.monotonic()
    network.handle_exit(signal.SIGTERM, None)
    network.handle_exit(signal.SIGTERM, None)
    thread.join(30)
    reader.join(30)
    assert time.monotonic() - began < 30
    assert not thread.is_alive()
    server.service.close()


def test_an_engine_that_has_ended_is_no_clients_fault(endless, tmp_path):
    """503, which clients try again, also for whoever waits."""
    started = Runner(endless, tmp_path).start(settings(target=str(tmp_path / "endless"), max_new_tokens=20_000))
    question = {"model": "endless", "messages": [{"role": "user", "content": "what?"}], "max_tokens": 15_000}
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(started[0].post, question)
        until = time.monotonic() + 30
        while not started[0].rows() and time.monotonic() < until:
            time.sleep(0.01)
        endless.close()
        found = [waiting.result(), started[0].post(question)]
    assert [one.status_code for one in found] == [503, 503]
    assert all(one.headers["retry-after"] for one in found)
    Runner.stop(*started)
