"""`crossdraft serve` as a process: configuration, signals, a drafter that is killed."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest

from crossdraft_lab.bench.resources import descendants
from tests.serve.conftest import body, messages

STARTED = re.compile(r"reference is ready on (http://127\.0\.0\.1:\d+) ")


@pytest.fixture(scope="module")
def process(media_root, tmp_path_factory):
    """A server in a process of its own, set up by a file, the environment and a flag."""
    folder = tmp_path_factory.mktemp("serve")
    (folder / "serve.yaml").write_text("max_batch: 2\nlog_format: json\nport: 1\n")
    temporary = folder / "tmp"
    temporary.mkdir()
    environment = os.environ | {"CROSSDRAFT_MEDIA_ROOT": str(media_root), "TMPDIR": str(temporary)}
    command = [sys.executable, "-m", "crossdraft", "serve", "--config", str(folder / "serve.yaml"), "--port", "0"]
    with (folder / "log").open("wb") as log:
        found = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=log, text=True)
    line = found.stdout.readline()
    started = STARTED.match(line)
    assert started, (line, (folder / "log").read_text())
    yield started[1], found, folder
    found.kill()
    found.wait()


def test_the_log_says_what_the_start_is_waiting_for(process):
    _, _, folder = process
    first = [json.loads(line) for line in (folder / "log").read_text().splitlines()[:2]]
    said = [(one["level"], one["message"]) for one in first]
    assert said == [("info", "loading the models"), ("info", "warming up")]


def post(url: str, **more) -> httpx.Response:
    return httpx.post(f"{url}/v1/chat/completions", json=body(**more), timeout=60)


def test_a_drafter_that_is_killed_costs_no_answer(process):
    url, found, _ = process
    wanted = post(url).json()["choices"][0]["message"]["content"]
    drafters = [pid for pid in descendants(found.pid) if b"decode_worker" not in cmdline(pid)]
    assert drafters
    for pid in drafters:
        os.kill(pid, signal.SIGKILL)
    until = time.monotonic() + 120
    while drafter_alive(url) and time.monotonic() < until:  # no request has met its end
        time.sleep(0.05)
    assert not drafter_alive(url)
    answer = post(url)  # which finds it lost
    assert (answer.status_code, answer.json()["choices"][0]["message"]["content"]) == (200, wanted)
    while not drafter_alive(url) and time.monotonic() < until:
        time.sleep(0.05)
    assert drafter_alive(url)  # it was started again, though no request has come since
    answer = post(url)
    assert (answer.status_code, answer.json()["choices"][0]["message"]["content"]) == (200, wanted)
    assert not set(drafters) & descendants(found.pid).keys()


def drafter_alive(url: str) -> bool:
    return 'drafter_alive{model_name="reference"} 1.0' in httpx.get(f"{url}/metrics").text


def cmdline(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def test_a_websocket_that_is_refused_is_no_error_in_the_log(process):
    """The log is looked at when the process has ended."""
    url, _, _ = process
    asked = (
        f"GET /nosuch HTTP/1.1\r\nHost: {url[7:]}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\r\n"
    )
    host, _, port = url[7:].partition(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(asked.encode())
        assert connection.recv(65536).startswith(b"HTTP/1.1 404")


@pytest.mark.parametrize("when", ["while it loads", pytest.param("at its first line", marks=pytest.mark.slow)])
def test_sigterm_ends_a_server_in_order_from_the_start(when, tmp_path):
    command = [sys.executable, "-m", "crossdraft", "serve", "--port", "0"]
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    found = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        if when == "while it loads":
            until = time.monotonic() + 60
            while not (children := descendants(found.pid)) and time.monotonic() < until:  # the drafter's process
                time.sleep(0.1)
            assert children
        else:
            assert STARTED.match(found.stdout.readline())
        found.send_signal(signal.SIGTERM)
        out, said = found.communicate(timeout=60)
        assert (found.returncode, bool(out)) == (0, False), said
        assert not list(tmp_path.glob("crossdraft-*"))
    finally:
        found.kill()
        found.wait()


def test_sigterm_drains_and_leaves_with_0(process):
    """The last test of this process: an answer that runs is finished, new requests are refused, nothing is left."""
    url, found, folder = process
    ended, begun = [], threading.Event()

    def read():
        asked = body(messages=messages("Describe the scene in detail."), max_tokens=100, stream=True)
        with httpx.stream("POST", f"{url}/v1/chat/completions", json=asked, timeout=60) as response:
            for line in response.iter_lines():
                begun.set()
                ended.append(line)

    reader = threading.Thread(target=read)
    reader.start()
    assert begun.wait(60)
    children = descendants(found.pid)
    found.stdout.close()  # as whoever wanted the first line alone does
    found.send_signal(signal.SIGTERM)
    time.sleep(0.02)
    try:  # while it drains it still says so; it may have ended already
        assert httpx.get(f"{url}/ready").status_code == 503
        assert post(url).status_code == 503
    except httpx.TransportError:
        pass
    reader.join(60)
    assert [line for line in ended if line][-1] == "data: [DONE]"
    assert not any('"error"' in line for line in ended)
    assert found.wait(60) == 0
    until = time.monotonic() + 10
    while (left := [pid for pid in children if Path(f"/proc/{pid}/exe").exists()]) and time.monotonic() < until:
        time.sleep(0.05)
    assert not left, [(children[pid], cmdline(pid)) for pid in left]
    assert not list((folder / "tmp").glob("crossdraft-serve-*"))
    records = [json.loads(line) for line in (folder / "log").read_text().splitlines()]
    assert any(one["message"] == "WEBSOCKET /nosuch 404" for one in records)
    assert [one["message"] for one in records if one["level"] == "error"] == []
    assert records[-1]["message"] == "ended"
    said = [one["message"] for one in records if "drafter" in one["message"]]
    assert said[0].startswith("Answers are written without the drafter: it was lost (its process ended)")
    assert said[1:] == ["The drafter was restarted."]
    answered = next(one for one in records if one["message"].endswith("chat/completions 200"))
    assert {"time", "level", "request_id", "client", "ms", "new_tokens", "ttft_ms", "finish"} <= answered.keys()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--port", "70000"], "port is"),
        (["--max-batch", "0"], "--max-batch is 0; it must be at least 1; change --max-batch."),
        (["--config", "none.yaml"], "no configuration file"),
        (["--lossy-prefill", "pol"], "no compression"),
        (["--host", "0.0.0.0"], "Without keys everybody who reaches 0.0.0.0 could ask"),
        (["--host", "256.0.0.1", "--open-to-all"], "Cannot listen"),
    ],
)
def test_bad_settings_are_one_sentence_and_status_2(arguments, says, capsys):
    from crossdraft.cli.main import main

    assert main(["serve", *arguments]) == 2
    assert says in capsys.readouterr().err
