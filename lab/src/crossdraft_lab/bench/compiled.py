"""`crossdraft bench compiled`: compiled decode passes against the executor `fast`, alternating in one process.

Runs where only torch, transformers and numpy are installed: `python -m crossdraft_lab.bench.compiled --config
video-llava-7b`. A config other than `reference` gets random weights.
"""

import time
from collections.abc import Sequence

import torch

from crossdraft.dtypes import dtype_name
from crossdraft.engine.cache import KVCache
from crossdraft.engine.passes import Chunk, PassRow
from crossdraft.engine.prefill import prefill
from crossdraft.engine.prompt import Prompt
from crossdraft.engine.request import Request
from crossdraft.engine.target import Target
from crossdraft.engine.tree import DraftTree
from crossdraft.errors import CrossdraftError
from crossdraft_lab.bench.environment import environment
from crossdraft_lab.bench.scale import DTYPES, parsed, parser_of, publish, run_program
from crossdraft_lab.bench.scale_measure import Json, bandwidth, bound_of
from crossdraft_lab.bench.scale_models import TARGETS, random_target, shape_of
from crossdraft_lab.bench.statistics import Interval, median_ratio, quartiles

WIDTHS = (1, 8, 16, 32)
WARM_UPS = 3
TOKENS = 460  # a clip and a question, as in the reference target's cache


@torch.inference_mode()
def compare_passes(target: Target, config: str, repeats: int) -> Json:
    """Measure V(n) after a prompt, plain and compiled in turn, and how near a decode step is to its memory bound.

    Raises:
        CrossdraftError: as `Target.compile`.
    """
    static = target.reading()
    static.compile(1, WIDTHS[-1], now=False)
    prompt = target.prepare(Request("scale")) if config != "reference" else _text_prompt(target)
    ways = {"lean": target, "compiled": static}
    caches = {name: _read(one, prompt) for name, one in ways.items()}
    passes = [_compare(ways, caches, len(prompt), n, repeats) for n in WIDTHS]
    speed, step = bandwidth(target.device, 1.0), passes[0]["compiled_ms"]["median"]
    workload = {"config": config, "device": str(target.device), "dtype": dtype_name(target.model.dtype)}
    return {
        "environment": environment(),
        "workload": workload,
        "passes": passes,
        "over_v1": {one["n"]: round(one["compiled_ms"]["median"] / step, 3) for one in passes},
        "bound": {name: bound_of(target, passes[0][f"{name}_ms"]["median"] / 1e3, speed, len(prompt)) for name in ways},
    }


def lines(found: Json) -> list[str]:
    """Result of the comparison, in sentences."""
    work, bound = found["workload"], found["bound"]
    each = [
        f"V({one['n']})  lean {one['lean_ms']['median']:.3f} ms, compiled {one['compiled_ms']['median']:.3f} ms "
        f"({Interval.from_json(one['ratio']).shown('runs')}), V({one['n']})/V(1) {found['over_v1'][one['n']]:.2f}, "
        f"compiled in {one['compile_s']:.1f} s, {'same tokens' if one['same_tokens'] else 'NOT the same tokens'}"
        for one in found["passes"]
    ]
    return [
        f"{work['config']}, {work['device']}, {work['dtype']}",
        *each,
        f"share of the bandwidth bound {bound['lean']['share']:.0%} lean, {bound['compiled']['share']:.0%} compiled",
    ]


def _text_prompt(target: Target) -> Prompt:
    """A prompt of random tokens, as long as a question about a clip."""
    return Prompt(torch.randint(5, target.vocab_size // 2, (TOKENS,), generator=torch.Generator().manual_seed(0)))


def _read(target: Target, prompt: Prompt) -> KVCache:
    cache = target.new_cache(capacity=len(prompt) + WIDTHS[-1] + 1)
    prefill(target, cache, prompt, target.encode(prompt), len(prompt) + WIDTHS[-1] + 1)
    return cache


def _compare(ways: dict[str, Target], caches: dict[str, KVCache], length: int, n: int, repeats: int) -> Json:
    """Time passes of the plain and the compiled target in turn; compilation is not timed."""
    tree, root = DraftTree.chain([3] * (n - 1)), Chunk(torch.tensor([7]))
    chosen: dict[str, list[int]] = {}

    def once(name: str) -> float:
        caches[name].truncate(0, length)
        start = time.perf_counter()
        out = ways[name].extend(caches[name], [PassRow(0, root, tree)])
        out.done.wait()
        seconds = time.perf_counter() - start
        chosen[name] = out.logits[0].argmax(-1).tolist()
        return seconds

    compile_s = once("compiled")
    for _ in range(WARM_UPS):
        once("lean")
        once("compiled")
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, found in times.items():
            found.append(once(name))
    return {
        "n": n,
        **{f"{name}_ms": quartiles(found).ms() for name, found in times.items()},
        "ratio": median_ratio(times["compiled"], times["lean"]).to_json(),
        "compile_s": round(compile_s, 1),
        "same_tokens": chosen["lean"] == chosen["compiled"],
    }


def main(argv: Sequence[str], prog: str = "crossdraft_lab.bench.compiled") -> None:
    """Run a command line.

    Raises:
        CrossdraftError: bad input, or nothing can be compiled here.
    """
    parser = parser_of(prog, "Compiled decode passes against the executor `fast`.", "reference")
    parser.add_argument("--repeats", type=int, default=100, help="runs of each pass")
    given, device, dtype = parsed(parser, argv)
    if given.repeats < 1:
        raise CrossdraftError(f"--repeats is {given.repeats}; run each pass at least once.")
    result = compare_passes(_target(given.config, device, dtype), given.config, given.repeats)
    publish(given, result, lines(result))


def _target(config: str, device: torch.device, dtype: str) -> Target:
    if config == "reference":
        from crossdraft.load import load_target  # needs more packages than random weights do

        return load_target("reference", str(device), dtype)
    return random_target(shape_of(config, TARGETS), device, DTYPES[dtype])


if __name__ == "__main__":
    run_program(main)
