"""A Ray cluster of two nodes, a server whose replicas run there, and clients that ask it; for `test_ray.py`."""

import contextlib
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
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from crossdraft_lab.bench.resources import PROC, descendants

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


@contextlib.contextmanager
def two_nodes() -> Iterator[Two]:
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

    def answered(self) -> Counter[str]:
        """How many requests each replica has answered."""
        found = Counter[str]()
        for labels, value in self.metric("request_success_total").items():
            found[re.search('replica="(.*?)"', labels)[1]] += int(value)
        return +found

    def lost(self) -> Counter[str]:
        """What became of requests whose replica was lost."""
        found = self.metric("proxy_replica_lost_total")
        return Counter({labels.split('"')[1]: int(value) for labels, value in found.items()})

    def wait_for(self, replicas: int, seconds: float = 120) -> None:
        until = time.monotonic() + seconds
        while self.replicas() != replicas:
            assert time.monotonic() < until, (self.replicas(), self.log.read_text()[-3000:])
            time.sleep(0.5)

    def end(self) -> None:
        """As a signal does; once more does nothing."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(60) == 0, self.log.read_text()


@contextlib.contextmanager
def serving(two: Two, media: Path, log: Path, **bounds: int) -> Iterator[Server]:
    """A server as long as the context.

    Args:
        two: where its replicas run.
        media: its folder of clips.
        log: a file, for what it logs.
        bounds: settings that count something.
    """
    command = [sys.executable, "-m", "crossdraft", "serve", "--ray", "--port", "0", "--media-root", str(media)]
    command += ["--max-queue", "64", "--placement", "inline"]
    command += [part for name, value in bounds.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    with log.open("wb") as file:
        process = subprocess.Popen(command, env=environment(two), stdout=subprocess.PIPE, stderr=file, text=True)
    try:
        line = process.stdout.readline()
        started = STARTED.match(line)
        assert started, (line, log.read_text())
        server = Server(started[1], process, log)
        yield server
        server.end()
    finally:
        process.kill()
        process.wait()


def body(clip: int, question: str, uuid: str | None = None, **more) -> dict:
    named = {} if uuid is None else {"uuid": uuid}
    shown = [
        {"type": "video_url", "video_url": {"url": f"file:{clip}.mp4"}, **named},
        {"type": "event_url", "event_url": {"url": f"file:{clip}.h5"}},
        {"type": "text", "text": question},
    ]
    limits = {"max_tokens": LONG, "min_tokens": LONG}
    return {"model": "reference", "messages": [{"role": "user", "content": shown}], **limits, **more}


def ask(server: Server, clip: int, question: str, **more) -> dict:
    reply = httpx.post(f"{server.url}{CHAT}", json=body(clip, question, **more), timeout=120)
    assert reply.status_code == 200, reply.text
    return reply.json()


def text_of(answer: dict) -> str:
    return answer["choices"][0]["message"]["content"]


@dataclass
class Streams:
    """Clients that ask one stream after another, and what became of each."""

    server: Server
    right: Mapping[tuple[int, str], str]
    outcomes: Counter = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    broken: list[float] = field(default_factory=list)  # when each of these ended
    stop: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @contextlib.contextmanager
    def by(self, clients: int) -> Iterator[None]:
        """So many clients, as long as the context."""
        with ThreadPoolExecutor(clients) as pool:
            running = [pool.submit(self.run, client) for client in range(clients)]
            try:
                yield
            finally:
                self.stop.set()
            for one in running:
                one.result()

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
