"""Cost of the server in throughput: one engine, asked over HTTP and called directly, in turn.

What an engine learns of its machine (lending, alternating) makes one start of it faster than another by more than a
server costs, so the same one answers both ways: the server runs in this process, whose threads call its engine. Clients
over HTTP are a process of their own, on the same cores. What a server costs differs from start to start as well, by
more than within one: intervals are drawn over starts.
"""

import json
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from crossdraft.api import Engine
from crossdraft.serve.logs import TextLines
from crossdraft.serve.server import DrainingServer, configured
from crossdraft.serve.service import Service, load_engine
from crossdraft.serve.settings import ServerSettings
from crossdraft.serve.sockets import bound_socket
from crossdraft_lab.bench.serving.plan import CACHE_BYTES, Question, ServePlan
from crossdraft_lab.bench.statistics import ratio_per_token

LEAST_THROUGHPUT = 0.98  # of the engine's own
WARM_UP, TURNS = 2, 4  # in which all questions are asked by either way
WAYS = ("server", "direct")
LOGGER = logging.getLogger("crossdraft.serve")

Tick = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Block:
    """Questions, asked by one way: tokens that were written, and the seconds that it took."""

    tokens: int
    seconds: float

    def __add__(self, other: "Block") -> "Block":
        return Block(self.tokens + other.tokens, self.seconds + other.seconds)


@dataclass(slots=True)
class HostedServer:
    """A server in a thread of this process: its port, and once it has ended the CPU seconds of that thread."""

    port: int
    cpu_s: float = 0.0


def throughput(plan: ServePlan, asked: Sequence[Question], tick: Tick) -> dict[str, Any]:
    """Clients ask all questions by either way in turn, of a server that is started anew for each of the repeats.

    Clips are known by the time that counts.

    `busy`: twice as many clients as share a pass, so that requests wait and every row is taken again at once: this is
    throughput. `matched`: as many as share a pass. Then a row is empty while a response travels and the next question
    comes, so that the time of a request counts, too. `server_cpu_ms`: CPU time of the server's thread for each request.
    """
    levels = {"busy": 2 * plan.max_batch, "matched": plan.max_batch}
    starts: dict[str, dict[str, list[Block]]] = {name: {way: [] for way in WAYS} for name in levels}
    # The clips of either way are told apart: both are to be kept.
    settings = plan.settings.model_copy(update={"options": {"cache_bytes": 2 * len(WAYS) * CACHE_BYTES}})
    cpu_s = 0.0
    for number in range(plan.repeats):
        folder = plan.folder / f"throughput-{number}"
        folder.mkdir()
        with load_engine(settings) as engine, hosted(settings, engine, folder / "serve.log") as server:
            for name, clients in levels.items():
                asked_in_all = dict.fromkeys(WAYS, Block(0, 0.0))
                with HttpClients(server.port, clients, asked) as http, DirectCalls(engine, clients, asked) as calls:
                    for turn in range(WARM_UP + TURNS):
                        order = WAYS if (number + turn) % 2 else WAYS[::-1]
                        found = {way: http.ask() if way == "server" else calls.ask() for way in order}
                        for way in WAYS if turn >= WARM_UP else ():
                            asked_in_all[way] += found[way]
                for way in WAYS:
                    starts[name][way].append(asked_in_all[way])
        cpu_s += server.cpu_s
        tick("throughput")
    requests = plan.repeats * len(levels) * (WARM_UP + TURNS) * len(asked)
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
    """A server of this engine in a thread of this process, as long as the context.

    Args:
        settings: the server's.
        engine: is not closed.
        log: gets a line for each request, as `crossdraft serve` writes it.
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
        port: of the server.
        count: of clients.
        asked: what they ask, each the next question when it has its answer.
    """

    def __init__(self, port: int, count: int, asked: Sequence[Question]) -> None:
        command = [sys.executable, "-m", "crossdraft_lab.bench.serving.clients", str(port), str(count)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._say(json.dumps([one.body.decode() for one in asked]))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait()

    def ask(self) -> Block:
        """Ask all questions."""
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
    """Threads of this process that call an engine, as `HttpClients` ask a server. Use as a context manager."""

    def __init__(self, engine: Engine, count: int, asked: Sequence[Question]) -> None:
        self._engine, self._asked = engine, asked
        self._pool = ThreadPoolExecutor(count)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()

    def ask(self) -> Block:
        """Ask all questions."""
        start = time.perf_counter()
        tokens = sum(self._pool.map(lambda one: len(self._engine.generate(one.request).tokens), self._asked))
        return Block(tokens, time.perf_counter() - start)
