"""`crossdraft bench scale`: measurements that need no trained weights, at any model size, on CPU and CUDA.

It runs where only torch, transformers and numpy are installed: `python -m crossdraft_lab.bench.scale --config 0.5b
--device cpu`. For this reason, argparse reads its options.
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from transformers.utils import logging

from crossdraft.cli.cores import Cores, choose_cores
from crossdraft.cli.outputs import check_outputs
from crossdraft.dtypes import dtype_name
from crossdraft.engine.devices import usable_device
from crossdraft.engine.fast.pinning import pinned
from crossdraft.errors import CrossdraftError
from crossdraft_lab.bench.environment import environment, memory
from crossdraft_lab.bench.experiments.record import Tick
from crossdraft_lab.bench.scale_measure import (
    NODES,
    Json,
    bandwidth,
    bound_of,
    measure_drafter,
    measure_passes,
    measure_prefill,
)
from crossdraft_lab.bench.scale_models import DRAFTERS, TARGETS, random_target, shape_of
from crossdraft_lab.outputs import write_json

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
DESCRIPTION = "Measure shapes of any size with random weights: times do not depend on them."


@dataclass(frozen=True, slots=True)
class Scale:
    """Settings of a measurement at scale.

    Args:
        config: a name out of `TARGETS`, or the path of a config.json.
        drafters: names out of `DRAFTERS`, or paths.
        device, draft_device: devices of the target and of the drafters.
        dtype: dtype of target and drafters.
        budget_s: seconds for each single measurement; large models take three runs even if that is longer.
        cores: on a CPU, the cores of target and drafter; `None` leaves the affinity as it is.
        seed: seed of the random weights.
        compile: run decode passes as compiled functions: the drafter's of one token, the target's of up to 8.
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


def run_scale(scale: Scale, say: Tick) -> Json:
    """Measure the target, then one drafter after the other; return plain values, times in milliseconds.

    Raises:
        CrossdraftError: a shape that is not known, or a target that does not fit.
    """
    with pinned(None if scale.cores is None else scale.cores.target):
        return _run(scale, say)


def _run(scale: Scale, say: Tick) -> Json:
    found = environment()  # before this process itself is the load
    say("memory bandwidth")
    speed = bandwidth(scale.device, scale.budget_s)
    say(f"{scale.config}: making its weights")
    target = random_target(shape_of(scale.config, TARGETS), scale.device, scale.dtype, scale.seed)
    if scale.compile:
        say(f"{scale.config}: compiling its passes")
        target.compile(widest=1 + NODES)
    say(f"{scale.config}: prefill")
    prompt, prefill = measure_prefill(target, scale.budget_s)
    say(f"{scale.config}: V(n)")
    passes = measure_passes(target, scale.budget_s)
    step = passes[0]["forward_ms"]["median"]
    cores = None if scale.cores is None else scale.cores.draft
    drafters = list[Json]()
    for name in scale.drafters:
        where = scale.draft_device, scale.dtype, cores
        try:
            one = measure_drafter(target, name, where, scale.budget_s, say, compiled=scale.compile)
            drafters.append(one | {"c": round(one["step_ms"]["median"] / step, 4)})
        except CrossdraftError as error:
            drafters.append({"skipped": f"{name}: {error}"})
    bound = bound_of(target, step / 1e3, speed)
    return {
        "environment": found,
        "workload": {
            "config": scale.config,
            "parameters": target.model.num_parameters(),
            "prompt_tokens": prompt,
            "device": str(scale.device),
            "draft_device": str(scale.draft_device),
            "dtype": dtype_name(scale.dtype),
            "compiled": scale.compile,
            "cores": None if scale.cores is None else asdict(scale.cores),
        },
        "memory": memory(),
        "prefill_ms": prefill,
        "decode": {"step_ms": passes[0]["forward_ms"], "bound_ms": round(1e3 * bound.pop("seconds"), 4), **bound},
        "verify": passes,
        "drafters": drafters,
    }


def parser_of(prog: str, description: str, config: str | None = None) -> argparse.ArgumentParser:
    """Parser of the options of the programs that run where only argparse is installed to read options.

    Args:
        prog, description: name and description of the program.
        config: default of `--config`; empty where a config must be named; `None` = there is no such option.
    """
    parser = argparse.ArgumentParser(prog=prog, description=description)
    if config is not None:
        named = f"{', '.join([config, *TARGETS] if config else TARGETS)}, or the path of a config.json"
        parser.add_argument("--config", required=not config, default=config, help=named)
    parser.add_argument("--device", help="CUDA if there is a GPU, else cpu")
    parser.add_argument("--dtype", choices=DTYPES, help="bfloat16 on a GPU, float32 on a CPU")
    parser.add_argument("--json", action="store_true", help="JSON on stdout; the rest then goes to stderr")
    parser.add_argument("--json-out", type=Path, metavar="FILE", help="write the result as JSON into a file, too")
    parser.add_argument("--force", action="store_true", help="overwrite a file that exists")
    return parser


def parsed(parser: argparse.ArgumentParser, argv: Sequence[str]) -> tuple[argparse.Namespace, torch.device, str]:
    """Parse options; return them with the device and the dtype's name. From here on nothing is logged.

    Raises:
        CrossdraftError: an unknown device, or a file that cannot be written.
    """
    logging.set_verbosity_error()
    given = parser.parse_args(argv)
    check_outputs(given.json_out, force=given.force)
    device = _device(given.device, "--device")
    return given, device, given.dtype or ("bfloat16" if device.type == "cuda" else "float32")


