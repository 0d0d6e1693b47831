"""`crossdraft bench serve`: what the server costs over the engine called directly, and how it bears many clients.

Everything is measured on loopback, on the machine's own cores: the clients' cost is in it, too.
"""

import itertools
import json
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from crossdraft.api import Engine
from crossdraft.bench.environment import environment
from crossdraft.bench.resources import flatness
from crossdraft.bench.serve_fuzz import Mutant, Seeds, run_fuzz
from crossdraft.bench.serve_process import Connection, ServerProcess, serving
from crossdraft.bench.workload import Item, Workload, items
from crossdraft.checks import whole
from crossdraft.engine.request import Answer, Request
from crossdraft.serve.service import load_engine
from crossdraft.serve.settings import ServerSettings, read_settings

CHAT = "/v1/chat/completions"
MOST_OVERHEAD_MS = 3.0  # p50 of a request, over the engine called directly
LEAST_THROUGHPUT = 0.98  # of the engine's own
MOST_GROWTH = 0.03  # of resident memory: (max - min) / median of the medians of parts
SETTLED, PARTS = 0.2, 8
INTERVAL_S = 0.5
KILL_EVERY_S = 4.0
SOON_S = 10.0

Tick = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ServePlan:
    """What to measure.

    Args:
        folder: where clips are written, and the server's log.
        target, drafter: as `crossdraft serve`.
        pairs: questions, each about a clip of its own.
        repeats: of each block of throughput.
        max_new_tokens: the longest answer.
        max_batch, max_queue: the server's.
        clients: that ask at a time, for so many `seconds`.
        seconds: see `clients`.
        cancels: streams that are left.
        kills: of the drafter, under load.
        mutants: mutated requests that are sent.
        seed: of what is drawn.
    """

    folder: Path
    target: str = "reference"
    drafter: str = "auto"
    pairs: int = 24
    repeats: int = 4
    max_new_tokens: int = 96
    max_batch: int = 4
    max_queue: int = 8
    clients: int = 50
    seconds: float = 300.0
    cancels: int = 200
    kills: int = 3
    mutants: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("pairs", "repeats", "max_new_tokens", "max_batch", "max_queue"):
            whole(name, getattr(self, name))
        for name in ("clients", "cancels", "kills", "mutants"):
            whole(name, getattr(self, name), least=0)

    @property
    def arguments(self) -> dict[str, Any]:
        """The server's settings."""
        return {
            "target": self.target,
            "drafter": self.drafter,
            "max_batch": self.max_batch,
            "max_queue": self.max_queue,
            "media_root": str(self.folder / "clips"),
        }

    @property
    def settings(self) -> ServerSettings:
        """The same for an engine of our own."""
        return read_settings(None, self.arguments)


@dataclass(frozen=True, slots=True)
class Question:
    """A question, as the server is asked and as the engine is, and the answer of the target alone."""

    body: bytes
    request: Request
    text: str = ""


@dataclass(frozen=True, slots=True)
class ServeReport:
    """What came out: one mapping for each part that was measured, with `passed` in each."""

    environment: Mapping[str, object]
    parts: Mapping[str, Mapping[str, Any]]

    @property
    def passed(self) -> bool:
        """Whether every part is as it should be."""
        return all(part["passed"] for part in self.parts.values())

    def to_json(self) -> dict[str, object]:
        """Plain values."""
        return {"environment": dict(self.environment), "passed": self.passed, **self.parts}


