"""`crossdraft bench replicas`: what several replicas behind Ray's proxy answer in a second, against one server alone.

All servers are up at the same time and are asked in turn, block by block, so that whatever else the machine does hits
all of them. Each runs on as many threads of PyTorch as the environment says; a replica is one server more.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

from crossdraft.bench.environment import environment
from crossdraft.bench.serving.plan import CHAT, Question, ServePlan, percentiles_ms, question
from crossdraft.bench.serving.process import PerThread, ServerProcess, serving
from crossdraft.bench.statistics import Interval, median_added, ratio_per_token
from crossdraft.bench.workload import Workload, items
from crossdraft.serve.service import load_engine

ALONE = "server"

Tick = Callable[[str], None]


@dataclass
class ServerReplies:
    """What one contestant answered.

    Args:
        singles: seconds of each request of one client.
        tokens, seconds: of many clients, of each block.
    """

    singles: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    wrong: int = 0

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "e2e_ms": percentiles_ms(self.singles),
            "tokens_per_s": round(sum(self.tokens) / sum(self.seconds), 1),
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
    figures = {name: one.to_json() | against(one, found[ALONE]) for name, one in found.items()}
    return {
        "environment": surroundings,
        "passed": all(not one.wrong and set(one.statuses) == {200} for one in found.values()),
        "clients": clients,
        "pairs": plan.pairs,
        "repeats": plan.repeats,
        "contestants": figures,
    }


def against(one: ServerReplies, alone: ServerReplies) -> dict[str, Any]:
    """One contestant beside the server alone: throughput drawn over blocks, times over requests."""
    rate = ratio_per_token(alone.seconds, alone.tokens, one.seconds, one.tokens)
    singles = [1e3 * (own - other) for own, other in zip(one.singles, alone.singles, strict=True)]
    return {"of_the_server": rate.to_json(), "added_ms_p50": median_added(singles, [0.0] * len(singles)).to_json()}


def _ask(
    servers: Mapping[str, ServerProcess], plan: ServePlan, asked: Sequence[Question], clients: int, tick: Tick
) -> dict[str, ServerReplies]:
    """Blocks of all servers in turn; in the first, which counts for nothing, they get to know the clips."""
    found = {name: ServerReplies() for name in servers}
    for block in range(plan.repeats + 1):
        order = list(servers) if block % 2 else list(servers)[::-1]
        for name in order:
            result = found[name] if block else ServerReplies()
            with servers[name].connection() as connection:
                for one in asked:
                    start = perf_counter()
                    reply = connection.request("POST", CHAT, one.body)
                    result.singles.append(perf_counter() - start)
                    _count(result, one, reply.status, reply.json)
            connections = PerThread(servers[name].port)

            def by_http(one: Question, connections: PerThread = connections) -> tuple[int, Any]:
                reply = connections.get().request("POST", CHAT, one.body)
                return reply.status, reply.json

            with ThreadPoolExecutor(clients) as pool:
                start = perf_counter()
                replies = [*pool.map(by_http, asked)]
                result.seconds.append(perf_counter() - start)
            connections.close()
            for one, (status, body) in zip(asked, replies, strict=True):
                _count(result, one, status, body)
            result.tokens.append(sum(body["usage"]["completion_tokens"] for status, body in replies if status == 200))
        tick("asking")
    return found


def _count(result: ServerReplies, one: Question, status: int, body: Any) -> None:
    result.statuses[status] += 1
    result.wrong += status == 200 and body["choices"][0]["message"]["content"] != one.text


def _name(count: int) -> str:
    return f"replicas-{count}"


def lines(report: Mapping[str, Any]) -> list[str]:
    """Sentences for people."""
    found = [
        f"{name}: {one['e2e_ms']['p50']:.1f} ms a request (p50, one client), "
        f"{Interval.from_json(one['added_ms_p50']).shown('requests', 1)} ms more than of the server alone; "
        f"{one['tokens_per_s']:.0f} tokens/s of {report['clients']} clients, "
        f"{Interval.from_json(one['of_the_server']).shown('blocks')} of its; {one['statuses']}, "
        f"{one['wrong_answers']} wrong answers."
        for name, one in report["contestants"].items()
    ]
    return [*found, "All is as it should be." if report["passed"] else "Not all is as it should be."]
