"""vLLM's own server and ours with one target: both get the same questions from the same clients, in turn.

Its environment is described in docs/many_requests.md. Both servers decode the clip, cache clips and prompts as they do
by default, and run on all cores of this process. Every clip is new to both.
"""

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import crossdraft
from crossdraft.checkpoints.locate import REFERENCE, find_checkpoint
from crossdraft.errors import CrossdraftError
from crossdraft.video.clip import DEFAULT_FRAMES
from crossdraft_lab.bench.child_batches import VLLM_GIB
from crossdraft_lab.bench.experiments.record import Tick
from crossdraft_lab.bench.resources import halted
from crossdraft_lab.bench.serving.plan import CHAT, Question, ServePlan, percentiles_ms, question
from crossdraft_lab.bench.serving.process import Connection, await_health, free_port, serving
from crossdraft_lab.bench.statistics import ratio, ratio_per_token
from crossdraft_lab.bench.vllm_child import LONGEST, MOST
from crossdraft_lab.bench.workload import Workload, items

PLUGIN = Path(__file__).parents[5] / "plugins/vllm/src"  # in a checkout; else it is installed beside vLLM

LEAST_ALONE = 1.5  # least ratio of vLLM's answer time to ours, with one client
LEAST_SHARED = 1.0  # throughput over vLLM's, with the most clients
LEAST_QUESTIONS = 12  # questions in a block
START_S = 300.0
# The reference target has no chat template; this one puts the text where ours does.
TEMPLATE = "{{ bos_token }}{% for m in messages %}{{ m.role.upper() }}: {{ m.content }} {% endfor %}ASSISTANT:"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server: its port, its process, and the function that adapts a question's body to it."""

    port: int
    pid: int
    body_of: Callable[[bytes], bytes] = bytes


@dataclass(frozen=True, slots=True)
class TimedReply:
    """One answer: its text, its tokens, and the seconds from the request to its end."""

    text: str
    tokens: int
    seconds: float


def against_vllm(plan: ServePlan, python: Path, tick: Tick) -> dict[str, Any]:
    """Ask blocks of questions of either server in turn, while the other is stopped, at each number of clients.

    Args:
        plan: settings; `levels` are the numbers of clients, `repeats` the number of blocks of each.
        python: interpreter of an environment with vLLM.
        tick: called after every block.

    Raises:
        CrossdraftError: a server does not start, or an answer is refused.
    """
    folder = plan.folder / "vllm"
    clips = folder / "clips"
    clips.mkdir(parents=True)
    sizes = {level: max(LEAST_QUESTIONS, 2 * level) for level in plan.levels}
    count = sum(sizes.values()) * plan.repeats + LEAST_QUESTIONS
    asked = iter([question(plan, item) for item in items(Workload(count, files=clips))])
    ours = plan.flags(media_root=str(clips), max_batch=max(plan.levels), max_queue=max(plan.levels))
    with serving(ours, folder) as server, vllm_serving(plan.target, python, clips, folder) as vllm:
        ways = {"crossdraft": Endpoint(server.port, server.pid), "vllm": vllm}
        warm = [next(asked) for _ in range(LEAST_QUESTIONS)]
        for way in ways.values():
            _block(way, warm, min(plan.levels))
        levels = {}
        for level, size in sizes.items():
            got: dict[str, list[TimedReply]] = {name: [] for name in ways}
            wall: dict[str, list[float]] = {name: [] for name in ways}
            for block in range(plan.repeats):
                questions = [next(asked) for _ in range(size)]
                for name in list(ways) if block % 2 else reversed(list(ways)):
                    with halted(*(way.pid for other, way in ways.items() if other != name)):
                        start = time.perf_counter()
                        got[name] += _block(ways[name], questions, level)
                        wall[name].append(time.perf_counter() - start)
                tick("against vLLM")
            levels[str(level)] = _level(got, wall)
    alone, shared = levels[str(min(plan.levels))], levels[str(max(plan.levels))]
    sooner, rate = alone["sooner"], shared["throughput_ratio"]["value"]
    return {"passed": sooner >= LEAST_ALONE and rate >= LEAST_SHARED, "clients": levels}


def _level(got: dict[str, list[TimedReply]], wall: dict[str, list[float]]) -> dict[str, Any]:
    """Figures for one number of clients; ratios of throughput are drawn over blocks, those of times over questions."""
    ours, theirs = got["crossdraft"], got["vllm"]
    sooner = ratio([one.seconds for one in theirs], [one.seconds for one in ours])
    tokens = {name: _by_block(answers, len(wall[name])) for name, answers in got.items()}
    rates = {name: sum(each) / sum(wall[name]) for name, each in tokens.items()}
    over = ratio_per_token(wall["vllm"], tokens["vllm"], wall["crossdraft"], tokens["crossdraft"])
    return {
        "requests": len(ours),
        "same_text": sum(one.text == other.text.strip() for one, other in zip(ours, theirs, strict=True)),
        "e2e_ms": {name: percentiles_ms([one.seconds for one in answers]) for name, answers in got.items()},
        **sooner.to_json("sooner"),
        "tokens_per_s": {name: round(rate, 1) for name, rate in rates.items()},
        "throughput_ratio": over.to_json(),
    }


