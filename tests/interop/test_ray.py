"""Replicas on a real Ray cluster of two nodes: `make interop-ray`, in an environment that has Ray.

One node is killed while streams run. A stream may end with one error, or be answered by the other replica; no answer
may be wrong, none may end without saying so.

`INTEROP_JSON=FILE` writes what each case counted, once all have passed.
"""

import asyncio
import contextlib
import importlib.util
import json
import os
import platform
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path

import httpx
import pytest

from crossdraft.serve.app import create_app
from crossdraft.serve.service import Service, load_engine
from crossdraft.serve.settings import read_settings
from crossdraft_lab.bench.resources import descendants
from crossdraft_lab.scenes import make_scene, split_seeds, write_clip

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None,
        reason="needs Ray, which only the environment of `make interop-ray` has",
    ),
]

CHAT = "/v1/chat/completions"
STORE = 200 << 20  # bytes of a node's object store
CLIPS = 3
CLIENTS = 6
LONG = 200  # tokens of an answer: it takes long enough for a node to be killed meanwhile
QUESTIONS = ("What is the car in front doing?", "What is ahead?", "Describe the road.")


@pytest.fixture(scope="module")
def counted() -> Iterator[dict[str, object]]:
    """What each case counted, by its name."""
    cases: dict[str, object] = {}
    yield cases
    path = os.environ.get("INTEROP_JSON")
    if path is None:
        return
    assert cases.keys() == {"questions", "kill", "left"}, f"INTEROP_JSON was not written: passed are only {cases}"
    versions = {name: version(name) for name in ("ray", "torch", "transformers")}
    around = {"python": platform.python_version(), "cpus": os.cpu_count(), "clients": CLIENTS}
    text = json.dumps({"versions": versions, **around, "cases": cases}, indent=1)
    Path(path).write_text(f"{text}\n", encoding="utf-8")


@pytest.fixture(scope="module")
def media(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("media")
    for number, seed in enumerate(split_seeds("test")[:CLIPS]):
        clip = write_clip(make_scene(seed), root)
        clip.video.rename(root / f"{number}.mp4")
        clip.events.rename(root / f"{number}.h5")
    return root


@pytest.fixture(scope="module")
def right(media) -> dict[tuple[int, str], str]:
    """The answers of the target alone, by a server of one process."""
    settings = read_settings(None, {"media_root": media, "drafter": "none", "placement": "inline"})
    with load_engine(settings) as engine:
        service = Service(settings, engine)

        async def answers() -> dict[tuple[int, str], str]:
            transport, found = httpx.ASGITransport(app=create_app(service)), {}
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=60) as client:
                for clip in range(CLIPS):
                    for question in QUESTIONS:
                        found[clip, question] = text_of((await client.post(CHAT, json=body(clip, question))).json())
            return found

        try:
            return asyncio.run(answers())
        finally:
            service.close()


