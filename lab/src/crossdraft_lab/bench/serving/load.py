"""Load tests of the server: many clients, clients that go away, a drafter that is killed."""

import itertools
import json
import math
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from crossdraft_lab.bench.resources import MOST_GROWTH, SETTLED, flatness, part_medians
from crossdraft_lab.bench.serving.plan import CHAT, Question, ServePlan, percentiles_ms
from crossdraft_lab.bench.serving.process import ServerProcess

MOST_WAITS = 3.0  # times the mean time of an answer, for p99
INTERVAL_S = 0.5
KILL_EVERY_S = 4.0
SOON_S = 10.0

Tick = Callable[[str], None]


class _Clients:
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
    """Longest time that an answer may take where nothing waits but in the queue.

    By Little's law an answer takes on average as long as the server needs for as many as it holds, running and waiting;
    p99 may be `MOST_WAITS` times that.
    """
    held = plan.max_batch + plan.max_queue
    return MOST_WAITS * 1e3 * held * plan.seconds / answered if answered else 0.0


def cancels(plan: ServePlan, server: ServerProcess, asked: Sequence[Question], tick: Tick) -> dict[str, Any]:
    """Streams that are left at once, or after a few bytes: nothing of them may stay."""
    draw = random.Random(plan.seed)  # noqa: S311 - no secret
    with server.connection() as connection:
        for one in asked:  # so that the recordings that are kept are there
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
    """Return what is left once nothing is, or after `SOON_S`.

    Args:
        server: that is asked nothing any more.
        kept: recordings that were there before; with `None` none are counted, where those that were asked about may be
            kept.
    """
    until = time.monotonic() + SOON_S
    while any((left := _left(server, kept)).values()) and time.monotonic() < until:
        time.sleep(INTERVAL_S / 10)
    return left


def _left(server: ServerProcess, kept: int | None) -> dict[str, int]:
    """Requests, rows and files that are there, and recordings beyond those that were `kept` before."""
    gauges = server.gauges()
    names = ("num_requests_running", "num_requests_waiting", "num_cache_rows")
    found = {name: int(gauges[name]) for name in names} | {"files": server.spooled()}
    return found if kept is None else found | {"recordings": max(0, server.recordings() - kept)}


def kills(plan: ServePlan, server: ServerProcess, asked: Sequence[Question], tick: Tick) -> dict[str, Any]:
    """The drafter is killed now and then while clients ask: no answer may be wrong or lost."""
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
