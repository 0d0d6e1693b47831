"""Measuring a head under the real engine: τ of trees and chains, and acceptance by depth and rank of a draft."""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from crossdraft.drafters.trees.static import fill, greedy_shape
from crossdraft.engine.drafter import Budget, Draft, Drafter, VerifyOutput
from crossdraft.engine.loop import DecodeLoop
from crossdraft.engine.request import Request
from crossdraft.engine.runner.runner import DraftRunner
from crossdraft.engine.sampling import Sampling
from crossdraft.engine.target import Target
from crossdraft.errors import CrossdraftError
from crossdraft.heads.drafting.head_drafter import LARGEST, TREES, Grow, HeadDrafter
from crossdraft.heads.networks.base import Head
from crossdraft.heads.registry import HEADS, NETWORKS, HeadRecord
from crossdraft.methods import METHODS
from crossdraft_lab.drafters.evaluate import AcceptanceStats, decode_all, total
from crossdraft_lab.outputs import progress_bar
from crossdraft_lab.train.core.log import say
from crossdraft_lab.train.heads.ranks import MeasuredRanks, shape_of
from crossdraft_lab.train.heads.recipe import Measure

ASKING = "{network}: drafting for questions: {count} (measure.pairs=0 leaves that out)"
POSITIONS = 8  # positions of the hidden draft whose acceptance is reported


@dataclass(frozen=True)
class DraftFigures:
    """Acceptance of one kind of draft by the target.

    Args:
        tau: τ; see `drafters.evaluate.TAU`.
        per_position: for each depth, the share of drafts of at least that depth whose path was accepted to it.
    """

    tau: float
    per_position: tuple[float, ...]

    def to_json(self) -> dict[str, object]:
        """Plain values."""
        return {"tau": round(self.tau, 3), "per_position": [round(share, 3) for share in self.per_position]}


class _RankCounter:
    """Wraps a head's drafter and counts accepted tokens by depth and rank.

    `counts` uses the first tree of every propose–commit pair as the builder made it.
    """

    def __init__(self, drafter: HeadDrafter[Any]) -> None:
        self.drafter = drafter
        self.needs = drafter.needs
        self.counts = MeasuredRanks()
        self._last: dict[int, Draft] = {}

    def begin(self, requests: Sequence[Request]) -> list[Any]:
        return self.drafter.begin(requests)

    def propose(self, states: Sequence[Any], budgets: Sequence[Budget]) -> list[Draft]:
        drafts = self.drafter.propose(states, budgets)
        self._last |= {id(state): draft for state, draft in zip(states, drafts, strict=True)}
        return drafts

    def commit(self, states: Sequence[Any], outputs: Sequence[VerifyOutput]) -> None:
        for state, output in zip(states, outputs, strict=True):
            draft = self._last.pop(id(state), None)
            if draft is not None:
                self.counts.observe(draft.tree, output.path)
        self.drafter.commit(states, outputs)

    def fork(self, states: Sequence[Any]) -> list[Any]:
        return self.drafter.fork(states)

    def end(self, states: Sequence[Any]) -> None:
        for state in states:
            self._last.pop(id(state), None)
        self.drafter.end(states)


def count_ranks(
    target: Target, drafter: HeadDrafter[Any], requests: Sequence[Request], settings: Measure
) -> MeasuredRanks:
    """Count how often the token of each rank is accepted at each depth, as a sibling of the head's own best chain."""
    ranks = range(settings.ranks)
    shape = shape_of([(*(0,) * level, rank) for level in range(settings.depth) for rank in ranks])
    counted = _RankCounter(with_tree(drafter, partial(fill, shape)))
    decode_all(target, counted, requests, len(shape))
    return counted.counts


