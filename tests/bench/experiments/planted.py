"""Runs as a unit of an experiment writes them, made by hand."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from crossdraft_lab.bench.experiments.record import UnitResult
from crossdraft_lab.bench.measure import Run

TOKENS = (5, 6, 7, 8)


def run(total: float, tokens: Sequence[int] = TOKENS, rounds: int = 4, **stages: float) -> Run:
    """An answer that took so long; what no stage says passed while verifying."""
    named = {"prepare": 0.0, "encode": 0.0, "prefill": 0.0, "ride-along": 0.0, "draft": 0.0, **stages}
    named["verify"] = total - sum(named.values())
    return Run(tuple(tokens), total, total / 2, named, rounds, prompt_tokens=100, busy_s={"target": total})


def block(
    key: str,
    methods: Mapping[str, Sequence[Sequence[Run]]],
    more: Mapping[str, Any] | None = None,
    scenes: Sequence[int] = (),
    kinds: Sequence[str] = (),
) -> UnitResult:
    """A unit: of each method the runs of each pair, each about a scene of its own unless `scenes` says which.

    All ask for the layout unless `kinds` says otherwise.
    """
    count = len(next(iter(methods.values())))
    seeds = tuple(scenes or range(count))
    pairs = [
        {"scene": seed, "kind": kind, "question": "?", "facts": {}, "reference": "a road"}
        for seed, kind in zip(seeds, kinds or ["layout"] * count, strict=True)
    ]
    return UnitResult(
        key,
        seeds,
        {
            "pairs": pairs,
            "methods": {name: [[asdict(one) for one in pair] for pair in found] for name, found in methods.items()},
            "answers": {name: ["a road"] * count for name in methods},
            **(more or {}),
        },
    )
