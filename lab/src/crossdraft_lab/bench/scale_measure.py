"""Measurements of `crossdraft bench scale`: memory bandwidth, V(n), the prefill, and drafting during the prefill.

Drafting runs with the real engine: before the prefill, in a thread, in a process of its own. Results are plain values;
times are medians and quartiles in milliseconds, or medians.
"""

import gc
import time
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Any

import torch

from crossdraft.comparisons import orders
from crossdraft.drafters.independent import IndependentDrafter
from crossdraft.engine.cache import KVCache
from crossdraft.engine.drafter import Budget
from crossdraft.engine.fast.static_cache import hand_back
from crossdraft.engine.ledger import READING
from crossdraft.engine.loop import DecodeLoop
from crossdraft.engine.pass_times import TOKEN
from crossdraft.engine.passes import Chunk, PassRow
from crossdraft.engine.prefill import prefill
from crossdraft.engine.request import Request
from crossdraft.engine.runner.process import ProcessDrafter
from crossdraft.engine.runner.runner import DrafterLost, DraftRunner
from crossdraft.engine.stats import Stats
from crossdraft.engine.target import Target
from crossdraft.engine.tree import DraftTree
from crossdraft.errors import CrossdraftError
from crossdraft_lab.bench.experiments.record import Tick
from crossdraft_lab.bench.gpu import sampled_gpus
from crossdraft_lab.bench.scale_models import cache_bytes, decode_bytes, random_drafter
from crossdraft_lab.bench.statistics import Quartiles, quartiles

WIDTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)  # tokens of a pass
LEAST, MOST = 3, 50
MIB = 2**20
NEW_TOKENS, NODES, REPEATS, STEPS = 16, 4, 3, 8  # for answers with a drafter; steps of a drafter alone
WARM_UPS = 3
SAMPLED_S = 1.5  # seconds of answers while NVML samples
Json = dict[str, Any]


def sample(action: Callable[[], float], budget_s: float) -> Quartiles:
    """Quartiles of the seconds that `action` returns, after one call that does not count.

    There are as many calls as fit into the budget, but at least 3 and at most 50.
    """
    action()
    values: list[float] = []
    start = time.perf_counter()
    while len(values) < LEAST or (len(values) < MOST and time.perf_counter() - start < budget_s):
        values.append(action())
    return quartiles(values)


def clocked(device: torch.device, action: Callable[[], object]) -> float:
    """Measure the seconds until the device has finished `action`."""
    settle(device)
    start = time.perf_counter()
    action()
    settle(device)
    return time.perf_counter() - start


def settle(device: torch.device) -> None:
    """Wait until a GPU has finished its work; on a CPU return at once."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def bandwidth(device: torch.device, budget_s: float) -> float:
    """Bytes per second of a copy far larger than any cache, reading and writing counted."""
    size = (1024 if device.type == "cuda" else 256) * MIB
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    times = sample(lambda: clocked(device, lambda: target.copy_(source)), budget_s)
    return 2 * size / times.q1  # first quartile: slower runs were disturbed


@torch.inference_mode()
def measure_prefill(target: Target, budget_s: float) -> tuple[int, Json]:
    """Return the prompt's number of tokens, and times of the prefill's pieces: vision encoder, clip, text after it."""
    prompt = target.prepare(Request("scale"))
    device = target.device
    encode = sample(lambda: clocked(device, lambda: target.encode(prompt)), budget_s)
    pieces, _ = target.chunks(prompt, target.encode(prompt))
    cache = target.new_cache(capacity=len(prompt) + 1)
    row = cache.add_row(cache.capacity)

    def read(piece: Chunk, behind: int) -> float:
        cache.truncate(0, behind)
        return clocked(device, lambda: target.extend(cache, [PassRow(row, piece)]))

    clip = sample(lambda: read(pieces[0], 0), budget_s)
    text = sample(lambda: read(pieces[1], len(pieces[0].tokens)), budget_s)
    return len(prompt), {"encode": encode.ms(), "clip": clip.ms(), "text": text.ms()}


@torch.inference_mode()
def timed_pass(target: Target, cache: KVCache, n: int) -> tuple[float, float]:
    """Time one pass over n tokens after row 0, a chain behind its first token; the cache keeps nothing of it.

    Returns:
        seconds of the model's own forward, and of the whole `extend` around it.
    """
    length, start = cache.lengths[0], time.perf_counter()
    root, tree = Chunk(torch.tensor([TOKEN])), DraftTree.chain([TOKEN] * (n - 1))
    forward = target.extend(cache, [PassRow(0, root, tree)]).seconds
    cache.truncate(0, length)
    return forward, time.perf_counter() - start


@torch.inference_mode()
def measure_passes(target: Target, budget_s: float) -> list[Json]:
    """Measure V(n) after the whole prompt, with chains of n - 1 nodes: the model's forward, and the whole `extend`."""
    prompt = target.prepare(Request("scale"))
    capacity = len(prompt) + max(WIDTHS) + 1
    cache = target.new_cache(capacity=capacity)
    prefill(target, cache, prompt, target.encode(prompt), capacity)
    passes = list[Json]()
    for n in WIDTHS:
        forwards: list[float] = []

        def once(n: int = n, forwards: list[float] = forwards) -> float:
            forward, whole = timed_pass(target, cache, n)
            forwards.append(forward)
            return whole

        whole = sample(once, budget_s)
        forward = quartiles(forwards[1:])
        first = passes[0]["forward_ms"]["median"] if passes else 1e3 * forward.median
        over = round(1e3 * forward.median / first, 3)
        passes.append({"n": n, "forward_ms": forward.ms(), "extend_ms": whole.ms(), "over_v1": over})
    return passes


