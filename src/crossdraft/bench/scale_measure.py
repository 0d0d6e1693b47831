"""What single passes cost: memory bandwidth, a decode step against it, V(n), the prefill."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from crossdraft.bench.scale_models import cache_bytes, decode_bytes
from crossdraft.bench.statistics import Quartiles, quartiles
from crossdraft.engine.request import Request
from crossdraft.engine.target import Chunk, Target
from crossdraft.engine.tree import DraftTree

WIDTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
LEAST, MOST = 3, 50
MIB = 2**20


@dataclass(frozen=True, slots=True)
class PrefillTime:
    """The target's prefill in seconds: the vision tower, the piece with the clip, the text behind it."""

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
    """V(n) behind the whole prompt, chains of n - 1 nodes."""
    prompt = target.prepare(Request("scale"))
    capacity = len(prompt) + max(WIDTHS) + 1
    cache = target.new_cache(capacity=capacity)
    row = slice(target.prefill(cache, prompt, target.encode(prompt), capacity).row, 1)
    root = Chunk(prompt.input_ids[-1:].to(target.device))
    passes = []
    for n in WIDTHS:
        tree = DraftTree.chain([3] * (n - 1))
        forwards: list[float] = []

        def once(tree: DraftTree = tree, forwards: list[float] = forwards) -> float:
            start = time.perf_counter()
            forwards.append(target.extend(cache, row, [root], [tree]).seconds)
            cache.truncate(0, len(prompt))
            return time.perf_counter() - start

        whole = sample(once, budget_s)
        passes.append(Pass(n, quartiles(forwards[1:]), whole))
    return passes


def bound_of(target: Target, step: Pass, speed: float) -> Bound:
    """The shortest possible decode step, from the bytes it must read, and how near the measured one comes."""
    length = len(target.prepare(Request("scale"))) + 1
    weights = decode_bytes(target.model)
    cached = cache_bytes(target.text_config, length, target.model.dtype)
    seconds = (weights + cached) / speed
    return Bound(weights, cached, speed, seconds, seconds / step.forward.median)
