"""The parts of `crossdraft bench serve`, run one after another, and the sentences about their results.

Everything is measured on loopback, on the machine's own cores, so the times include the clients' work.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from crossdraft.serve.service import load_engine
from crossdraft_lab.bench.environment import environment
from crossdraft_lab.bench.experiments.record import Tick
from crossdraft_lab.bench.serving.load import cancels, kills, load, overhead, throughput
from crossdraft_lab.bench.serving.plan import ServePlan, question
from crossdraft_lab.bench.serving.process import serving
from crossdraft_lab.bench.serving.vllm_server import against_vllm
from crossdraft_lab.bench.statistics import Interval
from crossdraft_lab.bench.workload import Workload, items

PARTS = ("overhead", "load", "cancels", "kills", "throughput", "vllm")


def run_serve(plan: ServePlan, tick: Tick = lambda _: None) -> dict[str, Any]:
    """Take all measurements of the plan; return plain values, a mapping for each part, each with `passed`.

    Raises:
        CrossdraftError: the pair cannot be loaded, or the server does not start.
    """
    found, parts = environment(), dict[str, dict[str, Any]]()
    work = Workload(plan.pairs, max_new_tokens=plan.max_new_tokens, files=plan.folder / "clips")
    asked = [question(plan, item) for item in items(work)]
    with serving(plan.flags(), plan.folder) as server:
        with load_engine(plan.settings) as engine:
            parts["overhead"] = overhead(server, engine, asked, tick)
            asked = [replace(one, text=engine.alone(one.request).text) for one in asked]
        if plan.clients:
            parts["load"] = load(plan, server, asked, tick)
        if plan.cancels:
            parts["cancels"] = cancels(plan, server, asked, tick)
        if plan.kills:
            parts["kills"] = kills(plan, server, asked, tick)
    parts["throughput"] = throughput(plan, tick)
    if plan.vllm_python is not None:
        parts["vllm"] = against_vllm(plan, plan.vllm_python, tick)
    return {"environment": found, "passed": all(part["passed"] for part in parts.values()), **parts}


def lines(parts: Mapping[str, Any]) -> list[str]:
    """Sentences on the results, for people."""
    found = list[str]()
    for kind in ("new", "known"):
        one = parts["overhead"][kind]
        through, direct = (one["e2e_ms"][way]["p50"] for way in ("server", "direct"))
        added = Interval.from_json(one, "added_ms_p50").shown("questions")
        longer = Interval.from_json(one["e2e_difference_ms"], "p50").shown("questions", 1)
        found.append(
            f"About a clip that is {kind} the server takes {longer} ms (p50) longer than a direct call, which reads "
            f"the same files: {through:.1f} ms, against {direct:.1f}. Beside the engine's own time it is {added} ms"
            f"{', with decoding' if kind == 'new' else ''}."
        )
    for one in (parts["throughput"][name] for name in ("busy", "matched")):
        rate = Interval.from_json(one, "ratio").shown("starts", 3)
        found.append(f"Throughput with {one['threads']} clients: {rate} of the engine's own.")
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
    for clients, one in parts.get("vllm", {}).get("clients", {}).items():
        e2e, sooner = one["e2e_ms"], Interval.from_json(one, "sooner").shown("questions")
        rate = Interval.from_json(one["throughput_ratio"]).shown("blocks")
        found.append(
            f"{clients} clients: an answer in {e2e['crossdraft']['p50']:.0f} ms (p50 of {one['requests']}), of vLLM's "
            f"server in {e2e['vllm']['p50']:.0f}: {sooner} times sooner; {rate} of its throughput; {one['same_text']} "
            f"of {one['requests']} texts the same."
        )
    failed = [name for name in PARTS if name in parts and not parts[name]["passed"]]
    return [*found, f"Not as it should be: {', '.join(failed)}." if failed else "All is as it should be."]
