"""`crossdraft bench replicas`: what several replicas behind Ray's proxy answer in a second, against one server alone.

All servers are up at the same time and are asked in turn, block by block, so that whatever else the machine does hits
all of them. Each runs on as many threads of PyTorch as the environment says; a replica is one server more.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from statistics import median
from time import perf_counter
from typing import Any

from crossdraft.bench.environment import environment
from crossdraft.bench.serving.overhead import PerThread
from crossdraft.bench.serving.plan import CHAT, Question, ServePlan, percentiles_ms, question
from crossdraft.bench.serving.process import ServerProcess, serving
from crossdraft.bench.workload import Workload, items
from crossdraft.serve.service import load_engine

ALONE = "server"

Tick = Callable[[str], None]


@dataclass
class _Asked:
    """What one contestant answered.

    Args:
        singles: seconds of each request of one client.
        tokens, seconds: of many clients.
    """

    singles: list[float] = field(default_factory=list)
    tokens: int = 0
    seconds: float = 0.0
    statuses: Counter[int] = field(default_factory=Counter)
    wrong: int = 0

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "e2e_ms": percentiles_ms(self.singles),
            "tokens_per_s": round(self.tokens / self.seconds, 1),
            "statuses": {str(status): count for status, count in self.statuses.items()},
            "wrong_answers": self.wrong,
        }


def run_replicas(plan: ServePlan, counts: Sequence[int], clients: int, tick: Tick = lambda _: None) -> dict[str, Any]:
    """One server alone, and for each of these counts so many replicas: time of a request, and tokens a second.

    Args:
        plan: of the workload and the servers.
        counts: of replicas.
        clients: that ask at a time, for the tokens a second.

    Raises:
        CrossdraftError: the pair cannot be loaded, or a server does not start.
    """
    surroundings = environment()
    work = Workload(plan.pairs, max_new_tokens=plan.max_new_tokens, files=plan.folder / "clips")
    asked = [question(plan, item) for item in items(work)]
    with load_engine(plan.settings) as engine:
        asked = [replace(one, text=engine.alone(one.request).text) for one in asked]
    flags = {ALONE: plan.flags(placement="inline")}
    for count in counts:
        bounds = {"min_replicas": count, "max_replicas": count, "max_queue": max(plan.max_queue, clients)}
        flags[_name(count)] = ["--ray", *plan.flags(placement="inline", **bounds)]
    with ExitStack() as up:
        servers: dict[str, ServerProcess] = {}
        for name, given in flags.items():
            folder = plan.folder / name
            folder.mkdir()
            servers[name] = up.enter_context(serving(given, folder))
            tick("starting")
        found = _ask(servers, plan, asked, clients, tick)
    figures = {name: one.to_json() for name, one in found.items()}
    for name in servers:
        figures[name]["of_the_server"] = round(figures[name]["tokens_per_s"] / figures[ALONE]["tokens_per_s"], 3)
        singles = zip(found[name].singles, found[ALONE].singles, strict=True)
        figures[name]["added_ms_p50"] = round(median(one - alone for one, alone in singles) * 1e3, 2)
    return {
        "environment": surroundings,
        "passed": all(not one.wrong and set(one.statuses) == {200} for one in found.values()),
        "clients": clients,
        "pairs": plan.pairs,
        "repeats": plan.repeats,
        "contestants": figures,
    }


def _ask(
    servers: Mapping[str, ServerProcess], plan: ServePlan, asked: Sequence[Question], clients: int, tick: Tick
) -> dict[str, _Asked]:
    """Blocks of all servers in turn; in the first, which counts for nothing, they get to know the clips."""
    found = {name: _Asked() for name in servers}
    for block in range(plan.repeats + 1):
        order = list(servers) if block % 2 else list(servers)[::-1]
        for name in order:
            result = found[name] if block else _Asked()
            with servers[name].connection() as connection:
                for one in asked:
                    start = perf_counter()
                    reply = connection.request("POST", CHAT, one.body)
                    result.singles.append(perf_counter() - start)
                    _count(result, one, reply.status, reply.json)
            connections = PerThread(servers[name])

            def by_http(one: Question, connections: PerThread = connections) -> tuple[int, Any]:
                reply = connections.get().request("POST", CHAT, one.body)
                return reply.status, reply.json

            with ThreadPoolExecutor(clients) as pool:
                start = perf_counter()
                replies = [*pool.map(by_http, asked)]
                result.seconds += perf_counter() - start
            connections.close()
            for one, (status, body) in zip(asked, replies, strict=True):
                _count(result, one, status, body)
                result.tokens += body["usage"]["completion_tokens"] if status == 200 else 0
        tick("asking")
    return found


def _count(result: _Asked, one: Question, status: int, body: Any) -> None:
    result.statuses[status] += 1
    result.wrong += status == 200 and body["choices"][0]["message"]["content"] != one.text


def _name(count: int) -> str:
    return f"replicas-{count}"


def lines(report: Mapping[str, Any]) -> list[str]:
    """Sentences for people."""
    found = [
        f"{name}: {one['e2e_ms']['p50']:.1f} ms a request (p50, one client), {one['added_ms_p50']:+.1f} ms to the "
        f"server alone; {one['tokens_per_s']:.0f} tokens/s of {report['clients']} clients, "
        f"{one['of_the_server']:.2f} of its; {one['statuses']}, {one['wrong_answers']} wrong answers."
        for name, one in report["contestants"].items()
    ]
    return [*found, "All is as it should be." if report["passed"] else "Not all is as it should be."]
