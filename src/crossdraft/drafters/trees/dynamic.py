"""Dynamic trees: EAGLE-2's expand and rerank (Li 2024), ReDrafter's beams (Cheng 2024).

Level by level, the few nodes of the highest path probability get children; in the end the likeliest of all nodes are
kept. A drawn node must not be dropped for its value, so drawn trees are not reranked: the number of children of each
node of a level is set from the distributions alone, before any child is drawn.
"""

from collections.abc import Callable, Iterable, Sequence

from torch import Tensor

from crossdraft.drafters.trees.builder import BuiltTree, ProbsFn, SelectFn, TreeBuilder, largest_probs
from crossdraft.engine.drafter import Budget
from crossdraft.engine.tree import ROOT

BEAM = 4  # nodes expanded per level; EAGLE-2 takes 10, and as many children of each, for trees of 60
BEAMS, DEPTH = 10, 5  # the released code's default is 10 beams of 4; our heads rehearse 5 tokens
WidthFn = Callable[[Tensor], int]


def beam_wide(probs: Tensor) -> int:
    """The width of every node: `BEAM` children, as many as nodes are expanded per level."""
    return BEAM


def expand_and_rerank(
    expand: ProbsFn,
    choose: SelectFn,
    budget: Budget,
    beam: int = BEAM,
    width: WidthFn = beam_wide,
    depth: int | None = None,
) -> BuiltTree:
    """A tree of up to `budget.nodes` nodes.

    Args:
        expand, choose: the drafter.
        budget: nodes after a path less likely than `min_confidence` are not drafted, nor anything once it is stopped.
        beam: number of nodes per level that get children.
        width: largest number of children of a node, from the distribution [V] after it.
        depth: most levels; `None` = as many as nodes.
    """
    builder = TreeBuilder(budget.on_token)
    front = [ROOT]
    for _ in range(budget.nodes if depth is None else depth):
        front = [node for node in front if builder.path_prob_of(node) >= budget.min_confidence]
        if not front or budget.stopped:
            break
        rows = expand(builder.tree(), front)
        if choose.drawn:
            front = builder.likeliest(_drawn(builder, front, rows, choose, budget.nodes, beam, width), beam)
            if len(builder) >= budget.nodes:
                break
        else:
            front = builder.likeliest(_likeliest(builder, front, rows, budget.nodes, width), beam)
    return builder.whole() if choose.drawn else builder.best(budget.nodes)


def _likeliest(builder: TreeBuilder, front: Sequence[int], rows: Tensor, nodes: int, width: WidthFn) -> list[int]:
    """Add the likeliest children of each node of a level, as far as they may still be among the best `nodes`.

    A path is never likelier than its beginning, so a node outside the best now cannot get among them later.
    """
    widths = [width(probs) for probs in rows]
    values, tokens = rows.topk(min(max(widths), rows.shape[-1]))
    least = _least(builder, nodes)
    new: list[int] = []
    for node, dist, count, probs, ids in zip(front, rows, widths, values.tolist(), tokens.tolist(), strict=True):
        above = builder.path_prob_of(node)
        kept = sum(above * prob > least for prob in probs[:count])
        new += builder.add(node, dist, ids[:kept], drawn=False, probs=probs[:kept])
    least = _least(builder, nodes)
    return [node for node in new if builder.path_probs[node] > least]


def _drawn(
    builder: TreeBuilder, front: Sequence[int], rows: Tensor, choose: SelectFn, nodes: int, beam: int, width: WidthFn
) -> list[int]:
    """Draw children for each node of a level, as many as `allot` gives it."""
    path_probs, dists = [builder.path_prob_of(node) for node in front], list(rows)
    widths = [width(dist) for dist in dists]
    widths = allot(path_probs, dists, widths, min(max(beam, *widths), nodes - len(builder)))
    new: list[int] = []
    for node, dist, count in zip(front, dists, widths, strict=True):
        new += builder.add(node, dist, choose(dist, count) if count else [], drawn=True)
    return new


def allot(path_probs: Sequence[float], rows: Sequence[Tensor], widths: Sequence[int], nodes: int) -> list[int]:
    """Divide `nodes` children among the nodes of a level; returns the number for each.

    The j-th child of a node is taken to be as likely as the j-th likeliest token after it: an estimate that does not
    depend on what will be drawn.
    """
    expected = [
        (above * prob, node)
        for node, (above, dist, width) in enumerate(zip(path_probs, rows, widths, strict=True))
        for prob in largest_probs(dist, width)
    ]
    taken = [node for _, node in sorted(expected, key=lambda one: -one[0])[:nodes]]
    return [taken.count(node) for node in range(len(rows))]


def _least(builder: TreeBuilder, count: int) -> float:
    """The path probability above which a node is among the best `count`."""
    return sorted(builder.path_probs)[-count] if len(builder) >= count > 0 else 0.0


def beam_search(expand: ProbsFn, choose: SelectFn, budget: Budget, beams: int = BEAMS, depth: int = DEPTH) -> BuiltTree:
    """Beam search as a tree: the trie of the likeliest texts that a search over `beams` of them finds.

    The beams' common beginnings are drafted once (ReDrafter: Cheng et al. 2024).

    Exact for greedy answers, as every tree is. For sampled answers the released code verifies its beams too; these are
    the likeliest texts and no samples, so its answers do not follow the target's distribution (its README says so).
    Here the general builder draws as many nodes a level without replacement, which is exact.

    Args:
        expand, choose: the drafter.
        budget: a larger trie is cut to its likeliest nodes; a text less likely than `min_confidence` does not go on.
        beams: number of texts kept at every level, including those that have ended.
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
    """Find the likeliest texts one level on, among ended and new ones; adds the new ones to the tree.

    Args:
        rows: [m, D] distributions after the nodes of `front`.
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
    kept = builder.likeliest(needed, count)  # a path is never likelier than its beginning: the kept nodes form a tree
    path_probs, ranks = (tuple(values[node] for node in kept) for values in (builder.path_probs, builder.ranks))
    return BuiltTree(tree.keep(kept), path_probs, tuple(int(rank) for rank in ranks))
