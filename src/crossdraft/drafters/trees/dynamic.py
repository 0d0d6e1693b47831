"""Trees that follow the drafter's own chances: EAGLE-2's expand and rerank (Li et al. 2024).

Level by level, the few likeliest nodes get children; in the end the likeliest of all nodes are kept. What was drawn by
chance must not be dropped for its value, so there nothing is reranked: how many children each node of a level gets is
settled before any of them is drawn, from what the distributions promise.
"""

from collections.abc import Callable, Sequence

from torch import Tensor

from crossdraft.drafters.trees.builder import BuiltTree, ProbsFn, SelectFn, TreeBuilder, shares
from crossdraft.engine.drafter import Budget
from crossdraft.engine.tree import ROOT

BEAM = 4  # nodes expanded per level; EAGLE-2 takes 10, and as many children of each, for trees of 60
Width = Callable[[Tensor], int]


def beam_wide(probs: Tensor) -> int:
    """As many children as nodes are expanded per level."""
    return BEAM


def expand_and_rerank(
    expand: ProbsFn,
    choose: SelectFn,
    budget: Budget,
    beam: int = BEAM,
    width: Width = beam_wide,
    depth: int | None = None,
) -> BuiltTree:
    """A tree of up to `budget.nodes` nodes.

    Args:
        expand, choose: the drafter.
        budget: nodes behind a path less likely than `min_confidence` are not drafted, nor anything once it is stopped.
        beam: how many nodes per level get children.
        width: how many children a node gets at most, by the distribution [V] behind it.
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


def _likeliest(builder: TreeBuilder, front: Sequence[int], rows: Tensor, nodes: int, width: Width) -> list[int]:
    """The likeliest children of each node of a level, as far as they may still come among the best `nodes`.

    What is added is never reached likelier than what it stands behind, so what falls behind now stays behind.
    """
    widths = [width(probs) for probs in rows]
    values, tokens = rows.topk(min(max(widths), rows.shape[-1]))
    least = _least(builder, nodes)
    new: list[int] = []
    for node, probs, count, chances, words in zip(front, rows, widths, values.tolist(), tokens.tolist(), strict=True):
        reach = builder.path_prob_of(node)
        kept = sum(reach * chance > least for chance in chances[:count])
        new += builder.add(node, probs, words[:kept], drawn=False, shares=chances[:kept])
    least = _least(builder, nodes)
    return [node for node in new if builder.path_probs[node] > least]


def _drawn(
    builder: TreeBuilder, front: Sequence[int], rows: Tensor, choose: SelectFn, nodes: int, beam: int, width: Width
) -> list[int]:
    """Children drawn for each node of a level, as many as its distribution promises."""
    reaches, laws = [builder.path_prob_of(node) for node in front], list(rows)
    widths = [width(probs) for probs in laws]
    widths = allot(reaches, laws, widths, min(max(beam, *widths), nodes - len(builder)))
    new: list[int] = []
    for node, probs, count in zip(front, laws, widths, strict=True):
        new += builder.add(node, probs, choose(probs, count) if count else [], drawn=True)
    return new


def allot(reaches: Sequence[float], rows: Sequence[Tensor], widths: Sequence[int], places: int) -> list[int]:
    """How many children each node of a level gets, where the level has so many places.

    The j-th child of a node is taken to be as likely as the j-th likeliest token behind it: a promise that does not
    depend on what will be drawn.
    """
    promised = [
        (reach * share, node)
        for node, (reach, probs, width) in enumerate(zip(reaches, rows, widths, strict=True))
        for share in shares(probs, width)
    ]
    taken = [node for _, node in sorted(promised, key=lambda slot: -slot[0])[:places]]
    return [taken.count(node) for node in range(len(rows))]


def _least(builder: TreeBuilder, count: int) -> float:
    """What a node must surpass to come among the best `count`; what is behind others need not be drafted."""
    return sorted(builder.path_probs)[-count] if len(builder) >= count > 0 else 0.0