@pytest.fixture(scope="module")
def two(media, right) -> Iterator["TwoNodes"]:
    """Two replicas on two nodes of one core each. The answers that are right were made before, on the same cores."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray
    from ray import serve
    from ray.cluster_utils import Cluster

    from crossdraft_ray.deployment import application

    head = {"num_cpus": 1, "object_store_memory": STORE, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        second = cluster.add_node(num_cpus=1, object_store_memory=STORE)
        ray.init(cluster.address, log_to_driver=False)
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": port})
        settings = {"media_root": str(media), "placement": "inline", "max_queue": 64, "min_replicas": 2}
        serve.run(application(settings), route_prefix="/")
        yield TwoNodes(f"http://127.0.0.1:{port}", cluster, second)
    finally:
        with contextlib.suppress(Exception):
            serve.shutdown()
        ray.shutdown()
        cluster.shutdown()


class TwoNodes:
    """Replicas on two nodes, the second of which may be killed."""

    def __init__(self, url: str, cluster: object, second: object) -> None:
        self.url, self.cluster, self.second = url, cluster, second

    def replicas(self) -> int:
        from ray import serve

        return serve.status().applications["default"].deployments["replica"].replica_states.get("RUNNING", 0)

    def wait_for(self, replicas: int, seconds: float = 180) -> None:
        until = time.monotonic() + seconds
        while self.replicas() != replicas:
            assert time.monotonic() < until, self.replicas()
            time.sleep(0.5)

    def kill(self) -> None:
        nodes = [info.process.pid for infos in self.second.all_processes.values() for info in infos]
        for pid in [*nodes, *(child for node in nodes for child in descendants(node))]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.cluster.remove_node(self.second, allow_graceful=False)

    def revive(self) -> None:
        self.second = self.cluster.add_node(num_cpus=1, object_store_memory=STORE)

    def ask(self, clip: int, question: str, **more) -> dict:
        reply = httpx.post(f"{self.url}{CHAT}", json=body(clip, question, **more), timeout=120)
        assert reply.status_code == 200, reply.text
        return reply.json()


def body(clip: int, question: str, uuid: str | None = None, **more) -> dict:
    named = {} if uuid is None else {"uuid": uuid}
    shown = [
        {"type": "video_url", "video_url": {"url": f"file:{clip}.mp4"}, **named},
        {"type": "event_url", "event_url": {"url": f"file:{clip}.h5"}},
        {"type": "text", "text": question},
    ]
    limits = {"max_tokens": LONG, "min_tokens": LONG}
    return {"model": "reference", "messages": [{"role": "user", "content": shown}], **limits, **more}


def text_of(answer: dict) -> str:
    return answer["choices"][0]["message"]["content"]


def outcome_of(reply: httpx.Response, wanted: str) -> str:
    """`whole`, `broken` with one clean error, `refused` with 503; else what is wrong."""
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
    return f"{reply.status_code} {reply.text[-500:]} is not {wanted}"


def test_a_clip_is_asked_about_where_it_was_read(two, right, counted):
    """Every further question finds the clip in the prefix cache: of replicas chosen at random every other would not."""
    with ThreadPoolExecutor(4) as pool:
        first = [*pool.map(lambda clip: two.ask(clip, QUESTIONS[0]), range(CLIPS))]
        asked = [(clip, question) for question in QUESTIONS[1:] for clip in range(CLIPS)]
        later = [*pool.map(lambda one: two.ask(*one), asked)]
    assert [text_of(one) for one in first] == [right[clip, QUESTIONS[0]] for clip in range(CLIPS)]
    assert [text_of(one) for one in later] == [right[one] for one in asked]
    cached = sum(one["usage"]["prompt_tokens_details"]["cached_tokens"] > 300 for one in later)
    assert cached == len(later)
    counted["questions"] = {"clips": CLIPS, "answers": len(first) + len(later), "later": len(later), "cached": cached}


def test_a_client_that_leaves_ends_its_answer(two, counted):
    for number in range(4):
        asked = body(number % CLIPS, "Describe the scene.", uuid=f"left-{number}", stream=True)
        with httpx.stream("POST", f"{two.url}{CHAT}", json=asked, timeout=60) as reply:
            next(reply.iter_bytes())
    start = time.monotonic()
    two.ask(0, QUESTIONS[0], max_tokens=1, min_tokens=1)  # soon, as nothing else runs any more
    assert time.monotonic() - start < 10
    counted["left"] = {"streams": 4}


def test_a_node_killed_under_streams_gives_no_wrong_answer_and_a_new_one_gets_a_replica(two, right, counted):
    two.wait_for(2)
    outcomes, stop = Counter[str](), threading.Event()

    def client(name: int) -> None:
        number = 0
        while not stop.is_set():
            clip, question = number % CLIPS, QUESTIONS[(name + number) % len(QUESTIONS)]
            asked = body(clip, question, uuid=f"{name}-{number}", stream=True)
            outcomes[outcome_of(httpx.post(f"{two.url}{CHAT}", json=asked, timeout=120), right[clip, question])] += 1
            number += 1

    def wait_for(count: int) -> None:
        until = time.monotonic() + 180
        while outcomes.total() < count:
            assert time.monotonic() < until, outcomes
            time.sleep(0.05)

    with ThreadPoolExecutor(CLIENTS) as pool:
        running = [pool.submit(client, name) for name in range(CLIENTS)]
        try:
            wait_for(2 * CLIENTS)  # by now all of them are in the midst of one
            whole = outcomes["whole"]
            two.kill()
            wait_for(outcomes.total() + 2 * CLIENTS)
        finally:
            stop.set()
        for one in running:
            one.result()
    assert outcomes.keys() <= {"whole", "broken", "refused"}, outcomes
    assert outcomes["whole"] > whole
    two.revive()
    two.wait_for(2)
    for clip in range(CLIPS):
        assert text_of(two.ask(clip, QUESTIONS[1])) == right[clip, QUESTIONS[1]]
    counted["kill"] = {name: outcomes[name] for name in ("whole", "broken", "refused")}
