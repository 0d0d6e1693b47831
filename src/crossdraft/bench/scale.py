"""`crossdraft bench scale`: what needs no trained weights, at any size, on CPU and CUDA.

Runs where only torch, transformers and numpy are installed: `python -m crossdraft.bench.scale --config 0.5b
--device cpu`. That is why its options are read by argparse.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers.utils import logging

from crossdraft.bench.cores import choose_cores
from crossdraft.bench.environment import environment
from crossdraft.bench.outputs import check_outputs, write_json
from crossdraft.bench.scale_beside import DraftCost, DraftPlacement, OverlapResult, Say, measure_drafter
from crossdraft.bench.scale_measure import bandwidth, bound_of, measure_passes, measure_prefill
from crossdraft.bench.scale_models import DRAFTERS, TARGETS, parameters, random_target, shape_of
from crossdraft.bench.scale_report import Scale, ScaleResult, lines, to_json
from crossdraft.engine.fast.pinning import pinned
from crossdraft.errors import CrossdraftError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

DESCRIPTION = "Measure shapes of any size with random weights: times do not depend on them."


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
    say(f"{scale.config}: prefill")
    prefill = measure_prefill(target, scale.budget_s)
    say(f"{scale.config}: V(n)")
    passes = measure_passes(target, scale.budget_s)
    where = DraftPlacement(scale.draft_device, scale.dtype, None if scale.cores is None else scale.cores.draft)
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
    parser.add_argument("--seed", type=int, default=0, help="of the random weights")
    parser.add_argument("--json", action="store_true", help="JSON on stdout; the rest then goes to stderr")
    parser.add_argument("--json-out", type=Path, metavar="FILE", help="write the result as JSON into a file, too")
    parser.add_argument("--force", action="store_true", help="overwrite a file that exists")
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


def main(argv: Sequence[str], prog: str = "crossdraft.bench.scale") -> None:
    """Run a command line: progress on stderr, the result on stdout, or as JSON in its place.

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


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except CrossdraftError as error:
        sys.stderr.write(f"crossdraft: {error}\n")
        sys.exit(2)