def bound_of(target: Target, step_s: float, speed: float, tokens: int | None = None) -> Json:
    """Shortest decode step after `tokens` tokens, by the bytes that it must read, and its ratio to a measured step.

    `share` is the part of the bandwidth that the step reaches, 1 = bound by reading its bytes.
    """
    length = (len(target.prepare(Request("scale"))) if tokens is None else tokens) + 1
    weights = decode_bytes(target.model)
    cached = cache_bytes(target.text_config, length, target.model.dtype)
    seconds = (weights + cached) / speed
    sizes = {"weight_bytes": weights, "cache_bytes": cached, "bandwidth": speed}
    return {**sizes, "seconds": seconds, "share": seconds / step_s}


def measure_drafter(
    target: Target,
    name: str,
    where: tuple[torch.device, torch.dtype, tuple[int, ...] | None],
    budget_s: float,
    say: Tick,
    *,
    compiled: bool,
) -> Json:
    """Measure one drafter: alone, then during the target's prefill in every placement.

    Args:
        target: target to draft for.
        name: name of the drafter's shape.
        where: the drafter's device and dtype, and the cores of a process of its own.
        budget_s: seconds for each single measurement.
        say: called with the name of each measurement.
        compiled: true if the drafter's passes are compiled functions.

    Raises:
        CrossdraftError: the drafter's weights do not fit into memory.
    """
    device, dtype, cores = where
    banned = tuple(sorted(target.reserved))
    factory = partial(random_drafter, name, str(device), dtype, banned, compiled=compiled)
    say(f"{name}: making its weights")
    drafter = factory()
    if drafter.model.vocab_size > target.vocab_size:
        raise CrossdraftError(
            f"The drafter {name} has {drafter.model.vocab_size} tokens, the target {target.vocab_size}; "
            "give a drafter with the target's vocabulary."
        )
    say(f"{name}: alone")
    read, step = _alone(drafter, budget_s)
    size = drafter.model.model.num_parameters()
    found = {"name": name, "parameters": size, "read_ms": read.ms(), "step_ms": step.ms()}
    placements = list[Json]()
    for placement, hidden in (("before", "before"), ("thread", "beside")):
        say(f"{name}: {placement}")
        placements.append(measure_placement(target, placement, DraftRunner(drafter, hidden, device)))
    del drafter
    gc.collect()
    torch.cuda.empty_cache()
    say(f"{name}: process")
    try:
        worker = ProcessDrafter(factory, cores, drafter_timeout_s=120.0)
        placements.append(measure_placement(target, "process", DraftRunner(worker, workers=[worker])))
    except (CrossdraftError, DrafterLost) as error:
        placements.append({"placement": "process", "skipped": str(error)})
    return found | {"placements": placements}


