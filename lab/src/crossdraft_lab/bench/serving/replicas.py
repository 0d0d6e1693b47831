"""`crossdraft bench replicas`: what several replicas behind Ray's proxy answer in a second, against one server alone.

All servers are up at the same time and are asked in turn, block by block, so that whatever else the machine does hits
all of them. Each runs on as many threads of PyTorch as the environment says; a replica is one server more.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import chain
from time import perf_counter
from typing import Any

import numpy as np

from crossdraft.serve.service import load_engine
from crossdraft_lab.bench.environment import environment
from crossdraft_lab.bench.serving.plan import CHAT, Question, ServePlan, percentiles_ms, question
from crossdraft_lab.bench.serving.process import PerThread, ServerProcess, serving
from crossdraft_lab.bench.statistics import Interval, bootstrap, ratio, ratio_per_token
from crossdraft_lab.bench.workload import Workload, items

ALONE = "server"

Tick = Callable[[str], None]


@dataclass
class ServerReplies:
    """Replies of one contestant.

    Args:
        singles: seconds of one client's requests, one a question, of each block.
        tokens, seconds: of many clients, of each block.
    """

    singles: list[list[float]] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    wrong: int = 0

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "e2e_ms": percentiles_ms([*chain.from_iterable(self.singles)]),
            "tokens_per_s": ratio(self.tokens, self.seconds).to_json(),
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
    fewest, *more = (_name(count) for count in sorted(set(counts)))
    return {
        "environment": surroundings,
        "passed": all(not one.wrong and set(one.statuses) == {200} for one in found.values()),
        "clients": clients,
        "pairs": plan.pairs,
        "repeats": plan.repeats,
        "drafter": plan.drafter,
        "contestants": figures,
        "fewest_replicas": fewest,
        "of_the_fewest": {name: throughput_ratio(found[name], found[fewest]).to_json() for name in more},
    }


def against(one: ServerReplies, alone: ServerReplies) -> dict[str, Any]:
    """One contestant beside the server alone: its throughput, and by how much longer a request takes.

    The latter is the median over all requests, each less the server's of the same block. Questions are drawn, each
    with its requests of all blocks: repeats of a question are no independent evidence.
    """
    added = 1e3 * np.subtract(one.singles, alone.singles)  # [blocks, questions]
    added_p50 = bootstrap(lambda drawn: np.median(added[:, drawn], axis=(0, -1)), added.shape[1])
    return {"of_the_server": throughput_ratio(one, alone).to_json(), "added_ms_p50": added_p50.to_json()}


def throughput_ratio(one: ServerReplies, other: ServerReplies) -> Interval:
    """Tokens a second of one contestant over those of another; blocks are drawn."""
    return ratio_per_token(other.seconds, other.tokens, one.seconds, one.tokens)


def _ask(
    servers: Mapping[str, ServerProcess], plan: ServePlan, asked: Sequence[Question], clients: int, tick: Tick
) -> dict[str, ServerReplies]:
    """Blocks of all servers in turn; in the first, which counts for nothing, they get to know the clips."""
    found = {name: ServerReplies() for name in servers}
    for block in range(plan.repeats + 1):
        order = list(servers) if block % 2 else list(servers)[::-1]
        for name in order:
            result = found[name] if block else ServerReplies()
            singles = list[float]()
            with servers[name].connection() as connection:
                for one in asked:
                    start = perf_counter()
                    reply = connection.request("POST", CHAT, one.body)
                    singles.append(perf_counter() - start)
                    _count(result, one, reply.status, reply.json)
            result.singles.append(singles)
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
        f"{Interval.from_json(one['added_ms_p50']).shown('questions', 1)} ms more than of the server alone; "
        f"{Interval.from_json(one['tokens_per_s']).shown('blocks', 0)} tokens/s of {report['clients']} clients, "
        f"{Interval.from_json(one['of_the_server']).shown('blocks')} of its; {one['statuses']}, "
        f"{one['wrong_answers']} wrong answers."
        for name, one in report["contestants"].items()
    ]
    found += [
        f"{name}: {Interval.from_json(one).shown('blocks')} times the tokens/s of {report['fewest_replicas']}."
        for name, one in report["of_the_fewest"].items()
    ]
    return [*found, "All is as it should be." if report["passed"] else "Not all is as it should be."]
