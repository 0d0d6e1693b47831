"""Measurements of the server: its cost over the engine called directly, and its behaviour under load.

They cover the overhead of a request, throughput of one engine asked over HTTP and directly in turn, many clients,
clients that go away, and a drafter that is killed.
"""

import itertools
import json
import logging
import math
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from crossdraft.api import Engine
from crossdraft.engine.request import Answer
from crossdraft.serve.logs import TextLines
from crossdraft.serve.server import DrainingServer, configured
from crossdraft.serve.service import Service, load_engine
from crossdraft.serve.settings import ServerSettings, read_settings
from crossdraft.serve.sockets import bound_socket
from crossdraft_lab.bench.experiments.record import Tick
from crossdraft_lab.bench.resources import MOST_GROWTH, SETTLED, flatness, part_medians
from crossdraft_lab.bench.serving.plan import CACHE_BYTES, CHAT, Question, ServePlan, percentiles_ms, question
from crossdraft_lab.bench.serving.process import Connection, ServerProcess
from crossdraft_lab.bench.statistics import Interval, bootstrap, median_added, ratio_per_token
from crossdraft_lab.bench.workload import Workload, items

MOST_WAITS = 3.0  # largest p99, as a multiple of an answer's mean time
INTERVAL_S = 0.5
KILL_EVERY_S = 4.0
SOON_S = 10.0


MOST_OVERHEAD_MS = 3.0  # p50 of a request, over the engine called directly
LEAST_THROUGHPUT = 0.98  # as a share of the engine's own
WARM_UP, TURNS = 2, 4  # rounds in which either way asks all questions
WAYS = ("server", "direct")
LOGGER = logging.getLogger("crossdraft.serve")


class _Clients:
    """Threads that ask until they are told to stop, and collect the replies."""

    def __init__(self, server: ServerProcess, asked: Sequence[Question]) -> None:
        self._server, self._asked = server, asked
        self.statuses = Counter[str]()
        self.latencies: list[float] = []
        self.wrong = 0
        self._stop = threading.Event()
        self._lock = threading.Lock()

    def run(self, clients: int, seconds: float, watch: Callable[[], None]) -> None:
        """Ask from `clients` threads for `seconds`; `watch` is called repeatedly meanwhile."""
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
    clients, memory = _Clients(server, asked), list[float]()

    def watch() -> None:
        memory.append(server.resident_mib())

    clients.run(plan.clients, plan.seconds, watch)
    tick("load")
    settled = memory[int(SETTLED * len(memory)) :]
    growth = flatness(part_medians(settled))
    latency, most_ms = percentiles_ms(clients.latencies), most_wait_ms(plan, len(clients.latencies))
    kept = set(clients.statuses) <= {"200", "503"} and not clients.wrong
    return {
        "passed": kept and growth <= MOST_GROWTH and latency.get("p99", math.inf) <= most_ms,
        "clients": plan.clients,
        "seconds": plan.seconds,
        "statuses": dict(clients.statuses),
        "wrong_answers": clients.wrong,
        "latency_ms": latency,
        "most_p99_ms": round(most_ms, 1),
        "resident_mib": {"first": round(settled[0], 1), "last": round(settled[-1], 1), "most": round(max(memory), 1)},
        "growth": round(growth, 4),
    }


def most_wait_ms(plan: ServePlan, answered: int) -> float:
    """Largest time that an answer may take if requests wait only in the queue.

    By Little's law an answer takes on average as long as the server needs for all requests that it holds, running and
    waiting; p99 may be `MOST_WAITS` times that.
    """
    held = plan.max_batch + plan.max_queue
    return MOST_WAITS * 1e3 * held * plan.seconds / answered if answered else 0.0


def cancels(plan: ServePlan, server: ServerProcess, asked: Sequence[Question], tick: Tick) -> dict[str, Any]:
    """Leave streams at once or after a few bytes; check that the server holds no resource of theirs afterwards."""
    draw = random.Random(plan.seed)  # noqa: S311 - no secret
    with server.connection() as connection:
        for one in asked:  # decodes the recordings that the server will keep
            connection.request("POST", CHAT, one.body)
    kept = server.recordings()
    for one in itertools.islice(itertools.cycle(asked), plan.cancels):
        body = json.loads(one.body) | {"stream": True}
        with server.connection() as connection, suppress(OSError):
            connection.send("POST", CHAT, json.dumps(body).encode())
            for _ in range(draw.randrange(4)):
                connection.read_some()
    tick("cancels")
    left = left_soon(server, kept)
    return {"passed": not any(left.values()), "cancels": plan.cancels, "left": left}


