"""`crossdraft bench scale`: what needs no trained weights, at any size, on CPU and CUDA.

Runs where only torch, transformers and numpy are installed: `python -m crossdraft_lab.bench.scale --config 0.5b
--device cpu`. That is why its options are read by argparse.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch
from transformers.utils import logging

from crossdraft.cli.cores import Cores, choose_cores
from crossdraft.cli.outputs import check_outputs, write_json
from crossdraft.engine.fast.pinning import pinned
from crossdraft.errors import CrossdraftError
from crossdraft_lab.bench.common import add_output_arguments
from crossdraft_lab.bench.environment import environment, memory
from crossdraft_lab.bench.scale_measure import (
    NODES,
    Bound,
    DraftCost,
    DraftPlacement,
    OverlapResult,
    Pass,
    PrefillTime,
    Say,
    bandwidth,
    bound_of,
    measure_drafter,
    measure_passes,
    measure_prefill,
)
from crossdraft_lab.bench.scale_models import DRAFTERS, TARGETS, parameters, random_target, shape_of
from crossdraft_lab.bench.statistics import Quartiles

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

PIECES = ("encode", "clip", "text")
DESCRIPTION = "Measure shapes of any size with random weights: times do not depend on them."


@dataclass(frozen=True, slots=True)
class Scale:
    """Settings of a measurement at scale.

    Args:
        config: a name out of `TARGETS`, or the path of a config.json.
        drafters: names out of `DRAFTERS`, or paths.
        device, draft_device: where they run.
        dtype: of both.
        budget_s: time for each single measurement; large models take three runs even so.
        cores: on a CPU, whose cores are whose; `None` leaves the affinity as it is.
        seed: of the random weights.
        compile: have decode passes run as compiled functions: the drafter's of one token, the target's of up to 8.
    """

    config: str
    drafters: tuple[str, ...]
    device: torch.device
    draft_device: torch.device
    dtype: torch.dtype
    budget_s: float = 3.0
    cores: Cores | None = None
    seed: int = 0
    compile: bool = False


@dataclass(frozen=True, slots=True)
class ScaleResult:
    """Results of the measurement; `environment` is that of the beginning, pinned as the measurement was."""

    environment: dict[str, object]
    parameters: int
    prefill: PrefillTime
    passes: list[Pass]
    bound: Bound
    drafters: list[tuple[DraftCost | str, list[OverlapResult]]]  # a sentence instead of the costs: why it was skipped


def run_scale(scale: Scale, say: Say) -> ScaleResult:
    """Measure, target first, then one drafter after the other.

    Raises:
        CrossdraftError: a shape that is not known, or a target that does not fit.
    """
    with pinned(None if scale.cores is None else scale.cores.target):
        return _run(scale, say)


def _run(scale: Scale, say: Say) -> ScaleResult:
    found = environment()  # before this process itself is the load
    say("memory bandwidth")
    speed = bandwidth(scale.device, scale.budget_s)
    say(f"{scale.config}: making its weights")
    target = random_target(shape_of(scale.config, TARGETS), scale.device, scale.dtype, scale.seed)
    if scale.compile:
        say(f"{scale.config}: compiling its passes")
        target.compile(widest=1 + NODES)
    say(f"{scale.config}: prefill")
    prefill = measure_prefill(target, scale.budget_s)
    say(f"{scale.config}: V(n)")
    passes = measure_passes(target, scale.budget_s)
    cores = None if scale.cores is None else scale.cores.draft
    where = DraftPlacement(scale.draft_device, scale.dtype, cores, scale.compile)
    drafters: list[tuple[DraftCost | str, list[OverlapResult]]] = []
    for name in scale.drafters:
        try:
            drafters.append(measure_drafter(target, name, where, scale.budget_s, say))
        except CrossdraftError as error:
            drafters.append((f"{name}: {error}", []))
    bound = bound_of(target, passes[0], speed)
    return ScaleResult(found, parameters(target.model), prefill, passes, bound, drafters)


def read_arguments(argv: Sequence[str], prog: str) -> tuple[Scale, argparse.Namespace]:
    """The command line as a `Scale`, and as it was given.

    Raises:
        CrossdraftError: an unknown device or core, or a file that cannot be written.
    """
    parser = argparse.ArgumentParser(prog=prog, description=DESCRIPTION)
    parser.add_argument("--config", required=True, help=f"{', '.join(TARGETS)}, or the path of a config.json")
    parser.add_argument("--drafter", action="append", help=f"{', '.join(DRAFTERS)} (both by default), or a path")
    parser.add_argument("--device", help="CUDA if there is a GPU, else cpu")
    parser.add_argument("--draft-device", help="the second GPU if there is one, else the target's device")
    parser.add_argument("--dtype", choices=DTYPES, help="bfloat16 on a GPU, float32 on a CPU")
    parser.add_argument("--budget", type=float, default=3.0, metavar="S", help="seconds for each measurement")
    parser.add_argument("--target-cores", help="CPU cores of the target, as 0 or 0-3; by default all but one")
    parser.add_argument("--draft-cores", help="CPU cores of a drafter's process; by default one")
    parser.add_argument("--compile", action="store_true", help="compile decode passes: minutes the first time")
    parser.add_argument("--seed", type=int, default=0, help="of the random weights")
    add_output_arguments(parser)
    given = parser.parse_args(argv)
    check_outputs(given.json_out, force=given.force)
    device = _device(given.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    second = device if device.type == "cpu" or torch.cuda.device_count() < 2 else torch.device("cuda:1")
    on_cpu = device.type == "cpu" or given.target_cores or given.draft_cores
    scale = Scale(
        config=given.config,
        drafters=tuple(given.drafter or DRAFTERS),
        device=device,
        draft_device=_device(given.draft_device) if given.draft_device else second,
        dtype=DTYPES[given.dtype or ("bfloat16" if device.type == "cuda" else "float32")],
        budget_s=given.budget,
        cores=choose_cores(given.target_cores, given.draft_cores, all_target=True) if on_cpu else None,
        seed=given.seed,
        compile=given.compile,
    )
    return scale, given


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        if device.type not in ("cpu", "cuda"):
            raise CrossdraftError(f"Device '{name}' is neither a CPU nor a CUDA GPU; scale measures only these.")
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise CrossdraftError(f"Device '{name}' cannot be used here; try --device cpu.") from error
    return torch.device("cuda", device.index or 0) if device.type == "cuda" else device


def main(argv: Sequence[str], prog: str = "crossdraft_lab.bench.scale") -> None:
    """Run a command line: progress on stderr, the result on stdout, or as JSON instead.

    Raises:
        CrossdraftError: bad input.
    """
    logging.set_verbosity_error()
    scale, given = read_arguments(argv, prog)
    start = time.perf_counter()

    def say(what: str) -> None:
        sys.stderr.write(f"{time.perf_counter() - start:7.1f} s  {what}\n")

    measured = run_scale(scale, say)
    (sys.stderr if given.json else sys.stdout).write("\n".join(lines(scale, measured)) + "\n")
    write_json(to_json(scale, measured), given.json_out, stdout=given.json)


def to_json(scale: Scale, measured: ScaleResult) -> dict[str, object]:
    """Plain values; times in milliseconds."""
    step = measured.passes[0].forward.median
    bound = asdict(measured.bound)
    return {
        "environment": measured.environment,
        "workload": {
            "config": scale.config,
            "parameters": measured.parameters,
            "prompt_tokens": measured.prefill.tokens,
            "device": str(scale.device),
            "draft_device": str(scale.draft_device),
            "dtype": _name(scale.dtype),
            "compiled": scale.compile,
            "cores": None if scale.cores is None else asdict(scale.cores),
        },
        "memory": memory(),
        "prefill_ms": {name: getattr(measured.prefill, name).ms() for name in PIECES},
        "decode": {
            "step_ms": measured.passes[0].forward.ms(),
            "bound_ms": round(bound.pop("seconds") * 1e3, 4),
            **bound,
        },
        "verify": [
            {
                "n": one.n,
                "forward_ms": one.forward.ms(),
                "extend_ms": one.extend.ms(),
                "over_v1": round(one.forward.median / step, 3),
            }
            for one in measured.passes
        ],
        "drafters": [_drafter_json(cost, placements, step) for cost, placements in measured.drafters],
    }


def _drafter_json(cost: DraftCost | str, placements: Sequence[OverlapResult], step: float) -> dict[str, object]:
    if isinstance(cost, str):
        return {"skipped": cost}
    return {
        "name": cost.name,
        "parameters": cost.parameters,
        "read_ms": cost.read.ms(),
        "step_ms": cost.step.ms(),
        "c": round(cost.step.median / step, 4),
        "placements": [_overlap_json(one) for one in placements],
    }


def _overlap_json(one: OverlapResult) -> dict[str, object]:
    if one.prefill is None or one.prefill_alone is None:
        return {"placement": one.placement, "skipped": one.skipped}
    return {
        "placement": one.placement,
        "reading_alone_ms": one.prefill_alone.ms(),
        "reading_ms": one.prefill.ms(),
        "prefill_slowdown": round(one.slowdown or 0.0, 4),
        "hidden_tokens": one.hidden_tokens,
        "hidden_share": None if one.hidden_share is None else round(one.hidden_share, 4),
        "ttft_alone_ms": round(one.ttft_alone * 1e3, 3),
        "ttft_ms": round(one.ttft * 1e3, 3),
        "engine_ms_per_round": round(one.engine_per_round * 1e3, 4),
        "overhead_share": round(one.overhead_share, 4),
        "gpu_alone": [use.to_json() for use in one.gpu_alone],
        "gpu": [use.to_json() for use in one.gpu],
    }


def lines(scale: Scale, measured: ScaleResult) -> list[str]:
    """The result for people."""
    prefill, bound, step = measured.prefill, measured.bound, measured.passes[0].forward.median
    memory_bound = (
        f"decode   {step * 1e3:.2f} ms; reading {bound.weight_bytes / 1e9:.3f} GB of weights and "
        f"{bound.cache_bytes / 1e9:.3f} GB of cache at {bound.bandwidth / 1e9:.1f} GB/s takes "
        f"{bound.seconds * 1e3:.2f} ms ({bound.share:.0%})"
    )
    pieces = ", ".join(f"{name} {_ms(getattr(prefill, name))}" for name in PIECES)
    out = [
        f"{scale.config}: {measured.parameters / 1e9:.2f} B parameters, {scale.device}, {_name(scale.dtype)}",
        f"prefill  {prefill.tokens} tokens: {pieces}",
        memory_bound,
        "V(n)/V(1)  " + "  ".join(f"{one.n}: {one.forward.median / step:.2f}" for one in measured.passes),
    ]
    for cost, placements in measured.drafters:
        if isinstance(cost, str):
            out.append(f"skipped  {cost}")
            continue
        out.append(
            f"{cost.name}: {cost.parameters / 1e9:.3f} B, reads in {_ms(cost.read)}, a token in {_ms(cost.step)}, "
            f"c = {cost.step.median / step:.3f}"
        )
        out += [f"  {_overlap_line(one)}" for one in placements]
    return out


def _overlap_line(one: OverlapResult) -> str:
    if one.prefill is None or one.prefill_alone is None:
        return f"{one.placement:8} skipped: {one.skipped}"
    share = "" if one.hidden_share is None else f", {one.hidden_share:.0%} of it hidden"
    return (
        f"{one.placement:8} prefill {_ms(one.prefill_alone)} -> {_ms(one.prefill)} "
        f"({one.slowdown or 0.0:+.1%}), {one.hidden_tokens:.0f} tokens drafted{share}, TTFT "
        f"{one.ttft_alone * 1e3:.1f} -> {one.ttft * 1e3:.1f} ms, engine {one.engine_per_round * 1e3:.2f} ms "
        f"({one.overhead_share:.1%}) per round{_busy_words(one)}"
    )


def _busy_words(one: OverlapResult) -> str:
    """Describe how busy each GPU was without the drafter and with it."""
    pairs = zip(one.gpu_alone, one.gpu, strict=False)
    return "".join(f", {use.name} busy {alone.busy:.0%} -> {use.busy:.0%}" for alone, use in pairs)


def _ms(times: Quartiles) -> str:
    return f"{times.median * 1e3:.1f} ms"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except CrossdraftError as error:
        sys.stderr.write(f"crossdraft: {error}\n")
        sys.exit(2)
