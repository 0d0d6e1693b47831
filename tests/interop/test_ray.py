"""Replicas and workers on a real Ray cluster of two nodes: `make interop-ray`, in an environment that has Ray.

One node is killed while streams run. A stream may end with one error, or be answered by the other replica; no answer
may be wrong, none may end without saying so.

`INTEROP_JSON=FILE` writes what each case counted, once all have passed.
"""

import asyncio
import importlib.util
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path

import httpx
import pytest

from crossdraft.load import load_target
from crossdraft.serve.app import create_app
from crossdraft.serve.service import Service, load_engine
from crossdraft.serve.settings import read_settings
from crossdraft_lab.scenes import make_scene, split_seeds, write_clip
from crossdraft_lab.train.capture.plan import CapturedTarget, CapturePlan, capture_spec
from crossdraft_lab.train.capture.recorder import FeatureRecorder
from crossdraft_lab.train.capture.run import capture
from crossdraft_lab.train.capture.sources import SceneSource
from tests.interop.ray_cluster import (
    CHAT,
    CLIPS,
    QUESTIONS,
    Server,
    Streams,
    Two,
    ask,
    body,
    command_of,
    environment,
    serving,
    text_of,
    two_nodes,
)

pytestmark = [
    pytest.mark.slow,
    # Not imported here: it reads the mode of its tokens once.
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None,
        reason="needs Ray, which only the environment of `make interop-ray` has",
    ),
]

CASES = {"questions", "sessions", "kills", "left", "capture", "autoscaling"}
CLIENTS = 6
KILLS = 3
UPSCALE_S = 120  # Ray waits half a minute before it adds a replica, and that has an engine to load

Answers = dict[tuple[int, str], str]
Counts = dict[str, object]


@pytest.fixture(scope="module")
def counted() -> Iterator[dict[str, Counts | list[Counts]]]:
    """What each case counted, by its name."""
    cases: dict[str, Counts | list[Counts]] = {}
    yield cases
    path = os.environ.get("INTEROP_JSON")
    if path is None:
        return
    passed, kills = ", ".join(sorted(cases)), len(cases.get("kills", ()))
    whole = cases.keys() == CASES and kills == KILLS
    assert whole, f"INTEROP_JSON was not written: passed are only {passed}; of {KILLS} kills {kills}"
    versions = {name: version(name) for name in ("ray", "torch", "transformers")}
    around = {"python": platform.python_version(), "cpus": os.cpu_count(), "clients": CLIENTS}
    text = json.dumps({"versions": versions, **around, "cases": cases}, indent=1)
    Path(path).write_text(f"{text}\n", encoding="utf-8")


@pytest.fixture(scope="module")
def two() -> Iterator[Two]:
    with two_nodes() as two:
        yield two


