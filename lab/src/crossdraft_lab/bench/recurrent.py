"""`crossdraft bench recurrent`: passes over a model with recurrent layers, in turn with Hugging Face's own steps.

Random weights at Qwen3.5's default sizes, three gated delta nets and one attending layer.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import nn
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

from crossdraft.dtypes import dtype_name
from crossdraft.engine.passes import Chunk, PassRow
from crossdraft.engine.prefill import prefill
from crossdraft.engine.prompt import Prompt
from crossdraft.engine.recurrent.mixers import find_mixers
from crossdraft.engine.target import Target
from crossdraft.engine.tree import DraftTree
from crossdraft.errors import CrossdraftError
from crossdraft_lab.bench.baselines import clocked_passes, seconds_in
from crossdraft_lab.bench.environment import environment
from crossdraft_lab.bench.scale import DTYPES, parsed, parser_of, publish, run_program
from crossdraft_lab.bench.scale_measure import Json
from crossdraft_lab.bench.statistics import Interval, median_ratio, quartiles

LAYERS = ["linear_attention"] * 3 + ["full_attention"]
PROMPT, WARM_UPS = 128, 3
PARTS = ("modules", "projections")
DEFAULTS = {"vocab_size": 8192}  # smaller than Qwen3.5's: the head is no part of the question
BRANCHES = 4  # children of the root; the rest of the tree hangs below them in chains


@torch.inference_mode()
def compare_steps(
    device: torch.device, dtype: torch.dtype, nodes: int, repeats: int, sizes: Mapping[str, int] = DEFAULTS
) -> Json:
    """Time steps of ours and of Hugging Face in turn; on a CPU the recurrent modules in passes over trees, too.

    On CUDA the same steps and trees are also run by the fused kernel (`kernel`, `kernel_tree`; see `Target.compile`).

    Args:
        device, dtype: of the model.
        nodes: nodes of a draft tree.
        repeats: runs of each pass.
        sizes: fields of the configuration that differ from the class's own.
    """
    torch.manual_seed(0)
    config = Qwen3_5TextConfig(**{"num_hidden_layers": len(LAYERS), "layer_types": LAYERS, **sizes})
    with torch.device(device):
        made: Any = Qwen3_5ForCausalLM(config)
    model = made.to(dtype).eval()
    mixers = list(find_mixers(model, {i: kind for i, kind in enumerate(LAYERS) if kind != "full_attention"}).values())
    ids = torch.randint(5, config.vocab_size, (PROMPT,), generator=torch.Generator().manual_seed(0))
    theirs = model(ids[None].to(device)).past_key_values
    target, prompt = Target(model, lambda request: Prompt(ids), str, []), Prompt(ids)
    room, root = len(prompt) + repeats + WARM_UPS + nodes + 2, Chunk(torch.tensor([7]))
    targets = {"ours": target, "tree": target}
    if device.type == "cuda":
        fused = target.reading()
        fused.compile()
        targets |= {"kernel": fused, "kernel_tree": fused}
    caches = {name: one.new_cache(capacity=room) for name, one in targets.items()}
    for name, cache in caches.items():
        prefill(targets[name], cache, prompt, target.encode(prompt), room)
    tree = DraftTree(tuple(range(10, 10 + nodes)), tuple(max(-1, node - BRANCHES) for node in range(nodes)))

    def ours(name: str, draft: DraftTree) -> None:
        targets[name].extend(caches[name], [PassRow(0, root, draft)]).done.wait()
        caches[name].keep(0, [])

    token = torch.tensor([[7]], device=device)
    ways: dict[str, Callable[[], object]] = {
        "hugging_face": lambda: float(model(token, past_key_values=theirs).logits[0, 0, 0]),
        **{name: partial(ours, name, tree if "tree" in name else DraftTree.empty()) for name in targets},
    }
    on_cpu = device.type == "cpu"  # elsewhere a module's forward ends before its work does
    found: dict[str, list[float]] = {name: [] for name in (*ways, *(PARTS if on_cpu else ()))}
    clocked = mixers if on_cpu else ()
    linears = [part for mixer in clocked for part in mixer.modules() if isinstance(part, nn.Linear)]
    for turn in range(-WARM_UPS, repeats):
        for name, run in ways.items():
            with clocked_passes(*clocked) as whole, clocked_passes(*linears) as parts:
                start = time.perf_counter()
                run()
                spent = time.perf_counter() - start
            if turn >= 0:
                found[name].append(spent)
            if turn >= 0 and name == "tree" and on_cpu:
                found["modules"].append(seconds_in(whole))
                found["projections"].append(seconds_in(parts))
    shares = [one / two - 1 for one, two in zip(*(found.get(name, []) for name in PARTS), strict=True)]
    return {
        "environment": environment(),
        "workload": {"device": str(device), "dtype": dtype_name(dtype), "nodes": nodes},
        "threads": torch.get_num_threads(),
        **{f"{name}_ms": quartiles(times).ms() for name, times in found.items()},
        "tree_over_step": round(median(found["tree"]) / median(found["ours"]), 3),
        "over_hugging_face": median_ratio(found["hugging_face"], found["ours"]).to_json(),
        "beyond_projections": round(median(shares), 3) if shares else None,
    }


def lines(found: Json) -> list[str]:
    """Result of the comparison, in sentences."""
    work, ratio = found["workload"], Interval.from_json(found["over_hugging_face"]).shown("runs")
    each = {name[:-3]: value["median"] for name, value in found.items() if name.endswith("_ms")}
    said = [
        f"{work['device']}, {work['dtype']}, {found['threads']} threads",
        f"a step {each['ours']:.1f} ms, Hugging Face's {each['hugging_face']:.1f} ms ({ratio} of it)",
        f"a pass over a tree of {work['nodes']} {each['tree']:.1f} ms",
    ]
    if found["beyond_projections"] is not None:
        said += [
            f"its recurrent modules {each['modules']:.1f} ms, of it projections {each['projections']:.1f}",
            f"beyond the projections {found['beyond_projections']:.2f} of them",
        ]
    return said


def main(argv: Sequence[str], prog: str = "crossdraft_lab.bench.recurrent") -> None:
    """Run a command line.

    Raises:
        CrossdraftError: bad input.
    """
    parser = parser_of(prog, "Passes over recurrent layers, in turn with Hugging Face's own steps.")
    parser.add_argument("--nodes", type=int, default=16, help="nodes of a draft tree")
    parser.add_argument("--repeats", type=int, default=100, help="runs of each pass")
    given, device, dtype = parsed(parser, argv)
    if given.repeats < 1 or given.nodes < 1:
        raise CrossdraftError("--nodes and --repeats must be 1 or more.")
    result = compare_steps(device, DTYPES[dtype], given.nodes, given.repeats)
    publish(given, result, lines(result))


if __name__ == "__main__":
    run_program(main)