def _by_block(answers: Sequence[TimedReply], blocks: int) -> list[int]:
    size = len(answers) // blocks
    return [sum(one.tokens for one in answers[block * size : (block + 1) * size]) for block in range(blocks)]


def _block(way: Endpoint, asked: Sequence[Question], clients: int) -> list[TimedReply]:
    """Let `clients` clients ask the questions, each client one question after another."""
    bodies = [way.body_of(one.body) for one in asked]

    def ask(number: int) -> list[TimedReply]:
        with Connection(way.port) as connection:
            return [_ask(connection, body) for body in bodies[number::clients]]

    with ThreadPoolExecutor(clients) as pool:
        found = list(pool.map(ask, range(clients)))
    return [found[number % clients][number // clients] for number in range(len(bodies))]


def _ask(connection: Connection, body: bytes) -> TimedReply:
    start = time.perf_counter()
    reply = connection.request("POST", CHAT, body)
    seconds = time.perf_counter() - start
    if reply.status != 200:
        raise CrossdraftError(f"A server refused a question with status {reply.status}: {reply.body[:300]!r}")
    found = reply.json
    return TimedReply(found["choices"][0]["message"]["content"], found["usage"]["completion_tokens"], seconds)


def _for_vllm(clips: Path) -> Callable[[bytes], bytes]:
    """Make the function that adapts a question's body to vLLM: without events, and with whole paths."""

    def body_of(body: bytes) -> bytes:
        found = json.loads(body)
        (message,) = found["messages"]
        video, _, text = message["content"]
        name = video["video_url"]["url"].removeprefix("file:")
        message["content"] = [{"type": "video_url", "video_url": {"url": f"file://{clips / name}"}}, text]
        return json.dumps(found | {"model": "target"}).encode()

    return body_of


@contextmanager
def vllm_serving(target: str, python: Path, clips: Path, folder: Path) -> Iterator[Endpoint]:
    """Run vLLM's OpenAI server on loopback, with the target and no drafter, while the context is open.

    Raises:
        CrossdraftError: the server does not start.
    """
    source = find_checkpoint(target, {"reference": REFERENCE / "target"})
    port, log = free_port(), folder / "vllm.log"
    arguments = {
        "model": str(source), "served-model-name": "target", "host": "127.0.0.1", "port": str(port),
        "dtype": "float32", "max-model-len": str(LONGEST), "max-num-seqs": str(MOST),
        "allowed-local-media-path": str(clips), "chat-template": TEMPLATE,
        "media-io-kwargs": json.dumps({"video": {"num_frames": DEFAULT_FRAMES}}),
    }  # fmt: skip
    flags = [part for name, value in arguments.items() for part in (f"--{name}", value)]
    command = [str(python), "-m", "vllm.entrypoints.openai.api_server", *flags, "--enforce-eager"]
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
    variables = {
        "PYTHONPATH": os.pathsep.join(
            [str(Path(crossdraft.__file__).parents[1]), str(PLUGIN), str(_known_to_vllm(folder))]
        ),
        "VLLM_CPU_KVCACHE_SPACE": str(VLLM_GIB),
        "VLLM_CPU_OMP_THREADS_BIND": cores,
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    with log.open("wb") as records:
        process = subprocess.Popen(
            command, stdout=records, stderr=subprocess.STDOUT, env=os.environ | variables, cwd=folder
        )
    try:
        await_health(process, port, log, "vLLM's server", START_S)
        yield Endpoint(port, process.pid, _for_vllm(clips))
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _known_to_vllm(folder: Path) -> Path:
    """Write the plug-in's entry point as pip does, by which vLLM finds our Video-LLaVA; return the folder."""
    known = folder / "packages" / f"crossdraft_vllm-{crossdraft.__version__}.dist-info"
    known.mkdir(parents=True)
    known.joinpath("METADATA").write_text(
        f"Metadata-Version: 2.1\nName: crossdraft-vllm\nVersion: {crossdraft.__version__}\n"
    )
    known.joinpath("entry_points.txt").write_text(
        "[vllm.general_plugins]\ncrossdraft = crossdraft_vllm.plugin:register\n"
    )
    return known.parent
