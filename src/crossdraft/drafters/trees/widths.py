"""CaPE's widths (Du et al. 2024, GLIDE with a CaPE): more siblings where the drafter is less sure."""

from collections.abc import Sequence
from functools import partial

from torch import Tensor

from crossdraft.drafters.trees.builder import BuiltTree, ProbsFn, SelectFn
from crossdraft.drafters.trees.dynamic import expand_and_rerank
from crossdraft.engine.drafter import Budget

BINS = (8, 8, 8, 6, 6, 6, 4, 4, 2, 2)  # the authors' own, for confidences below 0.1, 0.2, …


def by_confidence(probs: Tensor, bins: Sequence[int] = BINS) -> int:
    """Siblings to offer by the largest of `probs` [V]: `bins` divides 0…1 evenly.

    >>> import torch
    >>> by_confidence(torch.tensor([0.15, 0.14])), by_confidence(torch.tensor([0.65, 0.35]))
    (8, 4)
    """
    place = int(float(probs.max()) * len(bins))
    return bins[min(place, len(bins) - 1)]


def chain_with_siblings(
    expand: ProbsFn, choose: SelectFn, budget: Budget, bins: Sequence[int] = BINS, depth: int | None = None
) -> BuiltTree:
    """CaPE's tree: one chain, and beside each of its tokens as many others as the drafter is unsure."""
    width = partial(by_confidence, bins=bins)
    return expand_and_rerank(expand, choose, budget, beam=1, width=width, depth=depth)
