"""Fill a shape that was fixed beforehand with a drafter's tokens."""

from crossdraft.drafters.trees.builder import BuiltTree, ProbsFn, SelectFn, TreeBuilder
from crossdraft.drafters.trees.shape import Shape
from crossdraft.engine.drafter import Budget
from crossdraft.engine.tree import ROOT


def fill(shape: Shape, expand: ProbsFn, choose: SelectFn, budget: Budget) -> BuiltTree:
    """A tree of that shape, level by level; of a larger shape than the budget its first nodes.

    What lies behind a node that is too unlikely, or that ends the answer, is left out. Drawn siblings take the places
    of their family in the order of drawing, whatever the ranks there: skipping a draw would falsify the next one's law.
    """
    shape = shape.first(budget.nodes)
    builder = TreeBuilder(budget.on_token)
    placed = {ROOT: ROOT}
    for families in shape.families:
        alive = [
            parent
            for parent in families
            if parent in placed and builder.path_prob_of(placed[parent]) >= budget.min_confidence
        ]
        if not alive or budget.stopped:
            break
        rows = expand(builder.tree(), [placed[parent] for parent in alive])
        for parent, probs in zip(alive, rows, strict=True):
            family = families[parent]
            ranks = range(len(family)) if choose.drawn else [shape.ranks[node] for node in family]
            guesses = choose(probs, ranks[-1] + 1)
            ranks = [rank for rank in ranks if rank < len(guesses)]
            tokens = [guesses[rank] for rank in ranks]
            children = builder.add(placed[parent], probs, tokens, drawn=choose.drawn, ranks=ranks)
            placed.update(zip(family, children, strict=False))
    return builder.whole() if choose.drawn else builder.best(len(builder))
