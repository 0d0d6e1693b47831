"""Interleaved runs of methods in one process, in balanced order; and divergences from the target's answers."""

import gc
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from crossdraft.cli.cores import Cores
from crossdraft.comparisons import first_difference, orders, top2_gap
from crossdraft.engine.fast.pinning import pinned
from crossdraft.engine.target import Target
from crossdraft_lab.bench.common import check_repeats
from crossdraft_lab.bench.experiments.record import Tick
from crossdraft_lab.bench.statistics import Interval, acceptance_length, ratio, ratio_of_some, ratio_per_token
from crossdraft_lab.bench.workload import Item

MOST_GAPS = 8  # gaps that are shown in a line for people
NEAR = 64.0  # epsilons: four spacings of logits between 16 and 32, 0.5 in bfloat16
Divergence = dict[str, Any]
"""An answer that is not the target's own, in plain values; see `find_divergence`."""


@dataclass(frozen=True, slots=True)
class Run:
    """One answer by one method: its tokens and its costs. All times in seconds.

    Args:
        tokens: tokens of the answer.
        total_s: time from handing the request over to holding the answer.
        ttft_s: time until the first final token.
        provisional_s: time until the first drafted token could be shown; `None` if none could be before a final one.
        stages_s: time of each stage on the target's lane; the stages add up to `total_s`.
        rounds: number of target passes that emitted tokens; the prefill counts as one.
        accepted_at, offered_at: numbers of accepted and of offered nodes, by depth.
        prefill_s: the target's encoding and prefill up to the last piece, without preparing the video; `None` if
            most of the prompt is in that piece.
        hidden_drafting_s, hidden_inside_s: time of drafting for the hidden draft, drafts that came too late included,
            and the part of it while the target prepared, encoded and prefilled.
        rounds_s, overhead_s: time of the rounds after the prefill, and the engine's own part, `communication` included.
        notes: the engine's notes for the user, such as a lost drafter.
        drafter_error: reason why the drafter stopped or never drafted: from there on the target was alone.
        lossy: the acceptance rule with its settings, if it was a lossy one.
        prompt_tokens: number of tokens that entered the target's language model.
        busy_s: time in which something ran, by lane of the timeline, `target` and `drafter`.
        masks_s, masked_nodes: time of the structure's masks, and the places that were asked about.
    """

    tokens: tuple[int, ...]
    total_s: float
    ttft_s: float
    stages_s: Mapping[str, float]
    rounds: int
    accepted_at: tuple[int, ...] = ()
    offered_at: tuple[int, ...] = ()
    prefill_s: float | None = None
    provisional_s: float | None = None
    hidden_drafting_s: float = 0.0
    hidden_inside_s: float = 0.0
    rounds_s: float = 0.0
    overhead_s: float = 0.0
    notes: tuple[str, ...] = ()
    lossy: str | None = None
    prompt_tokens: int = 0
    busy_s: Mapping[str, float] = field(default_factory=dict[str, float])
    drafter_error: str | None = None
    masks_s: float = 0.0
    masked_nodes: int = 0


class BenchMethod(Protocol):
    """A method that answers requests: our engine, or a baseline; `cores` are those that it may use, `None` = any."""

    cores: Cores | None

    @property
    def workers(self) -> Sequence[int]:
        """Process ids of its drafter's own processes."""
        ...

    def answer(self, item: Item) -> Run:
        """Answer once, and return the answer with its costs."""
        ...

    def close(self) -> None:
        """Stop the method's processes and threads."""
        ...


@dataclass
class Results:
    """Runs by method, pair and repeat: `runs[name][pair][repeat]`."""

    runs: dict[str, list[list[Run]]] = field(default_factory=dict)

    def of(self, name: str) -> list[Run]:
        """All runs of a method."""
        return [run for repeats in self.runs[name] for run in repeats]

    def tokens(self, name: str) -> list[int]:
        """Tokens of each pair, repeats added up."""
        return [sum(len(run.tokens) for run in repeats) for repeats in self.runs[name]]

    def rounds(self, name: str) -> list[int]:
        """Target passes of each pair, repeats added up."""
        return [sum(run.rounds for run in repeats) for repeats in self.runs[name]]

    def seconds(self, name: str) -> list[float]:
        """Total time of each pair, repeats added up."""
        return [sum(run.total_s for run in repeats) for repeats in self.runs[name]]

    def tau(self, name: str) -> Interval:
        """Tokens of the answers per verify pass."""
        return acceptance_length([*zip(self.tokens(name), self.rounds(name), strict=True)])

    def share(self, name: str, part: Callable[[Run], float], whole: Callable[[Run], float]) -> Interval | None:
        """Σ of a part over Σ of the whole, over the pairs whose whole is above 0; `None` if there is none."""
        return ratio_of_some([(sum(map(part, runs)), sum(map(whole, runs))) for runs in self.runs[name]])

    def speedup(self, name: str, against: str, *, per_token: bool) -> Interval:
        """Speed-up by the time of all answers, or by time per token where answers may differ in length."""
        theirs, ours = self.seconds(against), self.seconds(name)
        if per_token:
            return ratio_per_token(theirs, self.tokens(against), ours, self.tokens(name))
        return ratio(theirs, ours)


