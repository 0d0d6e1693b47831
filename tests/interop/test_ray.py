"""Replicas and workers on a real Ray cluster of two nodes: `make interop-ray`, in an environment that has Ray.

One node is killed while streams run. A stream may end with one error, or be answered by the other replica; no answer
may be wrong, none may end without saying so.
"""

import asyncio
import contextlib
import importlib.util
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from crossdraft.bench.resources import PROC, descendants
from crossdraft.load import load_target
from crossdraft.scenes import make_scene, split_seeds, write_clip
from crossdraft.serve.app import create_app
from crossdraft.serve.service import Service, load_engine
from crossdraft.serve.settings import read_settings
from crossdraft.train.capture.plan import CapturedTarget, CapturePlan, capture_spec
from crossdraft.train.capture.recorder import FeatureRecorder
from crossdraft.train.capture.run import capture
from crossdraft.train.capture.sources import SceneSource

pytestmark = [
    pytest.mark.slow,
    # Not imported here: it reads the mode of its tokens once.
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None,
        reason="needs Ray, which only the environment of `make interop-ray` has",
    ),
]

CHAT = "/v1/chat/completions"
STARTED = re.compile(r"reference on (http://127\.0\.0\.1:\d+) ")
STORE = 200 << 20  # bytes of a node's object store
CLIPS = 3
LONG = 200  # tokens of an answer: it takes long enough for a node to be killed meanwhile
QUESTIONS = ("What is the car in front doing?", "What is ahead?", "Describe the road.")


@dataclass
class Two:
    """A cluster of two nodes, with one core each; the second may be killed, and comes back as a new one."""

    cluster: object
    second: object

    def processes(self) -> list[int]:
        """Everything that runs on the second node."""
        found = [info.process.pid for infos in self.second.all_processes.values() for info in infos]
        return [*found, *(child for pid in found for child in descendants(pid))]

    def kill(self) -> None:
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.cluster.remove_node(self.second, allow_graceful=False)

    def revive(self) -> None:
        self.second = self.cluster.add_node(num_cpus=1, object_store_memory=STORE)


@pytest.fixture(scope="module")
def two() -> Iterator[Two]:
    """Made after this process's environment says how nodes know each other."""
    given = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32), "RAY_USAGE_STATS_ENABLED": "0"}
    before = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 1, "object_store_memory": STORE, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        yield Two(cluster, cluster.add_node(num_cpus=1, object_store_memory=STORE))
    finally:
        cluster.shutdown()
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.__setitem__(name, value)


