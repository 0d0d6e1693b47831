"""Parts of `make gpu`, at any size with random weights: `python -m crossdraft_lab.bench.scale_parts PART`.

Runs where torch, transformers, numpy and what these need are installed, on a GPU or, with small shapes, on a CPU:

    attention    answers with a drafter in a process of its own, with cuDNN's attention off and (`--cudnn`) on
    gaps         decode passes under PyTorch's profiler: kernels of a pass, and the time between them
    heads        time of a draft of heads on the target's features, beside the passes that verify it
    training     time and memory of an optimiser step of these heads, on features of noise
    throughput   1 to 64 requests in words at once, in turn with Hugging Face's `generate` on one batch
"""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from crossdraft.dtypes import dtype_name
from crossdraft.engine.cache import KVCache
from crossdraft.engine.loop import DecodeLoop
from crossdraft.engine.prefill import prefill
from crossdraft.engine.prompt import Prompt
from crossdraft.engine.request import Request
from crossdraft.engine.runner.process import ProcessDrafter
from crossdraft.engine.runner.runner import DrafterLost, DraftRunner
from crossdraft.engine.target import Target
from crossdraft.errors import CrossdraftError
from crossdraft.heads.drafting.head_drafter import TREES
from crossdraft.heads.files import config_of, make
from crossdraft.heads.networks.base import Head, SharedWeights
from crossdraft.heads.networks.train_batch import TrainBatch
from crossdraft.heads.registry import HEADS
from crossdraft_lab.bench.environment import environment, memory
from crossdraft_lab.bench.heads_timing import time_drafts
from crossdraft_lab.bench.identity import ReferenceAnswer
from crossdraft_lab.bench.scale import DTYPES, parsed, parser_of, publish, run_program
from crossdraft_lab.bench.scale_measure import Json, clocked, measure_placement, sample, timed_pass
from crossdraft_lab.bench.scale_models import TARGETS, attending_drafter, random_target, shape_of
from crossdraft_lab.bench.statistics import median_ratio, quartiles
from crossdraft_lab.bench.workload import Item
from crossdraft_lab.objective import Objective, pad_batch, score, target_to_draft, teacher
from crossdraft_lab.sizes import sizes_of

NETWORKS = ("eagle3", "medusa", "hydra++", "redrafter")
STEPS = 5  # tokens that a head predicts in a row
DRAFT_IDS = 32_000  # most ids of a draft vocabulary
SIZES = (1, 2, 4, 8, 16, 32, 64)
PROFILED = 8  # passes under the profiler


