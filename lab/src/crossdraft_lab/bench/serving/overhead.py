"""Overhead of the server over the engine called directly: time of a request."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from crossdraft.api import Engine
from crossdraft.engine.request import Answer
from crossdraft_lab.bench.serving.plan import CHAT, Question, percentiles_ms
from crossdraft_lab.bench.serving.process import Connection, ServerProcess
from crossdraft_lab.bench.statistics import Interval, bootstrap, median_added

MOST_OVERHEAD_MS = 3.0  # p50 of a request, over the engine called directly

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
    """Overhead of the server in all, p50 of the pairs."""
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