def left_soon(server: ServerProcess, kept: int | None = None) -> dict[str, int]:
    """Return what the server still holds, as soon as that is nothing, else after `SOON_S`.

    Args:
        server: server that gets no more requests.
        kept: number of recordings beforehand; `None` counts no recordings, for a server that may keep those asked
            about.
    """
    until = time.monotonic() + SOON_S
    while any((left := _left(server, kept)).values()) and time.monotonic() < until:
        time.sleep(INTERVAL_S / 10)
    return left


def _left(server: ServerProcess, kept: int | None) -> dict[str, int]:
    """Count requests, rows and files that the server holds, and recordings beyond the `kept` ones."""
    gauges = server.gauges()
    names = ("num_requests_running", "num_requests_waiting", "num_cache_rows")
    found = {name: int(gauges[name]) for name in names} | {"files": server.spooled()}
    return found if kept is None else found | {"recordings": max(0, server.recordings() - kept)}


def kills(plan: ServePlan, server: ServerProcess, asked: Sequence[Question], tick: Tick) -> dict[str, Any]:
    """Kill the drafter now and then while clients ask; check that no answer is wrong or lost."""
    clients, killed, start = _Clients(server, asked), [0], time.monotonic()

    def watch() -> None:
        due = time.monotonic() - start > (killed[0] + 1) * KILL_EVERY_S
        if due and killed[0] < plan.kills and (pids := server.drafters()):
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            killed[0] += 1

    clients.run(plan.max_batch, (plan.kills + 2) * KILL_EVERY_S, watch)
    tick("kills")
    return {
        "passed": set(clients.statuses) == {"200"} and not clients.wrong and killed[0] == plan.kills,
        "kills": killed[0],
        "statuses": dict(clients.statuses),
        "wrong_answers": clients.wrong,
        "latency_ms": percentiles_ms(clients.latencies),
    }


def overhead(server: ServerProcess, engine: Engine, asked: Sequence[Question], tick: Tick) -> dict[str, Any]:
    """Ask each question twice by each way, in turn: first about a new clip, then about the known clip.

    A way's own time is what the client waits, less what the engine says that it took, queue included, so that answers
    drafted otherwise do not disturb the comparison. This is fair for a known clip alone. A new clip is decoded within
    the engine's time by a direct call, but outside it by the server: for new clips the whole times are compared.
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
            "overhead_ms": {way: percentiles_ms(values) for way, values in own[kind].items()},
            "e2e_ms": {way: percentiles_ms(values) for way, values in whole_s[kind].items()},
            **_added_ms(own[kind]["server"], own[kind]["direct"]).to_json("added_ms_p50"),
            "e2e_difference_ms": _longer_ms(whole_s[kind]["server"], whole_s[kind]["direct"]).to_json("p50"),
        }
        for kind in own
    }
    passed = found["known"]["added_ms_p50"] <= MOST_OVERHEAD_MS and not differ
    return {"passed": passed, "requests": 2 * len(asked), "answers_that_differ": differ, **found}


def _added_ms(server: Sequence[float], direct: Sequence[float]) -> Interval:
    return median_added(*([1e3 * second for second in each] for each in (server, direct)))


def _longer_ms(server: Sequence[float], direct: Sequence[float]) -> Interval:
    """Difference of the whole times, server minus direct call: the median over pairs."""
    longer = 1e3 * np.subtract(server, direct)
    return bootstrap(lambda drawn: np.median(longer[drawn], axis=-1), len(longer))


def _by_http(connection: Connection, one: Question) -> tuple[str, float, float]:
    """Return an answer, the seconds that it took, and the seconds that the engine says it took."""
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


@dataclass(frozen=True, slots=True)
class Block:
    """Totals of all questions asked by one way: tokens of the answers, and seconds."""

    tokens: int
    seconds: float

    def __add__(self, other: "Block") -> "Block":
        return Block(self.tokens + other.tokens, self.seconds + other.seconds)


@dataclass(slots=True)
class HostedServer:
    """A server in a thread of this process: its port, and the CPU seconds of that thread, set when it has ended."""

    port: int
    cpu_s: float = 0.0


def throughput(plan: ServePlan, tick: Tick) -> dict[str, Any]:
    """Let clients ask about all clips by either way in turn; the server is started anew for each repeat.

    The clips are known to both ways before the clock starts, and each turn asks other questions about them, as a known
    question is answered by its stored answer.

    `busy`: twice as many clients as share a pass, so that requests wait and a free row is taken again at once: this is
    throughput. `matched`: as many clients as share a pass. Then a row is empty while a response travels and the next
    question comes, so that a request's time counts, too. `server_cpu_ms`: CPU time of the server's thread a request.
    """
    levels = {"busy": 2 * plan.max_batch, "matched": plan.max_batch}
    rounds = WARM_UP + TURNS
    count = rounds * len(levels)
    work = Workload(
        count * plan.pairs, questions=count, max_new_tokens=plan.max_new_tokens, files=plan.folder / "clips"
    )
    asked = [question(plan, item) for item in items(work)]
    turns = [asked[turn::count] for turn in range(count)]
    starts: dict[str, dict[str, list[Block]]] = {name: {way: [] for way in WAYS} for name in levels}
    # The clips of either way are told apart: both are to be kept.
    settings = read_settings(None, plan.arguments | {"cache_bytes": 2 * len(WAYS) * CACHE_BYTES})
    cpu_s = 0.0
    for number in range(plan.repeats):
        folder = plan.folder / f"throughput-{number}"
        folder.mkdir()
        with load_engine(settings) as engine, hosted(settings, engine, folder / "serve.log") as server:
            for level, (name, clients) in enumerate(levels.items()):
                asked_in_all, own = dict.fromkeys(WAYS, Block(0, 0.0)), turns[level * rounds : (level + 1) * rounds]
                with HttpClients(server.port, clients, own) as http, DirectCalls(engine, clients) as calls:
                    for turn, now in enumerate(own):
                        order = WAYS if (number + turn) % 2 else WAYS[::-1]
                        found = {way: http.ask() if way == "server" else calls.ask(now) for way in order}
                        for way in WAYS if turn >= WARM_UP else ():
                            asked_in_all[way] += found[way]
                for way in WAYS:
                    starts[name][way].append(asked_in_all[way])
        cpu_s += server.cpu_s
        tick("throughput")
    requests = plan.repeats * len(asked)
    compared = {name: {"threads": clients, **_compared(starts[name])} for name, clients in levels.items()}
    passed = compared["busy"]["ratio"] >= LEAST_THROUGHPUT
    return {"passed": passed, "server_cpu_ms": round(1e3 * cpu_s / requests, 3), **compared}


def _compared(starts: Mapping[str, Sequence[Block]]) -> dict[str, Any]:
    """Rates of both ways, and of the server over the engine's own; the interval is drawn over starts."""
    seconds, tokens = ({way: [getattr(one, of) for one in starts[way]] for way in WAYS} for of in ("seconds", "tokens"))
    over = ratio_per_token(seconds["direct"], tokens["direct"], seconds["server"], tokens["server"])
    rates = {way: round(sum(tokens[way]) / sum(seconds[way]), 1) for way in WAYS}
    return {"tokens_per_s": rates, **over.to_json("ratio")}