@pytest.fixture(scope="module")
def media(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("media")
    for number, seed in enumerate(split_seeds("test")[:CLIPS]):
        clip = write_clip(make_scene(seed), root)
        clip.video.rename(root / f"{number}.mp4")
        clip.events.rename(root / f"{number}.h5")
    return root


def command_of(pid: int) -> str:
    """ "" of a process that has ended."""
    with contextlib.suppress(OSError):
        return (PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode()
    return ""


def environment(two: Two) -> dict[str, str]:
    return os.environ | {"RAY_ADDRESS": two.cluster.address, "OMP_NUM_THREADS": "1"}


@dataclass
class Server:
    """A running `crossdraft serve --ray`."""

    url: str
    process: subprocess.Popen
    log: Path

    def replicas(self) -> int:
        reply = httpx.get(f"{self.url}/ready", timeout=30)
        return reply.json()["replicas"] if reply.status_code == 200 else 0

    def metric(self, name: str) -> dict[str, float]:
        text = httpx.get(f"{self.url}/metrics", timeout=30).text
        return {
            labels: float(value)
            for labels, value in re.findall(rf"^crossdraft:{name}{{(.*)}} (\S+)$", text, re.MULTILINE)
        }

    def wait_for(self, replicas: int, seconds: float = 120) -> None:
        until = time.monotonic() + seconds
        while self.replicas() != replicas:
            assert time.monotonic() < until, (self.replicas(), self.log.read_text()[-3000:])
            time.sleep(0.5)


@pytest.fixture(scope="module")
def server(two, media, tmp_path_factory) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("serve") / "log"
    command = [sys.executable, "-m", "crossdraft", "serve", "--ray", "--port", "0", "--media-root", str(media)]
    command += ["--min-replicas", "2", "--max-replicas", "2", "--max-queue", "64", "--placement", "inline"]
    with log.open("wb") as file:
        process = subprocess.Popen(command, env=environment(two), stdout=subprocess.PIPE, stderr=file, text=True)
    line = process.stdout.readline()
    started = STARTED.match(line)
    assert started, (line, log.read_text())
    found = Server(started[1], process, log)
    yield found
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0, log.read_text()


def body(clip: int, question: str, uuid: str | None = None, **more) -> dict:
    named = {} if uuid is None else {"uuid": uuid}
    shown = [
        {"type": "video_url", "video_url": {"url": f"file:{clip}.mp4"}, **named},
        {"type": "event_url", "event_url": {"url": f"file:{clip}.h5"}},
        {"type": "text", "text": question},
    ]
    limits = {"max_tokens": LONG, "min_tokens": LONG}
    return {"model": "reference", "messages": [{"role": "user", "content": shown}], **limits, **more}


@pytest.fixture(scope="module")
def right(media) -> dict[tuple[int, str], str]:
    """The answers of the target alone, by a server of one process."""
    settings = read_settings(None, {"media_root": media, "drafter": "none", "placement": "inline"})
    with load_engine(settings) as engine:
        service = Service(settings, engine)
        app = create_app(service)

        async def answers() -> dict[tuple[int, str], str]:
            transport, found = httpx.ASGITransport(app=app), {}
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=60) as client:
                for clip in range(CLIPS):
                    for question in QUESTIONS:
                        reply = (await client.post(CHAT, json=body(clip, question))).json()
                        found[clip, question] = reply["choices"][0]["message"]["content"]
            return found

        try:
            return asyncio.run(answers())
        finally:
            service.close()


def ask(server: Server, clip: int, question: str, **more) -> dict:
    reply = httpx.post(f"{server.url}{CHAT}", json=body(clip, question, **more), timeout=120)
    assert reply.status_code == 200, reply.text
    return reply.json()


def text_of(answer: dict) -> str:
    return answer["choices"][0]["message"]["content"]


def test_a_clip_is_asked_about_where_it_was_read(server, right):
    """Every further question finds the clip in the prefix cache: of replicas chosen at random every other would not."""
    with ThreadPoolExecutor(4) as pool:
        first = [*pool.map(lambda clip: ask(server, clip, QUESTIONS[0]), range(CLIPS))]
        asked = [(clip, question) for question in QUESTIONS[1:] for clip in range(CLIPS)]
        later = [*pool.map(lambda one: ask(server, *one), asked)]
    assert [text_of(one) for one in first] == [right[clip, QUESTIONS[0]] for clip in range(CLIPS)]
    assert [text_of(one) for one in later] == [right[one] for one in asked]
    assert all(one["usage"]["prompt_tokens_details"]["cached_tokens"] > 300 for one in later)


def test_both_replicas_answer(server, right):
    names = [f"clip-{number}" for number in range(24)]  # each a session of its own
    with ThreadPoolExecutor(4) as pool:
        found = [*pool.map(lambda name: ask(server, 0, QUESTIONS[0], uuid=name), names)]
    assert {text_of(one) for one in found} == {right[0, QUESTIONS[0]]}
    answered = server.metric("request_success_total")
    assert len({re.search('replica="(.*?)"', labels)[1] for labels, value in answered.items() if value}) == 2


@dataclass
class Streams:
    """Clients that ask one stream after another, and what became of each."""

    server: Server
    right: dict[tuple[int, str], str]
    outcomes: Counter = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    broken: list[float] = field(default_factory=list)  # when each of these ended
    stop: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def wait_for(self, count: int, seconds: float = 120) -> None:
        """Until so many have ended."""
        until = time.monotonic() + seconds
        while self.outcomes.total() < count:
            assert time.monotonic() < until, self.outcomes
            time.sleep(0.05)

    def run(self, client: int) -> None:
        number = 0
        while not self.stop.is_set():
            clip, question = number % CLIPS, QUESTIONS[(client + number) % len(QUESTIONS)]
            asked = body(clip, question, uuid=f"{client}-{number}", stream=True)
            reply = httpx.post(f"{self.server.url}{CHAT}", json=asked, timeout=120)
            outcome = self.outcome(reply, self.right[clip, question])
            with self.lock:
                self.outcomes[outcome] += 1
                if outcome == "broken":
                    self.broken.append(time.monotonic())
            number += 1

    def outcome(self, reply: httpx.Response, wanted: str) -> str:
        """`whole`, `broken` with one clean error, `refused` with 503; else it is noted as wrong."""
        if reply.status_code == 503:
            return "refused"
        events = [line.removeprefix("data: ") for line in reply.text.split("\n\n") if line.startswith("data: ")]
        chunks = [json.loads(one) for one in events if one != "[DONE]"]
        text = "".join(one["choices"][0]["delta"].get("content") or "" for one in chunks if "choices" in one)
        errors = [one["error"]["code"] for one in chunks if "error" in one]
        if reply.status_code == 200 and events[-1] == "[DONE]":
            if not errors and text == wanted:
                return "whole"
            if errors == ["replica_lost"] and wanted.startswith(text) and "error" in chunks[-1]:
                return "broken"
        self.wrong.append(f"{reply.status_code} {reply.text[-500:]} is not {wanted}")
        return "wrong"


def test_a_node_killed_under_streams_gives_no_wrong_answer(server, two, right):
    server.wait_for(2)
    streams, clients = Streams(server, right), 6
    doomed = two.processes()
    assert any("Replica" in command_of(pid) for pid in doomed)
    with ThreadPoolExecutor(clients) as pool:
        running = [pool.submit(streams.run, client) for client in range(clients)]
        try:
            streams.wait_for(2 * clients)  # by now all of them are in the midst of one
            before, killed = streams.outcomes.copy(), time.monotonic()
            two.kill()
            streams.wait_for(before.total() + 2 * clients)
        finally:
            streams.stop.set()
        for one in running:
            one.result()
    assert not streams.wrong, streams.wrong[0]
    lost = server.metric("proxy_replica_lost_total")
    seconds = [round(one - killed, 2) for one in streams.broken]
    print(f"\nbefore the kill {dict(before)}, in all {dict(streams.outcomes)}, lost {lost}, broken after {seconds} s")  # noqa: T201 - a figure of the page
    assert streams.outcomes["broken"] + lost.get('outcome="retried"', 0) > 0  # it was hit
    assert streams.outcomes["whole"] > before["whole"]
    assert streams.outcomes["refused"] == lost.get('outcome="refused"', 0)
    for clip in range(CLIPS):  # by the other one
        assert text_of(ask(server, clip, QUESTIONS[0])) == right[clip, QUESTIONS[0]]
    until = time.monotonic() + 20
    while left := [command for command in map(command_of, doomed) if command]:
        assert time.monotonic() < until, left
        time.sleep(0.2)


def test_a_node_that_comes_gets_a_replica(server, two, right):
    assert server.replicas() == 1
    two.revive()
    server.wait_for(2)
    for clip in range(CLIPS):
        assert text_of(ask(server, clip, QUESTIONS[1])) == right[clip, QUESTIONS[1]]


def test_a_client_that_leaves_ends_its_answer(server):
    for number in range(10):
        asked = body(number % CLIPS, "Describe the scene.", uuid=f"left-{number}", stream=True)
        with httpx.stream("POST", f"{server.url}{CHAT}", json=asked, timeout=60) as reply:
            next(reply.iter_bytes())
    until = time.monotonic() + 10
    gauges = ("num_requests_running", "num_requests_waiting", "num_cache_rows")
    while any(value for name in gauges for value in server.metric(name).values()):
        assert time.monotonic() < until, [server.metric(name) for name in gauges]
        time.sleep(0.1)


def test_a_capture_by_two_workers_is_that_of_one(two, server, tmp_path):
    """Runs last of the module: its workers need the replicas' cores, so the server is ended first."""
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(60) == 0
    target = load_target("reference", "cpu")
    info = CapturedTarget.of("reference", target)
    spec = capture_spec(info.depth, max_new_tokens=24)
    plan = CapturePlan(target, info, SceneSource(clips=6, prompts=4), spec, workers=0, shard_clips=2)
    alone = FeatureRecorder(target, spec, plan.batch, learns=False)
    capture(tmp_path / "one", plan, plan.resume(tmp_path / "one"), alone, lambda: None)
    many = tmp_path / "many"
    command = [sys.executable, "-m", "crossdraft", "capture", str(many), "--ray", "2", "--clips", "6", "--prompts", "4"]
    command += ["--max-new-tokens", "24", "--shard-clips", "2", "--json"]

    def run() -> dict:
        return json.loads(subprocess.run(command, env=environment(two), check=True, stdout=subprocess.PIPE).stdout)

    def shards(folder: Path) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in folder.glob("*.safetensors")}

    assert run()["clips"] == 6
    assert shards(many) == shards(tmp_path / "one")
    (many / "shard-00001.safetensors").unlink()
    assert run()["clips"] == 4  # from the one that is missing on
    assert shards(many) == shards(tmp_path / "one")
    assert run()["clips"] == 0
