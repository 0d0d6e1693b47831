"""Measurements of `crossdraft bench scale`: memory bandwidth, V(n), the prefill, and drafting during the prefill.

Drafting runs with the real engine: one after the other, in a thread, in a process of its own.
"""

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import torch

from crossdraft.comparisons import orders
from crossdraft.drafters.independent import IndependentDrafter
from crossdraft.engine.decode import Decoder
from crossdraft.engine.drafter import Budget
from crossdraft.engine.fast.static_cache import hand_back
from crossdraft.engine.ledger import READING
from crossdraft.engine.pass_times import WIDTHS, timed_pass
from crossdraft.engine.passes import Chunk
from crossdraft.engine.request import Request
from crossdraft.engine.runner.process import ProcessDrafter
from crossdraft.engine.runner.runner import DrafterLost, DraftRunner
from crossdraft.engine.stats import Stats
from crossdraft.engine.target import Target
from crossdraft.engine.tree import DraftTree
from crossdraft.errors import CrossdraftError
from crossdraft_lab.bench.gpu import GpuSampler, GpuUse
from crossdraft_lab.bench.scale_models import cache_bytes, decode_bytes, parameters, random_drafter
from crossdraft_lab.bench.statistics import Quartiles, quartiles

LEAST, MOST = 3, 50
MIB = 2**20
NEW_TOKENS, NODES, REPEATS, STEPS = 16, 4, 3, 8  # of an answer with a drafter; steps of a drafter alone
WARM_UPS = 3
SAMPLED_S = 1.5  # of answers for NVML
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class PrefillTime:
    """The target's prefill in seconds: the vision encoder, the piece with the clip, the text after it."""

    tokens: int
    encode: Quartiles
    clip: Quartiles
    text: Quartiles


@dataclass(frozen=True, slots=True)
class Pass:
    """V(n): the model's own forward over n new tokens, and the whole `extend` around it, in seconds."""

    n: int
    forward: Quartiles
    extend: Quartiles


@dataclass(frozen=True, slots=True)
class Bound:
    """A decode step against the memory: `share` of the bandwidth it reaches, 1 = bound by reading its bytes."""

    weight_bytes: int
    cache_bytes: int
    bandwidth: float  # bytes per second
    seconds: float  # the shortest possible step
    share: float


@dataclass(frozen=True, slots=True)
class OverlapResult:
    """One placement. Times in seconds, medians over the repeats unless they are quartiles.

    Args:
        placement: `before` (one after the other), `thread` (on a GPU: on a CUDA stream of its own), `process`.
        skipped: why it was not measured, or None.
        prefill_alone, prefill: the target's prefill without a drafter and with it.
        hidden_tokens: drafted when the prefill was over.
        hidden_share: part of the drafting inside the prefill.
        ttft: time to the first token with the drafter; `ttft_alone` without.
        engine_per_round: the engine's own time per round after the prefill, without target and drafter.
        overhead_share: the same relative to the round.
        gpu_alone, gpu: how busy the GPUs were while answers without the drafter were written one after the other, and
            with it; empty where the target is on a CPU or NVML says nothing.
    """

    placement: str
    skipped: str | None = None
    prefill_alone: Quartiles | None = None
    prefill: Quartiles | None = None
    hidden_tokens: float = 0.0
    hidden_share: float | None = None
    ttft_alone: float = 0.0
    ttft: float = 0.0
    engine_per_round: float = 0.0
    overhead_share: float = 0.0
    gpu_alone: Sequence[GpuUse] = ()
    gpu: Sequence[GpuUse] = ()

    @property
    def slowdown(self) -> float | None:
        """By how much drafting slowed the prefill; 0 = not at all."""
        if self.prefill is None or self.prefill_alone is None:
            return None
        return self.prefill.median / self.prefill_alone.median - 1


@dataclass(frozen=True, slots=True)
class DraftCost:
    """A drafter alone: reading its prompt, and one token."""

    name: str
    parameters: int
    read: Quartiles
    step: Quartiles