def publish(given: argparse.Namespace, result: Json, said: Sequence[str]) -> None:
    """Write a result: its lines to stdout; with --json, JSON to stdout and the lines to stderr."""
    (sys.stderr if given.json else sys.stdout).write("\n".join(said) + "\n")
    write_json(result, given.json_out, stdout=given.json)


def run_program(main: Callable[[Sequence[str]], None]) -> None:
    """Run a module's `main` as a program: bad input is a sentence on stderr, and exit status 2."""
    try:
        main(sys.argv[1:])
    except CrossdraftError as error:
        sys.stderr.write(f"crossdraft: {error}\n")
        sys.exit(2)


def read_arguments(argv: Sequence[str], prog: str) -> tuple[Scale, argparse.Namespace]:
    """Read the command line; return it as a `Scale` and as parsed options.

    Raises:
        CrossdraftError: an unknown device or core, or a file that cannot be written.
    """
    parser = parser_of(prog, DESCRIPTION, "")
    parser.add_argument("--drafter", action="append", help=f"{', '.join(DRAFTERS)} (both by default), or a path")
    parser.add_argument("--draft-device", help="the second GPU if there is one, else the target's device")
    parser.add_argument("--budget", type=float, default=3.0, metavar="S", help="seconds for each measurement")
    parser.add_argument("--target-cores", help="CPU cores of the target, as 0 or 0-3; by default all but one")
    parser.add_argument("--draft-cores", help="CPU cores of a drafter's process; by default one")
    parser.add_argument("--compile", action="store_true", help="compile decode passes: minutes the first time")
    parser.add_argument("--seed", type=int, default=0, help="of the random weights")
    given, device, dtype = parsed(parser, argv)
    second = device if device.type == "cpu" or torch.cuda.device_count() < 2 else torch.device("cuda:1")
    on_cpu = device.type == "cpu" or given.target_cores or given.draft_cores
    scale = Scale(
        config=given.config,
        drafters=tuple(given.drafter or DRAFTERS),
        device=device,
        draft_device=_device(given.draft_device, "--draft-device") if given.draft_device else second,
        dtype=DTYPES[dtype],
        budget_s=given.budget,
        cores=choose_cores(given.target_cores, given.draft_cores, all_target=True) if on_cpu else None,
        seed=given.seed,
        compile=given.compile,
    )
    return scale, given


def _device(name: str | None, option: str) -> torch.device:
    device = usable_device(name, option)
    if device.type not in ("cpu", "cuda"):
        raise CrossdraftError(f"Device '{name}' is neither a CPU nor a CUDA GPU; scale measures only these.")
    return device


def main(argv: Sequence[str], prog: str = "crossdraft_lab.bench.scale") -> None:
    """Run a command line: progress on stderr, the result on stdout, or as JSON instead.

    Raises:
        CrossdraftError: bad input.
    """
    scale, given = read_arguments(argv, prog)
    start = time.perf_counter()

    def say(what: str) -> None:
        sys.stderr.write(f"{time.perf_counter() - start:7.1f} s  {what}\n")

    measured = run_scale(scale, say)
    publish(given, measured, lines(measured))


def lines(measured: Json) -> list[str]:
    """The result for people."""
    work, decode = measured["workload"], measured["decode"]
    memory_bound = (
        f"decode   {decode['step_ms']['median']:.2f} ms; reading {decode['weight_bytes'] / 1e9:.3f} GB of weights and "
        f"{decode['cache_bytes'] / 1e9:.3f} GB of cache at {decode['bandwidth'] / 1e9:.1f} GB/s takes "
        f"{decode['bound_ms']:.2f} ms ({decode['share']:.0%})"
    )
    pieces = ", ".join(f"{name} {_ms(times)}" for name, times in measured["prefill_ms"].items())
    out = [
        f"{work['config']}: {work['parameters'] / 1e9:.2f} B parameters, {work['device']}, {work['dtype']}",
        f"prefill  {work['prompt_tokens']} tokens: {pieces}",
        memory_bound,
        "V(n)/V(1)  " + "  ".join(f"{one['n']}: {one['over_v1']:.2f}" for one in measured["verify"]),
    ]
    for one in measured["drafters"]:
        if "skipped" in one:
            out.append(f"skipped  {one['skipped']}")
            continue
        out.append(
            f"{one['name']}: {one['parameters'] / 1e9:.3f} B, reads in {_ms(one['read_ms'])}, a token in "
            f"{_ms(one['step_ms'])}, c = {one['c']:.3f}"
        )
        out += [f"  {_overlap_line(each)}" for each in one["placements"]]
    return out


def _overlap_line(one: Json) -> str:
    if "skipped" in one:
        return f"{one['placement']:8} skipped: {one['skipped']}"
    share = "" if one["hidden_share"] is None else f", {one['hidden_share']:.0%} of it hidden"
    busy = "".join(
        f", {use['name']} busy {alone['busy']:.0%} -> {use['busy']:.0%}"
        for alone, use in zip(one["gpu_alone"], one["gpu"], strict=False)
    )
    return (
        f"{one['placement']:8} prefill {_ms(one['reading_alone_ms'])} -> {_ms(one['reading_ms'])} "
        f"({one['prefill_slowdown']:+.1%}), {one['hidden_tokens']:.0f} tokens drafted{share}, TTFT "
        f"{one['ttft_alone_ms']:.1f} -> {one['ttft_ms']:.1f} ms, engine {one['engine_ms_per_round']:.2f} ms "
        f"({one['overhead_share']:.1%}) per round{busy}"
    )


def _ms(times: Json) -> str:
    return f"{times['median']:.1f} ms"


if __name__ == "__main__":
    run_program(main)