@contextmanager
def hosted(settings: ServerSettings, engine: Engine, log: Path) -> Iterator[HostedServer]:
    """Run a server of this engine in a thread of this process while the context is open.

    Args:
        settings: settings of the server.
        engine: engine of the server; it is not closed.
        log: file that gets a line for each request, as `crossdraft serve` writes it.
    """
    handler, propagated, level = logging.FileHandler(log), LOGGER.propagate, LOGGER.level
    handler.setFormatter(TextLines())
    LOGGER.addHandler(handler)
    LOGGER.propagate = False
    LOGGER.setLevel(logging.INFO)
    service = Service(settings, engine)
    server = DrainingServer(configured(service), service)
    with bound_socket("127.0.0.1", 0) as listener:
        found = HostedServer(listener.getsockname()[1])

        def run() -> None:
            server.run([listener])
            found.cpu_s = time.thread_time()

        thread = threading.Thread(target=run, name="server")
        thread.start()
        try:
            yield found
        finally:
            server.should_exit = True
            thread.join()
            service.close()
            LOGGER.removeHandler(handler)
            handler.close()
            LOGGER.propagate = propagated
            LOGGER.setLevel(level)


class HttpClients:
    """Clients in a process of their own; see `serving.clients`. Use as a context manager.

    Args:
        port: port of the server.
        count: number of clients.
        turns: questions of each turn; a client asks the next one when it has its answer.
    """

    def __init__(self, port: int, count: int, turns: Sequence[Sequence[Question]]) -> None:
        command = [sys.executable, "-m", "crossdraft_lab.bench.serving.clients", str(port), str(count)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._say(json.dumps([[one.body.decode() for one in asked] for asked in turns]))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait()

    def ask(self) -> Block:
        """Ask all questions of the next turn."""
        self._say("")
        line = self._process.stdout.readline() if self._process.stdout is not None else ""
        if not line:
            raise EOFError("The clients' process ended; see its message above.")
        tokens, seconds = json.loads(line)
        return Block(tokens, seconds)

    def _say(self, line: str) -> None:
        if self._process.stdin is not None:
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()


class DirectCalls:
    """Threads of this process that call an engine as `HttpClients` call a server. Use as a context manager."""

    def __init__(self, engine: Engine, count: int) -> None:
        self._engine = engine
        self._pool = ThreadPoolExecutor(count)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()

    def ask(self, asked: Sequence[Question]) -> Block:
        """Ask all questions."""
        start = time.perf_counter()
        tokens = sum(self._pool.map(lambda one: len(self._engine.generate(one.request).tokens), asked))
        return Block(tokens, time.perf_counter() - start)
