"""What the server costs over the engine called directly: time of a request, and throughput."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from crossdraft.api import Engine
from crossdraft.bench.serving.plan import CHAT, Question, ServePlan, percentiles_ms
from crossdraft.bench.serving.process import Connection, ServerProcess, serving
from crossdraft.bench.statistics import Interval, bootstrap, median_added, ratio_per_token
from crossdraft.engine.request import Answer
from crossdraft.serve.service import load_engine

MOST_OVERHEAD_MS = 3.0  # p50 of a request, over the engine called directly
LEAST_THROUGHPUT = 0.98  # of the engine's own
TURNS = 2  # in which all questions are asked by either way

Tick = Callable[[str], None]


def overhead(server: ServerProcess, engine: Engine, asked: Sequence[Question], tick: Tick) -> dict[str, Any]:
    """Each question twice by each way, in turn: about a clip that is new, and then known.

    A way's own time is what passes for whoever asks, less what the engine says that it took, queue included: so that
    answers which are drafted otherwise do not disturb the comparison. That is fair of a known clip alone. A new one is
    decoded in the engine's time by a direct call, and beside it by the server: of that the whole times are compared.
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
    """How much longer the server takes in all, p50 of the pairs."""
    longer = 1e3 * np.subtract(server, direct)
    return bootstrap(lambda drawn: np.median(longer[drawn], axis=-1), len(longer))


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


def throughput(plan: ServePlan, asked: Sequence[Question], tick: Tick) -> dict[str, Any]:
    """Threads ask all questions, of a server and of an engine that are started anew for each of the plan's repeats.

    What an engine learns of its machine makes one start differ from the next by more than a server costs: starts are
    what the interval is drawn over. Clips are known by the time that counts, and the ways take turns.

    `busy`: twice as many threads as share a pass, so that requests wait and every row is taken again at once: this is
    throughput. `matched`: as many as share a pass. Then a row is empty while a response travels and the next question
    comes, so that the time of a request counts, too.
    """
    levels = {"busy": 2 * plan.max_batch, "matched": plan.max_batch}
    sums = {name: {"server": list[Block](), "direct": list[Block]()} for name in levels}
    for number in range(plan.repeats):
        folder = plan.folder / f"throughput-{number}"
        folder.mkdir()
        with serving(plan.flags(), folder) as server, load_engine(plan.settings) as engine:
            for name, threads in levels.items():
                for way, block in _blocks(server, engine, asked, threads, first=number).items():
                    sums[name][way].append(block)
        tick("throughput")
    found = {name: {"threads": threads, **_compared(sums[name])} for name, threads in levels.items()}
    return {"passed": found["busy"]["ratio"] >= LEAST_THROUGHPUT, **found}


@dataclass
class Block:
    """Tokens that were written, and the seconds that it took."""

    tokens: int = 0
    seconds: float = 0.0


def _blocks(
    server: ServerProcess, engine: Engine, asked: Sequence[Question], threads: int, first: int
) -> dict[str, Block]:
    """All questions by each way in turn, after once that warms up; `first`: which way begins."""

    def by_http(one: Question) -> int:
        return connections.get().request("POST", CHAT, one.body).json["usage"]["completion_tokens"]

    def directly(one: Question) -> int:
        return len(engine.generate(one.request).tokens)

    connections, sums = PerThread(server), {"server": Block(), "direct": Block()}
    with ThreadPoolExecutor(threads) as pool:
        for turn in range(1 + TURNS):
            ways = [("server", by_http), ("direct", directly)]
            for name, way in ways if (first + turn) % 2 else reversed(ways):
                start = time.perf_counter()
                written = sum(pool.map(way, asked))
                if turn:
                    sums[name].tokens += written
                    sums[name].seconds += time.perf_counter() - start
    connections.close()
    return sums


def _compared(sums: Mapping[str, Sequence[Block]]) -> dict[str, Any]:
    seconds, tokens = ({way: [getattr(b, of) for b in sums[way]] for way in sums} for of in ("seconds", "tokens"))
    over = ratio_per_token(seconds["direct"], tokens["direct"], seconds["server"], tokens["server"])
    rates = {way: round(sum(tokens[way]) / sum(seconds[way]), 1) for way in sums}
    return {"tokens_per_s": rates, **over.to_json("ratio")}


class PerThread:
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