def draw_answer(target: Target, count: int) -> tuple[int, ...]:
    """Ids of text in place of an answer: random weights write nothing."""
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randint(3, target.vocab_size // 2, (count,), generator=generator).tolist())


def in_words(target: Target, tokens: int) -> Target:
    """Let a target be asked in `tokens` tokens of text alone."""
    prompt = Prompt(torch.tensor(draw_answer(target, tokens)))
    return target.reading(lambda _: prompt)


def read_cache(target: Target, room: int) -> KVCache:
    """A cache that holds the target's prompt, with room for so many tokens behind it."""
    prompt = target.prepare(Request("scale"))
    cache = target.new_cache(capacity=len(prompt) + room)
    prefill(target, cache, prompt, target.encode(prompt), len(prompt) + room)
    return cache


@torch.inference_mode()
def attention(target: Target, given: Any) -> Json:
    """Time a decode pass, then answers with a drafter in a process, with or without cuDNN's attention in both."""
    torch.backends.cuda.enable_cudnn_sdp(given.cudnn)
    cache = read_cache(text := in_words(target, given.tokens), 2)
    step = sample(lambda: timed_pass(text, cache, 1)[0], given.budget)
    reserved, name = tuple(sorted(target.reserved)), given.drafter or "small"
    factory = partial(attending_drafter, given.cudnn, name, str(target.device), target.model.dtype, reserved)
    try:
        worker = ProcessDrafter(factory, None, drafter_timeout_s=120.0)
        found = measure_placement(target, "process", DraftRunner(worker, workers=[worker]))
    except (CrossdraftError, DrafterLost) as error:
        found = {"placement": "process", "skipped": str(error)}
    return {"cudnn": given.cudnn, "step_ms": step.ms(), **found}


@torch.inference_mode()
def gaps(target: Target, given: Any) -> Json:
    """Profile decode passes as they are and, where they can be, compiled; see `launch_gaps`."""
    text = in_words(target, given.tokens)
    ways = {"as_they_are": text}
    if given.compile:
        ways["compiled"] = text.reading()
        ways["compiled"].compile(1, 16, now=False)
    return {name: {n: launch_gaps(way, n) for n in (1, 16)} for name, way in ways.items()}


def launch_gaps(target: Target, n: int) -> Json:
    """Kernels of a pass over n tokens, the share of its time in which one ran, and the time between two.

    On a CPU a kernel is an operator that no other operator has called.
    """
    cache = read_cache(target, 2 * PROFILED + n)
    for _ in range(3):
        timed_pass(target, cache, n)
    on_gpu = target.device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with profile(activities=activities) as profiler:
        start = time.perf_counter()
        for _ in range(PROFILED):
            timed_pass(target, cache, n)
        seconds = time.perf_counter() - start
    kind = DeviceType.CUDA if on_gpu else DeviceType.CPU
    events = [one for one in profiler.events() or () if one.device_type == kind and (on_gpu or one.cpu_parent is None)]
    spans = sorted((one.time_range.start, one.time_range.end) for one in events)
    merged = list[list[float]]()
    for start_us, end_us in spans:
        if merged and start_us <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end_us)
        else:
            merged.append([start_us, end_us])
    between = quartiles([1e-6 * (after[0] - before[1]) for before, after in pairwise(merged)] or [0.0])
    busy = 1e-6 * sum(end_us - start_us for start_us, end_us in merged) / seconds
    each = {"kernels": round(len(spans) / PROFILED, 1), "pass_ms": round(1e3 * seconds / PROFILED, 3)}
    return {**each, "busy_share": round(busy, 4), "gap_ms": between.ms()}


def random_heads(target: Target) -> dict[str, Head]:
    """Heads of the target's sizes with random weights, by their networks' names."""
    rows, text = SharedWeights.of(target.model), target.text_config
    settings = {"hidden_size": text.hidden_size, "vocab_size": target.vocab_size, "num_layers": text.num_hidden_layers}
    settings |= {"draft_ids": tuple(range(min(target.vocab_size, DRAFT_IDS))), "steps": STEPS}
    kinds = {name: HEADS[name].network_class.config_class for name in NETWORKS}
    torch.manual_seed(1)
    return {
        name: make(name, config_of(name, {**sizes_of(kind, target), **settings}, name), rows)
        .to(target.device, target.model.dtype)
        .eval()
        for name, kind in kinds.items()
    }


def heads(target: Target, given: Any) -> Json:
    """Time the drafts of random heads along a made-up answer: trees of `--nodes` nodes, and chains."""
    drafters: Mapping[str, Any] = {
        f"{name}, {tree}": HEADS[name].drafter_class(head, TREES[tree], (), sorted(target.reserved))
        for name, head in random_heads(target).items()
        for tree in ("dynamic", "chain")
    }
    known = ReferenceAnswer(Item(0, "scale", Request("scale")), draw_answer(target, given.answer))
    passes, drafts = time_drafts(in_words(target, given.tokens), drafters, [known], given.nodes)
    return {"target": passes, "drafters": drafts}


def training(target: Target, given: Any) -> Json:
    """Time optimiser steps of random heads in float32 under bf16 autocast, on one answer of features of noise."""
    config, device = target.text_config, target.device
    tokens, layers = torch.tensor(draw_answer(target, given.tokens + given.answer)), config.num_hidden_layers + 1
    drawn = {layer: [torch.randn(len(tokens) - 1, config.hidden_size)] for layer in range(layers)}
    batch = pad_batch([tokens], [given.tokens], drawn).to(device)
    found = dict[str, Json]()
    for name, made in random_heads(target).items():
        head = made.float().train()
        optimiser = torch.optim.AdamW(head.parameters(), 1e-4)
        lookup = target_to_draft(head.draft_ids, head.config.vocab_size)
        rows = SharedWeights.of(target.model).lm_head[head.draft_ids].float()
        logits, labels = teacher(batch, rows, head.config.num_layers, lookup)
        step = partial(_optimise, head, optimiser, batch, logits, labels)
        times = sample(partial(clocked, device, step), given.budget)
        size = sum(value.numel() for value in head.stored().values())
        found[name] = {"parameters": size, "step_ms": times.ms()}
    return {"answer_tokens": given.answer, "prompt_tokens": given.tokens, "heads": found, "memory": memory()}