@pytest.fixture(scope="module")
def media(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("media")
    for number, seed in enumerate(split_seeds("test")[:CLIPS]):
        clip = write_clip(make_scene(seed), root)
        clip.video.rename(root / f"{number}.mp4")
        clip.events.rename(root / f"{number}.h5")
    return root


@pytest.fixture(scope="module")
def server(two, media, tmp_path_factory) -> Iterator[Server]:
    with serving(two, media, tmp_path_factory.mktemp("serve") / "log", min_replicas=2, max_replicas=2) as server:
        yield server


@pytest.fixture(scope="module")
def right(media) -> Answers:
    """The answers of the target alone, by a server of one process."""
    settings = read_settings(None, {"media_root": media, "drafter": "none", "placement": "inline"})
    with load_engine(settings) as engine:
        service = Service(settings, engine)
        app = create_app(service)

        async def answers() -> Answers:
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


def test_a_clip_is_asked_about_where_it_was_read(server, right, counted):
    """Every further question finds the clip in the prefix cache: of replicas chosen at random every other would not."""
    with ThreadPoolExecutor(4) as pool:
        first = [*pool.map(lambda clip: ask(server, clip, QUESTIONS[0]), range(CLIPS))]
        asked = [(clip, question) for question in QUESTIONS[1:] for clip in range(CLIPS)]
        later = [*pool.map(lambda one: ask(server, *one), asked)]
    assert [text_of(one) for one in first] == [right[clip, QUESTIONS[0]] for clip in range(CLIPS)]
    assert [text_of(one) for one in later] == [right[one] for one in asked]
    cached = sum(one["usage"]["prompt_tokens_details"]["cached_tokens"] > 300 for one in later)
    assert cached == len(later)
    tokens = {one["usage"]["completion_tokens"] for one in (*first, *later)}
    assert len(tokens) == 1
    counts = {"clips": CLIPS, "answers": len(first) + len(later), "tokens": tokens.pop()}
    counted["questions"] = {**counts, "later": len(later), "cached": cached}


def test_both_replicas_answer(server, right, counted):
    before = server.answered()
    names = [f"clip-{number}" for number in range(24)]  # each a session of its own
    with ThreadPoolExecutor(4) as pool:
        found = [*pool.map(lambda name: ask(server, 0, QUESTIONS[0], uuid=name), names)]
    assert {text_of(one) for one in found} == {right[0, QUESTIONS[0]]}
    answered = server.answered() - before
    assert (len(answered), answered.total()) == (2, len(names))
    counted["sessions"] = {"sessions": len(names), "by_replica": sorted(answered.values())}


@pytest.mark.parametrize("run", range(KILLS))
def test_a_node_killed_under_streams_gives_no_wrong_answer_and_a_new_one_gets_a_replica(
    server, two, right, counted, run
):
    server.wait_for(2)
    streams, lost_before = Streams(server, right), server.lost()
    doomed = two.processes()
    assert any("Replica" in command_of(pid) for pid in doomed)
    with streams.by(CLIENTS):
        streams.wait_for(2 * CLIENTS)  # by now all of them are in the midst of one
        before, killed = streams.outcomes.copy(), time.monotonic()
        two.kill()
        streams.wait_for(before.total() + 2 * CLIENTS)
    assert not streams.wrong, streams.wrong[0]
    lost = server.lost() - lost_before
    assert streams.outcomes["broken"] + lost["retried"] > 0  # it was hit
    assert streams.outcomes["whole"] > before["whole"]
    assert (streams.outcomes["refused"], streams.outcomes["broken"]) == (lost["refused"], lost["broken"])
    for clip in range(CLIPS):  # by the other one
        assert text_of(ask(server, clip, QUESTIONS[0])) == right[clip, QUESTIONS[0]]
    until = time.monotonic() + 20
    while left := [command for command in map(command_of, doomed) if command]:
        assert time.monotonic() < until, left
        time.sleep(0.2)

    assert server.replicas() == 1
    two.revive()
    server.wait_for(2)
    for clip in range(CLIPS):
        assert text_of(ask(server, clip, QUESTIONS[1])) == right[clip, QUESTIONS[1]]
    counts = {name: streams.outcomes[name] for name in ("whole", "broken", "refused")}
    seconds = [round(one - killed, 2) for one in streams.broken]
    rows = counted.setdefault("kills", [])
    rows.append({**counts, "retried": lost["retried"], "broken_after_s": seconds, "later": CLIPS, "by_two": CLIPS})


def test_a_client_that_leaves_ends_its_answer(server, counted):
    streams = 10
    for number in range(streams):
        asked = body(number % CLIPS, "Describe the scene.", uuid=f"left-{number}", stream=True)
        with httpx.stream("POST", f"{server.url}{CHAT}", json=asked, timeout=60) as reply:
            next(reply.iter_bytes())
    until = time.monotonic() + 10
    gauges = ("num_requests_running", "num_requests_waiting", "num_cache_rows")
    while any(value for name in gauges for value in server.metric(name).values()):
        assert time.monotonic() < until, [server.metric(name) for name in gauges]
        time.sleep(0.1)
    counted["left"] = {"streams": streams}


def test_a_capture_by_two_workers_is_that_of_one(two, server, counted, tmp_path):
    """Its workers need the replicas' cores, so the server is ended first, and no test behind this one asks it."""
    server.end()
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
    counted["capture"] = {"workers": 2, "clips": 6, "shards": len(shards(many)), "clips_of_the_resumed": 4}


def test_under_load_a_second_replica_is_added(two, server, media, right, counted, tmp_path):
    """On the cores of the server of the other tests, which is ended first."""
    server.end()
    with serving(two, media, tmp_path / "log", min_replicas=1, max_replicas=2, max_batch=1) as scaled:
        assert scaled.replicas() == 1
        streams, start = Streams(scaled, right), time.monotonic()
        with streams.by(CLIENTS):
            while len(scaled.answered()) < 2:
                assert time.monotonic() < start + UPSCALE_S, (scaled.replicas(), streams.outcomes)
                time.sleep(0.5)
            seconds = time.monotonic() - start
        assert not streams.wrong, streams.wrong[0]
        answers = streams.outcomes.total()
        assert streams.outcomes == {"whole": answers}  # each with status 200, and the target's own text
        answered = scaled.answered()
        assert (len(answered), answered.total()) == (2, answers)
    counted["autoscaling"] = {"answers": answers, "by_replica": sorted(answered.values()), "seconds": round(seconds)}
