"""A head's fixed tree: the shape that its measured acceptance favours."""

from functools import partial
from pathlib import Path

from crossdraft.drafters.trees import RankCounts, fill, greedy_shape
from crossdraft.heads.drafting.head_drafter import Grow

ACCEPTANCE = "acceptance.json"  # beside the weights; written by `crossdraft train`
LARGEST = 128  # nodes of the shape; a draft takes as many of the first as its budget allows


def static_tree(folder: Path) -> Grow:
    """Fills the shape that Medusa's search finds for what was measured of the head in this folder.

    Raises:
        CrossdraftError: nothing was measured, or the file holds something else.
    """
    counts = RankCounts.load(folder / ACCEPTANCE)
    return partial(fill, greedy_shape(counts.by_depth(), LARGEST))
