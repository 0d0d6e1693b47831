"""Beam search as a tree (ReDrafter: Cheng et al. 2024): the beams' common beginnings are drafted once."""

from collections.abc import Iterable, Sequence

from torch import Tensor

from crossdraft.drafters.trees.builder import BuiltTree, ProbsFn, SelectFn, TreeBuilder
from crossdraft.drafters.trees.dynamic import expand_and_rerank
from crossdraft.engine.drafter import Budget
from crossdraft.engine.tree import ROOT

BEAMS, DEPTH = 10, 5  # the released code's default is 10 beams of 4; our heads rehearse 5 tokens


def beam_search(expand: ProbsFn, choose: SelectFn, budget: Budget, beams: int = BEAMS, depth: int = DEPTH) -> BuiltTree:
    """The trie of the likeliest texts that a search over `beams` of them finds.

    Exact for greedy answers, as every tree is. For sampled ones the released code verifies its beams too, which are
    the likeliest texts and no samples, so its answers do not follow the target's distribution (its README says so).
    Here they are drawn, as many nodes a level, without replacement, by the general builder: that is exact.

    Args:
        expand, choose: the drafter.
        budget: of a larger trie its likeliest nodes; a text less likely than `min_confidence` does not go on.
        beams: texts that are kept at every level, those among them that have ended.
        depth: most levels.
    """
    if choose.drawn:
        return expand_and_rerank(expand, choose, budget, beams, lambda probs: beams, depth)
    builder, ended, front = TreeBuilder(budget.on_token), list[int](), [ROOT]
    for _ in range(depth):
        ended += [node for node in front if builder.path_prob_of(node) < budget.min_confidence]
        front = [node for node in front if node not in ended]
        if not front or budget.stopped:
            break
        rows = expand(builder.tree(), front)
        ended += [node for node, most in zip(front, rows.amax(-1).tolist(), strict=True) if most == 0]
        ended, front = _next(builder, ended, front, rows, beams)
    return _trie(builder, [*ended, *front], budget.nodes)


def _next(
    builder: TreeBuilder, ended: Sequence[int], front: Sequence[int], rows: Tensor, beams: int
) -> tuple[list[int], list[int]]:
    """The likeliest texts one level on: those that have ended anyway, and new ones, which are added.

    Args:
        rows: [m, D] distributions behind the nodes of `front`.
    """
    above = rows.new_tensor([builder.path_prob_of(node) for node in front])
    values, flat = (rows * above[:, None]).flatten().topk(min(beams, rows.numel()))
    offers: list[tuple[float, int | tuple[int, int]]] = [(builder.path_prob_of(node), node) for node in ended]
    for value, at in zip(values.tolist(), flat.tolist(), strict=True):
        if value > 0:
            offers.append((value, divmod(at, rows.shape[1])))
    best = [what for _, what in sorted(offers, key=lambda offer: -offer[0])[:beams]]
    new: list[int] = []
    for row, node in enumerate(front):
        tokens = [what[1] for what in best if isinstance(what, tuple) and what[0] == row]
        new += builder.add(node, rows[row], tokens, drawn=False)
    return [what for what in best if isinstance(what, int)], new


def _trie(builder: TreeBuilder, leaves: Iterable[int], count: int) -> BuiltTree:
    """The `count` likeliest nodes on the way to these leaves."""
    tree = builder.tree()
    needed = sorted({node for leaf in leaves for node in tree.path(leaf)})
    kept = builder.likeliest(needed, count)  # a path is never likelier than its beginning: it is a tree
    path_probs, ranks = (tuple(values[node] for node in kept) for values in (builder.path_probs, builder.ranks))
    return BuiltTree(tree.keep(kept), path_probs, tuple(int(rank) for rank in ranks))
