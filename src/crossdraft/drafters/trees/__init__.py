"""Which tree to draft: static shapes from measured acceptance, and trees built by the drafter's own probabilities.

Every builder is a function over two callbacks, so that any drafter may use it; see `builder`.
"""

from crossdraft.drafters.trees.beams import beam_search
from crossdraft.drafters.trees.builder import BuiltTree, ProbsFn, SelectFn, TopK, TreeBuilder, WithoutReplacement
from crossdraft.drafters.trees.dynamic import by_confidence, chain_with_siblings, expand_and_rerank
from crossdraft.drafters.trees.sequoia import sequoia_tree
from crossdraft.drafters.trees.static import RankCounts, Shape, fill, greedy_shape

__all__ = [
    "BuiltTree",
    "ProbsFn",
    "RankCounts",
    "SelectFn",
    "Shape",
    "TopK",
    "TreeBuilder",
    "WithoutReplacement",
    "beam_search",
    "by_confidence",
    "chain_with_siblings",
    "expand_and_rerank",
    "fill",
    "greedy_shape",
    "sequoia_tree",
]
