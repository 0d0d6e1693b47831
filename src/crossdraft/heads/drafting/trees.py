"""The trees that drafters around heads grow, by name, and static trees from measured acceptance."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from crossdraft.drafters.trees import RankCounts, expand_and_rerank, fill, greedy_shape
from crossdraft.drafters.trees.beams import beam_search
from crossdraft.drafters.trees.dynamic import chain_with_siblings
from crossdraft.heads.drafting.head_drafter import Grow

TREES: Mapping[str, Grow] = {
    "dynamic": partial(expand_and_rerank, beam=10, width=lambda probs: 10, depth=8),
    "chain": partial(expand_and_rerank, beam=1, width=lambda probs: 1),
    "cape": chain_with_siblings,
    "beams": beam_search,
}
ACCEPTANCE = "acceptance.json"  # beside the weights; written by `crossdraft train`
LARGEST = 128  # nodes of a static shape; a draft takes as many of the first as its budget allows


def static_tree(folder: Path) -> Grow:
    """Static tree: the shape that Medusa's search finds for the acceptance measured of the head in this folder.

    Raises:
        CrossdraftError: nothing was measured, or the file holds something else.
    """
    counts = RankCounts.load(folder / ACCEPTANCE)
    return partial(fill, greedy_shape(counts.by_depth(), LARGEST))