def run_serve(plan: ServePlan, tick: Tick = lambda _: None) -> ServeReport:
    """Measure everything that the plan asks for.

    Raises:
        CrossdraftError: the pair cannot be loaded, or the server does not start.
    """
    found, parts = environment(), dict[str, Mapping[str, Any]]()
    work = Workload(plan.pairs, max_new_tokens=plan.max_new_tokens, files=plan.folder / "clips")
    asked = [question(plan, item) for item in items(work)]
    flags = [part for name, value in plan.arguments.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    with serving(flags, plan.folder) as server:
        with load_engine(plan.settings) as engine:
            parts["overhead"] = overhead(server, engine, asked, tick)
            parts["throughput"] = throughput(plan, server, engine, asked, tick)
            asked = [replace(one, text=engine.alone(one.request).text) for one in asked]
        if plan.clients:
            parts["load"] = load(plan, server, asked, tick)
        if plan.cancels:
            parts["cancels"] = cancels(plan, server, asked, tick)
        if plan.kills:
            parts["kills"] = kills(plan, server, asked, tick)
        if plan.mutants:
            parts["mutants"] = fuzz(plan, server, tick)
    return ServeReport(found, parts)


def question(plan: ServePlan, item: Item) -> Question:
    """A pair of the workload."""
    request = replace(item.request, namespace="")
    video, events = Path(str(request.video)).name, Path(str(request.events)).name
    shown = [
        {"type": "video_url", "video_url": {"url": f"file:{video}"}},
        {"type": "event_url", "event_url": {"url": f"file:{events}"}},
        {"type": "text", "text": request.prompt},
    ]
    body = {
        "model": plan.settings.model,
        "messages": [{"role": "user", "content": shown}],
        "max_tokens": plan.max_new_tokens,
        "temperature": 0,
    }
    return Question(json.dumps(body).encode(), request)


def overhead(server: ServerProcess, engine: Engine, asked: Sequence[Question], tick: Tick) -> dict[str, Any]:
    """Each question twice by each way, in turn: about a clip that is new, and then known.

    A way's own time is what passes for whoever asks, less what the engine says that it took, queue included: so that
    answers which are drafted otherwise do not disturb the comparison.
    """
    own: dict[str, dict[str, list[float]]] = {
        "new": {"server": [], "direct": []},
        "known": {"server": [], "direct": []},
    }
    whole_s: dict[str, dict[str, list[float]]] = {kind: {"server": [], "direct": []} for kind in own}
    differ = 0
    with server.connection() as connection:
        for number, one in enumerate(asked):
            for kind in own:
                texts = set[str]()
                for way in ("server", "direct") if number % 2 else ("direct", "server"):
                    text, seconds, engines = _by_http(connection, one) if way == "server" else _directly(engine, one)
                    own[kind][way].append(seconds - engines)
                    whole_s[kind][way].append(seconds)
                    texts.add(text)
                differ += len(texts) > 1
            tick("overhead")
    found: dict[str, Any] = {
        kind: {
            "overhead_ms": {way: _ms(values) for way, values in own[kind].items()},
            "e2e_ms": {way: _ms(values) for way, values in whole_s[kind].items()},
            "added_ms_p50": round((median(own[kind]["server"]) - median(own[kind]["direct"])) * 1e3, 3),
            "e2e_difference_ms_p50": round(
                median(np.subtract(whole_s[kind]["server"], whole_s[kind]["direct"]).tolist()) * 1e3, 3
            ),
        }
        for kind in own
    }
    passed = found["known"]["added_ms_p50"] <= MOST_OVERHEAD_MS and not differ
    return {"passed": passed, "requests": 2 * len(asked), "answers_that_differ": differ, **found}


def _by_http(connection: Connection, one: Question) -> tuple[str, float, float]:
    """An answer, the seconds that it took, and those that the engine says it took."""
    start = time.perf_counter()
    reply = connection.request("POST", CHAT, one.body)
    seconds = time.perf_counter() - start
    found = reply.json
    times = found["metrics"]
    engines = times["queue_time_ms"] + times["time_to_first_token_ms"] + times["generation_time_ms"]
    return found["choices"][0]["message"]["content"], seconds, engines / 1e3


def _directly(engine: Engine, one: Question) -> tuple[str, float, float]:
    start = time.perf_counter()
    answer: Answer = engine.generate(one.request)
    seconds = time.perf_counter() - start
    return answer.text, seconds, answer.stats.queued_s + answer.stats.total_s


def throughput(
    plan: ServePlan, server: ServerProcess, engine: Engine, asked: Sequence[Question], tick: Tick
) -> dict[str, Any]:
    """As many threads as share a pass ask all questions, whose clips are known by now; blocks of both ways in turn."""

    def by_http(one: Question) -> int:
        return connections.get().request("POST", CHAT, one.body).json["usage"]["completion_tokens"]

    def directly(one: Question) -> int:
        return len(engine.generate(one.request).tokens)

    connections = _PerThread(server)
    tokens, seconds = Counter[str](), Counter[str]()
    with ThreadPoolExecutor(plan.max_batch) as pool:
        for block in range(plan.repeats + 1):  # the first one warms up
            ways = [("server", by_http), ("direct", directly)]
            for name, way in ways if block % 2 else reversed(ways):
                start = time.perf_counter()
                written = sum(pool.map(way, asked))
                if block:
                    tokens[name] += written
                    seconds[name] += time.perf_counter() - start
            tick("throughput")
    connections.close()
    rates = {name: tokens[name] / seconds[name] for name in ("server", "direct")}
    ratio = rates["server"] / rates["direct"]
    shown = {name: round(rate, 1) for name, rate in rates.items()}
    return {
        "passed": ratio >= LEAST_THROUGHPUT,
        "threads": plan.max_batch,
        "tokens_per_s": shown,
        "ratio": round(ratio, 4),
    }


class _PerThread:
    """A connection for each thread."""

    def __init__(self, server: ServerProcess) -> None:
        self._server, self._local, self._all = server, threading.local(), list[Connection]()

    def get(self) -> Connection:
        """This thread's."""
        if not hasattr(self._local, "connection"):
            self._local.connection = self._server.connection()
            self._all.append(self._local.connection)
        return self._local.connection

    def close(self) -> None:
        """Close all."""
        for one in self._all:
            one.__exit__()


class _Crew:
    """Threads that ask until they are told to stop, and what they got."""

    def __init__(self, server: ServerProcess, asked: Sequence[Question]) -> None:
        self._server, self._asked = server, asked
        self.statuses = Counter[str]()
        self.latencies: list[float] = []
        self.wrong = 0
        self._stop = threading.Event()
        self._lock = threading.Lock()

    def run(self, clients: int, seconds: float, watch: Callable[[], None]) -> None:
        """Ask from so many threads for so long; `watch` is called again and again meanwhile."""
        threads = [threading.Thread(target=self._ask, args=(number,)) for number in range(clients)]
        for thread in threads:
            thread.start()
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            watch()
            time.sleep(INTERVAL_S)
        self._stop.set()
        for thread in threads:
            thread.join()

    def _ask(self, number: int) -> None:
        with self._server.connection() as connection:
            for one in itertools.islice(itertools.cycle(self._asked), number, None):
                if self._stop.is_set():
                    return
                start = time.perf_counter()
                try:
                    reply = connection.request("POST", CHAT, one.body)
                except OSError as error:
                    self._count(type(error).__name__)
                    continue
                seconds = time.perf_counter() - start
                right = reply.status != 200 or reply.json["choices"][0]["message"]["content"] == one.text
                self._count(str(reply.status), seconds if reply.status == 200 else None, right=right)
                if reply.status == 503:
                    self._stop.wait(reply.retry_s)

    def _count(self, status: str, seconds: float | None = None, *, right: bool = True) -> None:
        with self._lock:
            self.statuses[status] += 1
            self.wrong += not right
            if seconds is not None:
                self.latencies.append(seconds)


def load(plan: ServePlan, server: ServerProcess, asked: Sequence[Question], tick: Tick) -> dict[str, Any]:
    """Many clients at once: only 200 and 503, latency bounded by the queue, memory flat."""
    crew, memory = _Crew(server, asked), list[float]()

    def watch() -> None:
        memory.append(server.resident_mib())

    crew.run(plan.clients, plan.seconds, watch)
    tick("load")
    settled = memory[int(SETTLED * len(memory)) :]
    growth = flatness(_part_medians(settled))
    return {
        "passed": set(crew.statuses) <= {"200", "503"} and not crew.wrong and growth <= MOST_GROWTH,
        "clients": plan.clients,
        "seconds": plan.seconds,
        "statuses": dict(crew.statuses),
        "wrong_answers": crew.wrong,
        "latency_ms": _ms(crew.latencies),
        "resident_mib": {"first": round(settled[0], 1), "last": round(settled[-1], 1), "most": round(max(memory), 1)},
        "growth": round(growth, 4),
    }


def cancels(plan: ServePlan, server: ServerProcess, asked: Sequence[Question], tick: Tick) -> dict[str, Any]:
    """Streams that are left at once, or after a few bytes: nothing of them may stay."""
    draw = random.Random(plan.seed)  # noqa: S311 - no secret
    for one in itertools.islice(itertools.cycle(asked), plan.cancels):
        body = json.loads(one.body) | {"stream": True}
        with server.connection() as connection, suppress(OSError):
            connection.send("POST", CHAT, json.dumps(body).encode())
            for _ in range(draw.randrange(4)):
                connection.read_some()
    tick("cancels")
    start = time.monotonic()
    while time.monotonic() - start < SOON_S:
        gauges = server.gauges()
        left = {name: int(gauges[name]) for name in ("num_requests_running", "num_requests_waiting", "num_cache_rows")}
        left["files"] = server.spooled()
        if not any(left.values()):
            break
    return {"passed": not any(left.values()), "cancels": plan.cancels, "left": left}


def kills(plan: ServePlan, server: ServerProcess, asked: Sequence[Question], tick: Tick) -> dict[str, Any]:
    """The drafter is killed now and then while clients ask: no answer may be wrong or lost."""
    crew, killed, start = _Crew(server, asked), [0], time.monotonic()

    def watch() -> None:
        due = time.monotonic() - start > (killed[0] + 1) * KILL_EVERY_S
        if due and killed[0] < plan.kills and (pids := server.drafters()):
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            killed[0] += 1

    crew.run(plan.max_batch, (plan.kills + 2) * KILL_EVERY_S, watch)
    tick("kills")
    return {
        "passed": set(crew.statuses) == {"200"} and not crew.wrong and killed[0] == plan.kills,
        "kills": killed[0],
        "statuses": dict(crew.statuses),
        "wrong_answers": crew.wrong,
        "latency_ms": _ms(crew.latencies),
    }


def fuzz(plan: ServePlan, server: ServerProcess, tick: Tick) -> dict[str, Any]:
    """Mutated requests: answered, refused or no room, and the server is there afterwards."""
    clips = plan.folder / "clips"
    seeds = Seeds.read(plan.settings.model, min(clips.glob("*.mp4")), min(clips.glob("*.h5")))
    memory = [server.resident_mib()]
    with server.connection() as connection:

        def send(one: Mutant) -> int:
            try:
                status = connection.request("POST", one.path, one.content, one.headers).status
            except (OSError, EOFError):
                return 0
            memory.append(server.resident_mib() if len(memory) % 100 == 0 else memory[-1])
            return status

        start = time.monotonic()
        found = run_fuzz(send, seeds, plan.mutants, plan.seed)
        seconds = time.monotonic() - start
        alive = connection.request("GET", "/health").status == 200
    tick("mutants")
    return {
        "passed": alive and not any("!" in name for name in found) and not server.spooled(),
        "mutants": plan.mutants,
        "seconds": round(seconds, 1),
        "outcomes": dict(sorted(found.items())),
        "resident_mib": {"first": round(memory[0], 1), "most": round(max(memory), 1)},
    }


def _part_medians(values: Sequence[float]) -> list[float]:
    bounds = [len(values) * part // PARTS for part in range(PARTS + 1)]
    return [median(values[start:stop]) for start, stop in itertools.pairwise(bounds) if stop > start]


def _ms(seconds: Sequence[float]) -> dict[str, float]:
    """Percentiles in ms; nothing of nothing."""
    if not seconds:
        return {}
    values = np.percentile(np.asarray(seconds) * 1e3, [50, 95, 99, 100])
    return {name: round(float(value), 3) for name, value in zip(("p50", "p95", "p99", "max"), values, strict=True)}


def lines(report: ServeReport) -> list[str]:
    """Sentences for people."""
    parts, found = report.parts, list[str]()
    for kind in ("new", "known"):
        one = parts["overhead"][kind]
        through, direct = (one["e2e_ms"][way]["p50"] for way in ("server", "direct"))
        found.append(
            f"About a clip that is {kind} the server takes {one['added_ms_p50']:.2f} ms (p50) beside the engine's own "
            f"time more than a direct call does; {through:.1f} ms in all, against {direct:.1f} ms."
        )
    one = parts["throughput"]
    found.append(f"Throughput with {one['threads']} clients: {one['ratio']:.3f} of the engine's own.")
    if "load" in parts:
        one = parts["load"]
        found.append(
            f"{one['clients']} clients for {one['seconds']:g} s: {one['statuses']}, {one['wrong_answers']} wrong "
            f"answers, p99 {one['latency_ms'].get('p99', 0):.0f} ms, memory {one['resident_mib']} MiB, growth "
            f"{one['growth']:.1%}."
        )
    if "cancels" in parts:
        found.append(f"{parts['cancels']['cancels']} cancelled streams leave {parts['cancels']['left']}.")
    if "kills" in parts:
        one = parts["kills"]
        found.append(
            f"The drafter killed {one['kills']} times: {one['statuses']}, {one['wrong_answers']} wrong answers."
        )
    if "mutants" in parts:
        found.append(f"{parts['mutants']['mutants']} mutants: {parts['mutants']['outcomes']}.")
    failed = [name for name, part in parts.items() if not part["passed"]]
    return [*found, f"Not as it should be: {', '.join(failed)}." if failed else "All is as it should be."]