def measure(
    methods: Mapping[str, BenchMethod],
    items: Sequence[Item],
    repeats: int,
    warm_ups: Sequence[Item] = (),
    tick: Tick = lambda _: None,
    before: int = 0,
) -> Results:
    """Let every method answer every pair `repeats` times.

    Whatever disturbs the machine for a while (another process, heat) then affects all methods, and the order (see
    `orders`) sees to it that no method always runs after the same one.

    Args:
        methods: the methods by name.
        items: the pairs.
        repeats: runs of each pair.
        warm_ups: pairs that every method answers first and whose runs are thrown away: caches fill, and the engine's
            cost model learns its times.
        tick: called with the method's name after every run, warm-ups included.
        before: number of runs of pairs in earlier blocks of the same measurement, whose orders are continued.
    """
    check_repeats(repeats)
    names, turns = list(methods), orders(list(methods), after=before)
    results = Results({name: [[] for _ in items] for name in names})
    for item in warm_ups:
        for name in names:
            answer_once(methods[name], item)
            tick(name)
    gc.collect()
    gc.freeze()  # the models' many objects need no scanning while the clock runs
    try:
        for pair, item in enumerate(items):
            for _ in range(repeats):
                for name in next(turns):
                    results.runs[name][pair].append(answer_once(methods[name], item))
                    tick(name)
    finally:
        gc.unfreeze()
    return results


def answer_once(method: BenchMethod, item: Item) -> Run:
    """Let a method answer on its own cores, with as many torch threads; the clock starts after the change of cores."""
    with pinned(None if method.cores is None else method.cores.target):
        return method.answer(item)


def find_divergence(target: Target, item: Item, expected: Sequence[int], found: Sequence[int]) -> Divergence | None:
    """Find the first difference between the target's own tokens and another's; `None` if there is none.

    `position` is the index of the first token that differs, `top2_gap` the target's top logit minus its second there,
    `near_tie` is true if that is at most `NEAR` times the dtype's epsilon. Rounding that depends on the shape of a pass
    can flip a gap near zero; a wide gap has no other cause than a fault.
    """
    if tuple(expected) == tuple(found):
        return None
    position = first_difference(expected, found)
    gap = min(top2_gap(target, item.request, expected[:position]), sys.float_info.max)  # infinite if one may come
    near = gap <= NEAR * torch.finfo(target.model.dtype).eps
    return {
        "seed": item.seed, "question": item.request.question, "position": position, "top2_gap": gap, "near_tie": near
    }  # fmt: skip


def divergences(results: Results, items: Sequence[Item], target: Target) -> dict[str, list[Divergence]] | None:
    """Find the divergences of every method's runs from the first ones of `target`; `None` if none are to be compared.

    None are where answers are sampled, or the method `target` did not run.
    """
    if "target" not in results.runs or not items[0].request.sampling.greedy:
        return None
    found = dict[str, list[Divergence]]()
    for name, each in results.runs.items():
        pairs = zip(items, results.runs["target"], each, strict=True)
        every = (find_divergence(target, item, own[0].tokens, run.tokens) for item, own, runs in pairs for run in runs)
        found[name] = [one for one in every if one is not None]
    return found


def gaps_in_words(divergences: Sequence[Divergence]) -> list[str]:
    """Describe for people how near the logits were at some divergences; the JSON has them all."""
    gaps = ", ".join(f"{divergence['top2_gap']:.2g}" for divergence in divergences[:MOST_GAPS])
    near = sum(divergence["near_tie"] for divergence in divergences)
    return [f"top-2 logit gaps at divergences: {gaps}; near-ties: {near} of {len(divergences)}"] if gaps else []
