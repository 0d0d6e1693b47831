"""What `crossdraft bench scale` found, as JSON and for people."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch

from crossdraft.bench.cores import Cores
from crossdraft.bench.environment import memory
from crossdraft.bench.scale_beside import DraftCost, OverlapResult
from crossdraft.bench.scale_measure import Bound, Pass, PrefillTime
from crossdraft.bench.statistics import Quartiles

PIECES = ("encode", "clip", "text")


@dataclass(frozen=True, slots=True)
class Scale:
    """What to measure.

    Args:
        config: a name out of `TARGETS`, or the path of a config.json.
        drafters: names out of `DRAFTERS`, or paths.
        device, draft_device: where they run.
        dtype: of both.
        budget_s: time for each single measurement; large models take three runs even so.
        cores: on a CPU, whose cores are whose; `None` leaves the affinity as it is.
        seed: of the random weights.
    """

    config: str
    drafters: tuple[str, ...]
    device: torch.device
    draft_device: torch.device
    dtype: torch.dtype
    budget_s: float = 3.0
    cores: Cores | None = None
    seed: int = 0


@dataclass(frozen=True, slots=True)
class ScaleResult:
    """What came out; `environment` is that of the beginning, pinned as the measurement was."""

    environment: dict[str, object]
    parameters: int
    prefill: PrefillTime
    passes: list[Pass]
    bound: Bound
    drafters: list[tuple[DraftCost | str, list[OverlapResult]]]  # a sentence in place of the costs: why it was skipped


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
        "placements": [_beside_json(beside) for beside in placements],
    }


def _beside_json(beside: OverlapResult) -> dict[str, object]:
    if beside.prefill is None or beside.prefill_alone is None:
        return {"placement": beside.placement, "skipped": beside.skipped}
    return {
        "placement": beside.placement,
        "reading_alone_ms": beside.prefill_alone.ms(),
        "reading_ms": beside.prefill.ms(),
        "prefill_slowdown": round(beside.slowdown or 0.0, 4),
        "hidden_tokens": beside.hidden_tokens,
        "hidden_share": None if beside.hidden_share is None else round(beside.hidden_share, 4),
        "ttft_alone_ms": round(beside.ttft_alone * 1e3, 3),
        "ttft_ms": round(beside.ttft * 1e3, 3),
        "engine_ms_per_round": round(beside.engine_per_round * 1e3, 4),
        "overhead_share": round(beside.overhead_share, 4),
    }


def lines(scale: Scale, measured: ScaleResult) -> list[str]:
    """The result for people."""
    prefill, bound, step = measured.prefill, measured.bound, measured.passes[0].forward.median
    memory_bound = (
        f"decode   {step * 1e3:.2f} ms; reading {bound.weight_bytes / 1e9:.3f} GB of weights and "
        f"{bound.cache_bytes / 1e9:.3f} GB of cache at {bound.bandwidth / 1e9:.1f} GB/s takes "
        f"{bound.seconds * 1e3:.2f} ms ({bound.share:.0%})"
    )
    pieces = ", ".join(f"{name} {_one(getattr(prefill, name))}" for name in PIECES)
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
            f"{cost.name}: {cost.parameters / 1e9:.3f} B, reads in {_one(cost.read)}, a token in {_one(cost.step)}, "
            f"c = {cost.step.median / step:.3f}"
        )
        out += [f"  {_beside_line(beside)}" for beside in placements]
    return out


def _beside_line(beside: OverlapResult) -> str:
    if beside.prefill is None or beside.prefill_alone is None:
        return f"{beside.placement:8} skipped: {beside.skipped}"
    share = "" if beside.hidden_share is None else f", {beside.hidden_share:.0%} of it hidden"
    return (
        f"{beside.placement:8} prefill {_one(beside.prefill_alone)} -> {_one(beside.prefill)} "
        f"({beside.slowdown or 0.0:+.1%}), {beside.hidden_tokens:.0f} tokens drafted{share}, TTFT "
        f"{beside.ttft_alone * 1e3:.1f} -> {beside.ttft * 1e3:.1f} ms, engine {beside.engine_per_round * 1e3:.2f} ms "
        f"({beside.overhead_share:.1%}) per round"
    )


def _one(times: Quartiles) -> str:
    return f"{times.median * 1e3:.1f} ms"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