def _optimise(head: Head, optimiser: Any, batch: TrainBatch, logits: Tensor, labels: Tensor) -> None:
    with torch.autocast(labels.device.type, torch.bfloat16):
        loss, _ = score(Objective({"soft_cross_entropy": 1.0}, 0.8), head(batch), batch, logits, labels)
    loss.backward()
    optimiser.step()
    optimiser.zero_grad(set_to_none=True)


@torch.inference_mode()
def throughput(target: Target, given: Any) -> Json:
    """Tokens a second of requests at once, ours and Hugging Face's in turn, every answer of the same length."""
    text, ids = in_words(target, given.tokens), torch.tensor([draw_answer(target, given.tokens)], device=target.device)
    found, model = list[Json](), cast("Any", target.model)
    for size in given.sizes:
        loop = DecodeLoop(text, max_batch=size)
        asked, batch = [Request("scale", max_new_tokens=given.answer)] * size, ids.repeat(size, 1)
        how: Json = {"max_new_tokens": given.answer, "min_new_tokens": given.answer, "do_sample": False}
        theirs = partial(model.generate, batch, attention_mask=torch.ones_like(batch), pad_token_id=0, **how)
        ways: dict[str, Callable[[], object]] = {"ours": partial(loop.generate, asked), "hugging_face": theirs}
        times: dict[str, list[float]] = {name: [] for name in ways}
        for turn in range(1 + given.repeats):
            for name, run in ways.items():
                spent = clocked(target.device, run)
                times[name] += [spent] * (turn > 0)
        rates = {name: round(size * given.answer / quartiles(spent).median, 2) for name, spent in times.items()}
        ratio = median_ratio(times["hugging_face"], times["ours"])
        found.append({"requests": size, "tokens_per_s": rates, "over_hugging_face": ratio.to_json()})
    return {"prompt_tokens": given.tokens, "answer_tokens": given.answer, "sizes": found}


PARTS: Mapping[str, Callable[[Target, Any], Json]] = {
    one.__name__: one for one in (attention, gaps, heads, training, throughput)
}


def main(argv: Sequence[str], prog: str = "crossdraft_lab.bench.scale_parts") -> None:
    """Run a command line.

    Raises:
        CrossdraftError: bad input.
    """
    parser = parser_of(prog, "Parts of a measurement at scale, with random weights.", "video-llava-7b")
    parser.add_argument("part", choices=PARTS, help="which part to measure")
    parser.add_argument("--budget", type=float, default=2.0, metavar="S", help="seconds for each measurement")
    parser.add_argument("--tokens", type=int, default=256, help="tokens of a prompt in words")
    parser.add_argument("--answer", type=int, default=64, help="tokens of an answer")
    parser.add_argument("--nodes", type=int, default=16, help="nodes of a draft tree")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each batch")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="requests at once")
    parser.add_argument("--drafter", help="shape of the drafter in a process; small by default")
    parser.add_argument("--cudnn", action="store_true", help="with cuDNN's attention")
    parser.add_argument("--compile", action="store_true", help="profile compiled passes, too")
    given, device, dtype = parsed(parser, argv)
    if min(given.tokens, given.answer, given.nodes, given.repeats, *given.sizes) < 1:
        raise CrossdraftError("--tokens, --answer, --nodes, --repeats and --sizes must be 1 or more.")
    found = environment()
    target = random_target(shape_of(given.config, TARGETS), device, DTYPES[dtype])
    workload = {"part": given.part, "config": given.config, "device": str(device), "dtype": dtype_name(DTYPES[dtype])}
    measured = PARTS[given.part](target, given)
    publish(given, {"environment": found, "workload": workload, **measured}, [f"{given.part}: {measured}"])


if __name__ == "__main__":
    run_program(main)
