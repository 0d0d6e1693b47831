"""τ of every way of drafting with a network: what a card tells of a head."""

from collections.abc import Sequence
from functools import partial

from crossdraft.drafters.heads.growth import TREES
from crossdraft.drafters.heads.registry import HeadMethod, serving
from crossdraft.drafters.heads.static import LARGEST
from crossdraft.drafters.trees import RankCounts, fill, greedy_shape
from crossdraft.engine.request import Request
from crossdraft.engine.target import Target
from crossdraft.errors import CrossdraftError
from crossdraft.models.heads.base import Head
from crossdraft.train.core.console import progress_bar, say
from crossdraft.train.heads.measure import Accepted, count_ranks, measure, with_grow
from crossdraft.train.heads.recipe import Measure


def methods_of(network: str) -> dict[str, HeadMethod]:
    """Ways of drafting with a network, by name.

    Raises:
        CrossdraftError: no drafter is registered for it.
    """
    methods = serving(network)
    if not methods:
        raise CrossdraftError(f"No drafter serves the network '{network}'; register one.")
    return methods


def worth(
    target: Target, head: Head, network: str, requests: Sequence[Request], settings: Measure
) -> tuple[dict[str, Accepted], RankCounts]:
    """What the target takes of each way of drafting, and of guesses by their rank: static trees come of the latter.

    Raises:
        CrossdraftError: as `methods_of`.
    """
    methods = methods_of(network)
    first = next(iter(methods.values()))
    drafter = first.drafter(head, TREES["chain"], sorted(target.eos))
    say(f"{network}: drafting for questions: {len(requests)} (measure.pairs=0 leaves that out)")
    with progress_bar() as bar:
        task = bar.add_task("measuring", total=2 * (1 + len(methods)))
        counts = count_ranks(target, drafter, requests, settings)
        bar.advance(task)
        static = partial(fill, greedy_shape(counts.by_depth(), LARGEST))
        found = {"chain": measure(target, with_grow(drafter, TREES["chain"]), requests, settings.chain)}
        bar.advance(task)
        for name, method in methods.items():
            growing = with_grow(drafter, TREES.get(method.tree, static))
            for temperature in (0.0, 1.0):
                tau = measure(target, growing, requests, settings.nodes, temperature)
                found[f"{name}, T={temperature:g}"] = tau
                bar.advance(task)
    return found, counts
