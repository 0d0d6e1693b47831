"""`crossdraft bench compiled`: decode passes of a target against those compiled or quantised, in turn in one process.

Runs where only torch, transformers and numpy are installed: `python -m crossdraft_lab.bench.compiled --config
video-llava-7b`. A config other than `reference` gets random weights; a checkpoint's own are loaded with `--target`.
"""

import time
from collections.abc import Sequence

import torch

from crossdraft.dtypes import dtype_name
from crossdraft.engine.cache import KVCache
from crossdraft.engine.fast.quantized_linear import check_quantization, quantize_layers
from crossdraft.engine.passes import Chunk, PassRow
from crossdraft.engine.prefill import prefill
from crossdraft.engine.prompt import Prompt
from crossdraft.engine.request import Request
from crossdraft.engine.target import Target
from crossdraft.engine.tree import DraftTree
from crossdraft.errors import CrossdraftError
from crossdraft_lab.bench.environment import environment
from crossdraft_lab.bench.scale import DTYPES, parsed, parser_of, publish, run_program
from crossdraft_lab.bench.scale_measure import WIDTHS as EVERY_WIDTH
from crossdraft_lab.bench.scale_measure import Json, bandwidth, bound_of
from crossdraft_lab.bench.scale_models import TARGETS, random_target, shape_of
from crossdraft_lab.bench.statistics import Interval, median_ratio, quartiles

WAYS = {  # bits of the weights, and if passes are compiled
    "lean": (None, False), "int8": ("int8", False), "int4": ("int4", False),
    "compiled": (None, True), "int8-compiled": ("int8", True), "int4-compiled": ("int4", True),
}  # fmt: skip
WIDTHS = (1, 8, 16, 32)  # of compiled passes
LOADED = ("reference", "a checkpoint")  # what has weights of its own
WARM_UPS = 3
TOKENS = 460  # a clip and a question, as in the reference target's cache


@torch.inference_mode()
def compare_passes(ways: dict[str, Target], config: str, repeats: int) -> Json:
    """Measure V(n) after a prompt, both ways in turn, and how near a decode step is to its memory bound.

    Args:
        ways: the target in two ways of `WAYS`; ratios are the second's times over the first's.
        config: what the target is.
        repeats: runs of each pass.
    """
    base, way = ways
    target, widths = ways[base], WIDTHS if any(WAYS[one][1] for one in ways) else EVERY_WIDTH
    prompt = _text_prompt(target) if config in LOADED else target.prepare(Request("scale"))
    caches = {name: _read(one, prompt, widths[-1]) for name, one in ways.items()}
    passes = [_compare(ways, caches, len(prompt), n, repeats) for n in widths]
    speed = bandwidth(target.device, 1.0)
    steps = {name: passes[0][f"{name}_ms"]["median"] for name in ways}
    workload = {"config": config, "device": str(target.device), "dtype": dtype_name(target.model.dtype)}
    return {
        "environment": environment(),
        "workload": workload,
        "passes": passes,
        "over_v1": {one["n"]: round(one[f"{way}_ms"]["median"] / steps[way], 3) for one in passes},
        "bound": {name: bound_of(one, steps[name] / 1e3, speed, len(prompt)) for name, one in ways.items()},
    }


def lines(found: Json) -> list[str]:
    """Result of the comparison, in sentences."""
    work, bound = found["workload"], found["bound"]
    base, way = bound
    step = found["passes"][0][f"{base}_ms"]["median"]
    each = [
        f"V({one['n']})  {base} {one[f'{base}_ms']['median']:.3f} ms, {way} {one[f'{way}_ms']['median']:.3f} ms "
        f"({Interval.from_json(one['ratio']).shown('runs')}), V({one['n']})/V(1) "
        f"{one[f'{base}_ms']['median'] / step:.2f} {base}, {found['over_v1'][one['n']]:.2f} {way}, first run "
        f"{one['compile_s']:.1f} s, {'same tokens' if one['same_tokens'] else 'NOT the same tokens'}"
        for one in found["passes"]
    ]
    return [
        f"{work['config']}, {work['device']}, {work['dtype']}",
        *each,
        *(
            f"{name}: {one['weight_bytes'] / 1e9:.3f} GB of weights a step, at {one['bandwidth'] / 1e9:.1f} GB/s "
            f"at least {1e3 * one['seconds']:.2f} ms, {one['share']:.0%} of the bandwidth bound"
            for name, one in bound.items()
        ),
    ]


def _text_prompt(target: Target) -> Prompt:
    """A prompt of random tokens, as long as a question about a clip."""
    return Prompt(torch.randint(5, target.vocab_size // 2, (TOKENS,), generator=torch.Generator().manual_seed(0)))


def _read(target: Target, prompt: Prompt, widest: int) -> KVCache:
    cache = target.new_cache(capacity=len(prompt) + widest + 1)
    prefill(target, cache, prompt, target.encode(prompt), len(prompt) + widest + 1)
    return cache


def _compare(ways: dict[str, Target], caches: dict[str, KVCache], length: int, n: int, repeats: int) -> Json:
    """Time passes both ways in turn; the first run of the second, in which it may be compiled, is timed by itself."""
    base, way = ways
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

    compile_s = once(way)
    for _ in range(WARM_UPS):
        once(base)
        once(way)
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, found in times.items():
            found.append(once(name))
    return {
        "n": n,
        **{f"{name}_ms": quartiles(found).ms() for name, found in times.items()},
        "ratio": median_ratio(times[way], times[base]).to_json(),
        "compile_s": round(compile_s, 1),
        "same_tokens": chosen[base] == chosen[way],
    }


def main(argv: Sequence[str], prog: str = "crossdraft_lab.bench.compiled") -> None:
    """Run a command line.

    Raises:
        CrossdraftError: bad input, or nothing can be compiled here.
    """
    parser = parser_of(prog, "Decode passes of a target, and the same compiled or quantised.", "reference")
    parser.add_argument("--target", metavar="DIR", help="a checkpoint's folder, instead of --config")
    parser.add_argument("--way", choices=WAYS, default="compiled", help="the other way")
    parser.add_argument("--base", choices=WAYS, default="lean", help="the way that it is compared with")
    parser.add_argument("--repeats", type=int, default=100, help="runs of each pass")
    given, device, dtype = parsed(parser, argv)
    if given.repeats < 1:
        raise CrossdraftError(f"--repeats is {given.repeats}; run each pass at least once.")
    if given.base == given.way:
        raise CrossdraftError(f"--base and --way are both {given.way}; compare two.")
    config, loaded = given.config, dict[str | None, Target]()
    ways: dict[str, Target] = {}
    for way in (given.base, given.way):
        bits, compiled = WAYS[way]
        if bits not in loaded:
            loaded[bits] = _target(config, given.target, device, dtype, bits)
        ways[way] = loaded[bits].reading()
        if compiled:
            ways[way].compile(1, WIDTHS[-1], now=False)
    result = compare_passes(ways, LOADED[1] if given.target else config, given.repeats)
    publish(given, result, lines(result))


def _target(config: str, folder: str | None, device: torch.device, dtype: str, quantize: str | None = None) -> Target:
    if folder is not None or config == LOADED[0]:
        from crossdraft.load import load_target  # needs more packages than random weights do

        return load_target(folder or config, str(device), dtype, quantize=quantize)
    if quantize is not None:
        check_quantization(quantize, device, DTYPES[dtype])
    target = random_target(shape_of(config, TARGETS), device, DTYPES[dtype])
    if quantize is not None:
        quantize_layers(target.model, quantize)
    return target


if __name__ == "__main__":
    run_program(main)