@dataclass(frozen=True, slots=True)
class DraftPlacement:
    """Placement of the drafter: its device and dtype, the cores of a process of its own, whether it is compiled."""

    device: torch.device
    dtype: torch.dtype
    cores: tuple[int, ...] | None = None
    compiled: bool = False


def sample(action: Callable[[], float], budget_s: float) -> Quartiles:
    """Quartiles of the seconds that `action` returns, after one call that does not count.

    As many calls as fit into the budget, but at least 3 and at most 50.
    """
    action()
    values: list[float] = []
    start = time.perf_counter()
    while len(values) < LEAST or (len(values) < MOST and time.perf_counter() - start < budget_s):
        values.append(action())
    return quartiles(values)


def clocked(device: torch.device, action: Callable[[], object]) -> float:
    """Seconds until the device is done with `action`."""
    settle(device)
    start = time.perf_counter()
    action()
    settle(device)
    return time.perf_counter() - start


def settle(device: torch.device) -> None:
    """Wait for a GPU; a CPU is always done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def bandwidth(device: torch.device, budget_s: float) -> float:
    """Bytes per second of a copy far larger than any cache, reading and writing counted."""
    size = (1024 if device.type == "cuda" else 256) * MIB
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    times = sample(lambda: clocked(device, lambda: target.copy_(source)), budget_s)
    return 2 * size / times.q1  # the better runs: others were disturbed


@torch.inference_mode()
def measure_prefill(target: Target, budget_s: float) -> PrefillTime:
    """The prefill, piece by piece."""
    prompt = target.prepare(Request("scale"))
    device = target.device
    encode = sample(lambda: clocked(device, lambda: target.encode(prompt)), budget_s)
    pieces, _ = target.chunks(prompt, target.encode(prompt))
    cache = target.new_cache(capacity=len(prompt) + 1)
    row = slice(cache.add_row(cache.capacity), 1)

    def read(piece: Chunk, behind: int) -> float:
        cache.truncate(0, behind)
        return clocked(device, lambda: target.extend(cache, row, [piece], [DraftTree.empty()]))

    clip = sample(lambda: read(pieces[0], 0), budget_s)
    text = sample(lambda: read(pieces[1], len(pieces[0].tokens)), budget_s)
    return PrefillTime(len(prompt), encode, clip, text)


@torch.inference_mode()
def measure_passes(target: Target, budget_s: float) -> list[Pass]:
    """V(n) after the whole prompt, chains of n - 1 nodes."""
    prompt = target.prepare(Request("scale"))
    capacity = len(prompt) + max(WIDTHS) + 1
    cache = target.new_cache(capacity=capacity)
    target.prefill(cache, prompt, target.encode(prompt), capacity)
    passes = []
    for n in WIDTHS:
        forwards: list[float] = []

        def once(n: int = n, forwards: list[float] = forwards) -> float:
            forward, whole = timed_pass(target, cache, n)
            forwards.append(forward)
            return whole

        whole = sample(once, budget_s)
        passes.append(Pass(n, quartiles(forwards[1:]), whole))
    return passes


def bound_of(target: Target, step: Pass, speed: float, tokens: int | None = None) -> Bound:
    """The shortest decode step after so many tokens, by the bytes it must read, and how near the measured one is."""
    length = (len(target.prepare(Request("scale"))) if tokens is None else tokens) + 1
    weights = decode_bytes(target.model)
    cached = cache_bytes(target.text_config, length, target.model.dtype)
    seconds = (weights + cached) / speed
    return Bound(weights, cached, speed, seconds, seconds / step.forward.median)


def measure_drafter(
    target: Target, name: str, where: DraftPlacement, budget_s: float, say: Say
) -> tuple[DraftCost, list[OverlapResult]]:
    """One drafter: alone, then during the target's prefill in every placement.

    Raises:
        CrossdraftError: its weights do not fit.
    """
    banned = tuple(sorted(target.reserved))
    factory = partial(random_drafter, name, str(where.device), where.dtype, banned, compiled=where.compiled)
    say(f"{name}: making its weights")
    drafter = factory()
    if drafter.model.vocab_size > target.vocab_size:
        raise CrossdraftError(
            f"The drafter {name} has {drafter.model.vocab_size} tokens, the target {target.vocab_size}; "
            "give a drafter with the target's vocabulary."
        )
    say(f"{name}: alone")
    cost = DraftCost(name, parameters(drafter.model.model), *_alone(drafter, budget_s))
    found = []
    for placement, hidden in (("before", "before"), ("thread", "beside")):
        say(f"{name}: {placement}")
        found.append(_with_drafter(target, placement, DraftRunner(drafter, hidden, where.device)))
    del drafter
    gc.collect()
    torch.cuda.empty_cache()
    say(f"{name}: process")
    try:
        worker = ProcessDrafter(factory, where.cores, drafter_timeout_s=120.0)
        found.append(_with_drafter(target, "process", DraftRunner(worker, workers=[worker])))
    except (CrossdraftError, DrafterLost) as error:
        found.append(OverlapResult("process", skipped=str(error)))
    return cost, found


def _alone(drafter: IndependentDrafter, budget_s: float) -> tuple[Quartiles, Quartiles]:
    """Seconds to read the prompt, and per drafted token."""
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


def _with_drafter(target: Target, name: str, runner: DraftRunner[Any]) -> OverlapResult:
    """Answers with and without the drafter, interleaved, after some that warm up: the first may end without a draft."""
    request = Request("scale", max_new_tokens=NEW_TOKENS)
    decoders = {"alone": Decoder(target), "drafting": Decoder(target, runner, nodes=NODES, adaptive=False)}
    runs: dict[str, list[Stats]] = {side: [] for side in decoders}
    try:
        for number, turn in enumerate(islice(orders(list(decoders)), WARM_UPS + REPEATS)):
            for side in turn:
                answer = decoders[side].generate([request])[0]
                if answer.other_notes and number >= WARM_UPS:
                    return OverlapResult(name, skipped=answer.other_notes[0])
                runs[side].append(answer.stats)
        gpu = {side: _gpu_use(decoder, request) for side, decoder in decoders.items()}
    finally:
        runner.close()
        for decoder in decoders.values():
            hand_back(decoder.cache)
    alone, drafting = (runs[side][WARM_UPS:] for side in ("alone", "drafting"))
    shares = [stats.hidden_share for stats in drafting if stats.hidden_share is not None]
    return OverlapResult(
        placement=name,
        prefill_alone=quartiles([_prefill_s(stats) for stats in alone]),
        prefill=quartiles([_prefill_s(stats) for stats in drafting]),
        hidden_tokens=quartiles([stats.hidden_drafted for stats in drafting]).median,
        hidden_share=quartiles(shares).median if shares else None,
        ttft_alone=quartiles([stats.ttft_s for stats in alone]).median,
        ttft=quartiles([stats.ttft_s for stats in drafting]).median,
        engine_per_round=quartiles([_engine_per_round(stats) for stats in drafting]).median,
        overhead_share=quartiles([stats.overhead_share for stats in drafting]).median,
        gpu_alone=gpu["alone"],
        gpu=gpu["drafting"],
    )


def _gpu_use(decoder: Decoder, request: Request) -> Sequence[GpuUse]:
    """Sample the GPUs by NVML while answers are written for a second; nothing where the target is on a CPU."""
    if decoder.target.device.type != "cuda":
        return ()
    with GpuSampler() as gpus:
        until = time.perf_counter() + SAMPLED_S
        while time.perf_counter() < until:
            decoder.generate([request])
    return gpus.uses


def _prefill_s(stats: Stats) -> float:
    return sum(stats.stages_s[stage] for stage in READING)


def _engine_per_round(stats: Stats) -> float:
    """Seconds of a round but the ride-along's in which neither the target's forward nor the drafter computed."""
    times = stats.stages_s
    own = times.get("rounds", 0.0) - times.get("verify", 0.0) - times.get("draft", 0.0)
    return own / (stats.rounds - 1) if stats.rounds > 1 else 0.0