def measure(
    target: Target, drafter: Drafter[Any], requests: Sequence[Request], nodes: int, temperature: float = 0.0
) -> DraftFigures:
    """Answer the requests with that drafter, with a tree of at most `nodes` nodes in every round."""
    sampled = [
        replace(request, sampling=Sampling(temperature=temperature, seed=seed)) for seed, request in enumerate(requests)
    ]
    whole = total([AcceptanceStats.of(answer.stats) for answer in decode_all(target, drafter, sampled, nodes)])
    shares = tuple(kept / offered for kept, offered in zip(whole.kept_at, whole.offered_at, strict=True))
    return DraftFigures(whole.tau, shares)


def with_tree(drafter: HeadDrafter[Any], grow: Grow) -> HeadDrafter[Any]:
    """Copy a head's drafter, and let the copy grow trees by `grow`."""
    other = copy(drafter)
    other.grow = grow
    return other


def figures_json(found: dict[str, DraftFigures]) -> dict[str, object]:
    """Plain values of several measurements."""
    return {name: accepted.to_json() for name, accepted in found.items()}


def methods_of(network: str) -> dict[str, HeadRecord]:
    """Ways of drafting with a network, by their methods' names.

    Raises:
        CrossdraftError: no drafter is registered for the network.
    """
    names = [name for name, method in METHODS.items() if method.network == network]
    if not names or not NETWORKS[network].drafter:
        raise CrossdraftError(f"No drafter serves the network '{network}'; register one (docs/adding_a_head.md).")
    return {name: HEADS.get(name, NETWORKS[network]) for name in names}


def measure_methods(
    target: Target, head: Head, network: str, requests: Sequence[Request], settings: Measure
) -> tuple[dict[str, DraftFigures], MeasuredRanks]:
    """Measure τ of each way of drafting, and acceptance by rank, from which static trees are made.

    Raises:
        CrossdraftError: as `methods_of`.
    """
    methods = methods_of(network)
    first = next(iter(methods.values()))
    drafter = first.drafter_class(head, TREES["chain"], sorted(target.eos), sorted(target.reserved))
    say(ASKING.format(network=network, count=len(requests)))
    with progress_bar() as bar:
        task = bar.add_task("measuring", total=2 * (1 + len(methods)))
        counts = count_ranks(target, drafter, requests, settings)
        bar.advance(task)
        static = partial(fill, greedy_shape(counts.by_depth(), LARGEST))
        found = {"chain": measure(target, with_tree(drafter, TREES["chain"]), requests, settings.chain)}
        bar.advance(task)
        for name, method in methods.items():
            growing = with_tree(drafter, TREES.get(method.tree, static))
            for temperature in (0.0, 1.0):
                tau = measure(target, growing, requests, settings.nodes, temperature)
                found[f"{name}, T={temperature:g}"] = tau
                bar.advance(task)
    return found, counts


def measure_hidden(
    target: Target, drafter: Drafter[Any], requests: Sequence[Request], nodes: int
) -> dict[str, DraftFigures]:
    """Answer the requests greedily: a hidden draft of at most `policy.HIDDEN_NODES` tokens, then `nodes` a round.

    Returns:
        `hidden`: tokens of the pass that verifies the hidden draft, bonus included, and the share of the hidden drafts
        accepted to each position. `rounds`: tokens of every later pass.
    """
    say(ASKING.format(network="hidden drafts", count=len(requests)))
    runner = DraftRunner(drafter, "before")
    answers = DecodeLoop(target, runner, adaptive=False, nodes=nodes).generate(requests)
    firsts = [answer.stats.hidden_accepted for answer in answers]
    rounds = sum(answer.stats.rounds - 1 for answer in answers)
    later = sum(answer.stats.accepted - answer.stats.hidden_accepted for answer in answers)
    held = tuple(sum(first > position for first in firsts) / len(firsts) for position in range(POSITIONS))
    return {
        "hidden": DraftFigures(1 + sum(firsts) / len(firsts), held),
        "rounds": DraftFigures(1 + later / max(rounds, 1), ()),
    }