def _alone(drafter: IndependentDrafter, budget_s: float) -> tuple[Quartiles, Quartiles]:
    """Seconds in which a drafter alone reads the prompt, and seconds per drafted token."""
    request, device = Request("scale", max_new_tokens=STEPS + 1), drafter.model.device

    def reads() -> float:
        start = time.perf_counter()
        states = drafter.begin([request])
        settle(device)
        seconds = time.perf_counter() - start
        drafter.end(states)
        return seconds

    def steps() -> float:
        states = drafter.begin([request])
        drafter.propose(states, [Budget(1)])  # the first token costs no pass: reading gave its logits
        seconds = clocked(device, lambda: drafter.propose(states, [Budget(1 + STEPS)])) / STEPS
        drafter.end(states)
        return seconds

    return sample(reads, budget_s), sample(steps, budget_s)


def measure_placement(target: Target, name: str, runner: DraftRunner[Any]) -> Json:
    """Time answers with and without the drafter, interleaved, after warm-ups: the first may end without a draft."""
    request = Request("scale", max_new_tokens=NEW_TOKENS)
    decoders = {"alone": DecodeLoop(target), "drafting": DecodeLoop(target, runner, nodes=NODES, adaptive=False)}
    runs: dict[str, list[Stats]] = {side: [] for side in decoders}
    try:
        for number, turn in enumerate(islice(orders(list(decoders)), WARM_UPS + REPEATS)):
            for side in turn:
                answer = decoders[side].generate([request])[0]
                if answer.other_notes and number >= WARM_UPS:
                    return {"placement": name, "skipped": answer.other_notes[0]}
                runs[side].append(answer.stats)
        gpu = {side: _gpu_use(decoder, request) for side, decoder in decoders.items()}
    finally:
        runner.close()
        for decoder in decoders.values():
            hand_back(decoder.cache)
    alone, drafting = (runs[side][WARM_UPS:] for side in ("alone", "drafting"))
    shares = [stats.hidden_share for stats in drafting if stats.hidden_share is not None]
    before, during = (quartiles([_prefill_s(stats) for stats in runs]) for runs in (alone, drafting))

    def median(figure: Callable[[Stats], float], of: list[Stats]) -> float:
        return quartiles([figure(stats) for stats in of]).median

    return {
        "placement": name,
        "reading_alone_ms": before.ms(),
        "reading_ms": during.ms(),
        "prefill_slowdown": round(during.median / before.median - 1, 4),
        "hidden_tokens": median(lambda stats: stats.hidden_drafted, drafting),
        "hidden_share": round(quartiles(shares).median, 4) if shares else None,
        "ttft_alone_ms": round(1e3 * median(lambda stats: stats.ttft_s, alone), 3),
        "ttft_ms": round(1e3 * median(lambda stats: stats.ttft_s, drafting), 3),
        "engine_ms_per_round": round(1e3 * median(_engine_per_round, drafting), 4),
        "overhead_share": round(median(lambda stats: stats.overhead_share, drafting), 4),
        "gpu_alone": gpu["alone"],
        "gpu": gpu["drafting"],
    }


def _gpu_use(decoder: DecodeLoop, request: Request) -> list[Json]:
    """Sample the GPUs by NVML while answers are generated for a second; empty where the target is on a CPU."""
    if decoder.target.device.type != "cuda":
        return []
    with sampled_gpus() as gpus:
        until = time.perf_counter() + SAMPLED_S
        while time.perf_counter() < until:
            decoder.generate([request])
    return gpus.uses


def _prefill_s(stats: Stats) -> float:
    return sum(stats.stages_s[stage] for stage in READING)


def _engine_per_round(stats: Stats) -> float:
    """Seconds of a round, the prefill's excluded, in which neither the target's forward nor the drafter computed."""
    times = stats.stages_s
    own = times.get("rounds", 0.0) - times.get("verify", 0.0) - times.get("draft", 0.0)
    return own / (stats.rounds - 1) if stats.rounds > 1 else 0.0
