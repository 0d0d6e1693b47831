"""Which tree to draft: shapes fixed beforehand from measured acceptance, and trees grown by the drafter's own chances.

Every builder is a function over two callbacks, so that any drafter may use it: `ProbsFn` gives its distributions behind
nodes of the tree so far, `SelectFn` takes children from one of them.
"""

from crossdraft.drafters.trees.acceptance import RankCounts
from crossdraft.drafters.trees.builder import BuiltTree, ProbsFn, SelectFn, TopK, TreeBuilder, WithoutReplacement
from crossdraft.drafters.trees.dynamic import expand_and_rerank
from crossdraft.drafters.trees.medusa import greedy_shape
from crossdraft.drafters.trees.sequoia import ShapeTable, cheapest_shape
from crossdraft.drafters.trees.shape import Shape
from crossdraft.drafters.trees.static import fill
from crossdraft.drafters.trees.widths import by_confidence

__all__ = [
    "BuiltTree",
    "ProbsFn",
    "RankCounts",
    "SelectFn",
    "Shape",
    "ShapeTable",
    "TopK",
    "TreeBuilder",
    "WithoutReplacement",
    "by_confidence",
    "cheapest_shape",
    "expand_and_rerank",
    "fill",
    "greedy_shape",
]
