"""Prefill beside drafting, with the real engine: one after the other, in a thread, in a process of its own."""

import gc
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import islice

import torch

from crossdraft.bench.order import orders
from crossdraft.bench.scale_measure import clocked, sample
from crossdraft.bench.scale_models import parameters, random_drafter
from crossdraft.bench.statistics import Quartiles, quartiles
from crossdraft.drafters.independent import IndependentDrafter
from crossdraft.engine.cost import CostModel
from crossdraft.engine.decode import Decoder
from crossdraft.engine.drafter import Budget
from crossdraft.engine.request import Request
from crossdraft.engine.request_state import READING
from crossdraft.engine.runner.process import Process
from crossdraft.engine.runner.runner import DrafterLost, Inline, Placement
from crossdraft.engine.stats import Stats
from crossdraft.engine.target import Target
from crossdraft.errors import CrossdraftError

NEW_TOKENS, NODES, REPEATS, STEPS = 16, 4, 3, 8
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class OverlapResult:
    """One placement. Times in seconds, medians over the repeats unless they are quartiles.

    Args:
        placement: `before` (one after the other), `thread` (on a GPU: on a CUDA stream of its own), `process`.
        skipped: why it was not measured, or None.
        prefill_alone, prefill: the target's prefill without a drafter and with it.
        hidden_tokens: drafted when the prefill was over.
        hidden_share: part of the drafting inside the prefill.
        ttft: time to the first token with the drafter; `ttft_alone` without.
        engine_per_round: the engine's own time per round after the prefill, without target and drafter.
        overhead_share: the same relative to the round.
    """

    placement: str
    skipped: str | None = None
    prefill_alone: Quartiles | None = None
    prefill: Quartiles | None = None
    hidden_tokens: float = 0.0
    hidden_share: float | None = None
    ttft_alone: float = 0.0
    ttft: float = 0.0
    engine_per_round: float = 0.0
    overhead_share: float = 0.0

    @property
    def slowdown(self) -> float | None:
        """By how much drafting slowed the prefill; 0 = not at all."""
        if self.prefill is None or self.prefill_alone is None:
            return None
        return self.prefill.median / self.prefill_alone.median - 1


@dataclass(frozen=True, slots=True)
class DraftCost:
    """A drafter alone: reading its prompt, and one token."""

    name: str
    parameters: int
    read: Quartiles
    step: Quartiles


@dataclass(frozen=True, slots=True)
class DraftPlacement:
    """Where the drafter runs: its device and dtype, and the cores of a process of its own."""

    device: torch.device
    dtype: torch.dtype
    cores: tuple[int, ...] | None = None


def measure_drafter(
    target: Target, name: str, where: DraftPlacement, budget_s: float, say: Say
) -> tuple[DraftCost, list[OverlapResult]]:
    """One drafter: alone, then beside the target's prefill in every placement.

    Raises:
        CrossdraftError: its weights do not fit.
    """
    banned = tuple(sorted(target.reserved))
    factory = partial(random_drafter, name, str(where.device), where.dtype, banned)
    say(f"{name}: making its weights")
    drafter = factory()
    if drafter.model.vocab_size > target.vocab_size:
        raise CrossdraftError(
            f"The drafter {name} has {drafter.model.vocab_size} tokens, the target {target.vocab_size}; "
            "give a drafter with the target's vocabulary."
        )
    say(f"{name}: alone")
    cost = DraftCost(name, parameters(drafter.model.model), *_alone(drafter, budget_s))
    found = []
    for placement, hidden in (("before", "before"), ("thread", "beside")):
        say(f"{name}: {placement}")
        found.append(_beside(target, placement, Inline(drafter, CostModel(), hidden, where.device)))
    del drafter
    gc.collect()
    torch.cuda.empty_cache()
    say(f"{name}: process")
    try:
        found.append(_beside(target, "process", Process(factory, where.cores, patience_s=120.0)))
    except (CrossdraftError, DrafterLost) as error:
        found.append(OverlapResult("process", skipped=str(error)))
    return cost, found


def _alone(drafter: IndependentDrafter, budget_s: float) -> tuple[Quartiles, Quartiles]:
    """Seconds to read the prompt, and per drafted token."""
    request, device = Request("scale", max_new_tokens=STEPS + 1), drafter.model.device
    read = sample(lambda: clocked(device, lambda: drafter.begin([request])), budget_s)

    def steps() -> float:
        states = drafter.begin([request])
        drafter.propose(states, [Budget(1)])  # the first token costs no pass: reading gave its logits
        return clocked(device, lambda: drafter.propose(states, [Budget(1 + STEPS)])) / STEPS

    return read, sample(steps, budget_s)


def _beside(target: Target, name: str, placement: Placement) -> OverlapResult:
    """Answers with and without the drafter, interleaved, one warm-up each."""
    request = Request("scale", max_new_tokens=NEW_TOKENS)
    decoders = {"alone": Decoder(target), "beside": Decoder(target, placement, nodes=NODES, adaptive=False)}
    runs: dict[str, list[Stats]] = {side: [] for side in decoders}
    try:
        for turn in islice(orders(list(decoders)), 1 + REPEATS):
            for side in turn:
                answer = decoders[side].generate([request])[0]
                if answer.notes:
                    return OverlapResult(name, skipped=answer.notes[0])
                runs[side].append(answer.stats)
    finally:
        placement.close()
    without, beside = runs["alone"][1:], runs["beside"][1:]
    shares = [stats.hidden_share for stats in beside if stats.hidden_share is not None]
    return OverlapResult(
        placement=name,
        prefill_alone=quartiles([_reading(stats) for stats in without]),
        prefill=quartiles([_reading(stats) for stats in beside]),
        hidden_tokens=quartiles([stats.hidden_drafted for stats in beside]).median,
        hidden_share=quartiles(shares).median if shares else None,
        ttft_alone=quartiles([stats.ttft_s for stats in without]).median,
        ttft=quartiles([stats.ttft_s for stats in beside]).median,
        engine_per_round=quartiles([_engine_per_round(stats) for stats in beside]).median,
        overhead_share=quartiles([stats.overhead_share for stats in beside]).median,
    )


def _reading(stats: Stats) -> float:
    return sum(stats.stages_s[stage] for stage in READING)


def _engine_per_round(stats: Stats) -> float:
    """Seconds of a round, the ride-along's apart, in which neither the target's forward nor the drafter computed."""
    times = stats.stages_s
    own = times.get("rounds", 0.0) - times.get("verify", 0.0) - times.get("draft", 0.0)
    return own / (stats.rounds - 1) if stats.rounds > 1 else 0.0
