"""Common parts of the acceptance rules: the result, the random decisions, arithmetic of two distributions.

An acceptance rule decides which path of a draft tree the target keeps, and which token it adds after that path. The
rules themselves live in `engine/rules/`, one file each; this module holds what they share.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.nn import functional as F

from crossdraft.engine.devices import to_device
from crossdraft.engine.noise import Noise
from crossdraft.engine.sampling import sample_one
from crossdraft.engine.tree import ROOT, DraftTree
from crossdraft.errors import CrossdraftError


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Nodes that a rule accepts of a tree, and the bonus token.

    Args:
        path: accepted nodes, from a child of the root downwards; may be empty.
        bonus: the token that the target adds after them.
    """

    path: tuple[int, ...]
    bonus: int


@dataclass(frozen=True, slots=True)
class Rule:
    """A named rule; call it with `(tree, warped, noise)`, `warped` [1 + n, V] coming from `warp_tree`.

    Args:
        name: what users call it.
        lossless: true if the answer is the target's own (in distribution, when sampling).
        greedy: true if it verifies greedy answers, false if sampled ones.
        chains: true if it verifies chains only.
        verify: the function itself, of tree, distributions and a random generator; a frozen dataclass where the rule
            has settings.
        invariant: true if the answer follows from the seed alone, whatever is drafted; `verify` then takes the `Noise`
            itself, and drafters draw with the same noise. It may be called node by node, with the empty tree and the
            distribution after the node.
        reads_logits: whether `verify` takes the target's raw logits [1 + n, V] as a fourth argument.
        takes: the drafts that it is exact for, in words.
        drafter: the only drafter whose drafts it may verify, as it would accept other drafters' tokens blindly.
        paper: source of the rule.
    """

    name: str
    lossless: bool
    greedy: bool
    verify: Callable[..., Acceptance]
    chains: bool = False
    invariant: bool = False
    reads_logits: bool = False
    takes: str = "any tree"
    drafter: str | None = None
    paper: str = ""

    def __call__(self, tree: DraftTree, warped: Tensor, noise: Noise, logits: Tensor | None = None) -> Acceptance:
        """Verify a tree; a rule that reads them gets the raw `logits` [1 + n, V] too."""
        chance = noise if self.invariant else noise.generator()
        return self.verify(tree, warped, chance, *((logits,) if self.reads_logits else ()))

    @property
    def spec(self) -> str:
        """Name and settings, as `rule_for` reads them: `greedy`, `typical:eps=0.09,delta=0.3`."""
        if not is_dataclass(self.verify):
            return self.name
        settings = [f"{one.name}={getattr(self.verify, one.name)}" for one in fields(self.verify)]
        return f"{self.name}:{','.join(settings)}"


@runtime_checkable
class TrainedRule(Protocol):
    """Type of `Rule.verify` if the rule has weights, which belong to one target."""

    def read(self) -> object:
        """The weights; CrossdraftError if they cannot be read."""
        ...

    def check_target(self, source: str) -> None:
        """Refuse another target than the weights' own; `source` is the folder that the target was loaded from."""
        ...


class Chance(Protocol):
    """The two random decisions of a rule. The tests enumerate them instead of drawing them."""

    def happens(self, probability: float) -> bool:
        """True with this probability (surely, if it is 1 or more)."""
        ...

    def draw(self, weights: Tensor) -> int:
        """A token, with probability proportional to its weight."""
        ...


@dataclass(frozen=True, slots=True)
class Dice:
    """Random decisions drawn from a generator, on any device."""

    generator: torch.Generator

    def happens(self, probability: float) -> bool:
        """True with this probability."""
        uniform = torch.rand((), dtype=torch.float64, generator=self.generator, device=self.generator.device)
        return uniform.item() < probability

    def draw(self, weights: Tensor) -> int:
        """A token, with probability proportional to its weight."""
        return sample_one(weights, self.generator)


def follow(tree: DraftTree, wanted: Callable[[int, int], int | None]) -> Acceptance:
    """Accept the path of the target's own tokens, `wanted(node, depth)`; `None` after a node: its token is the last."""
    path: list[int] = []
    node = ROOT
    while True:
        if (token := wanted(node, len(path))) is None:
            return Acceptance(tuple(path[:-1]), tree.tokens[node])
        node = next((child for child in tree.children(node) if tree.tokens[child] == token), ROOT)
        if node == ROOT:
            return Acceptance(tuple(path), token)
        path.append(node)


Step = Callable[[DraftTree, int, Tensor, Chance], tuple[int, Tensor]]


def walk(tree: DraftTree, probs: Tensor, chance: Chance, step: Step) -> Acceptance:
    """Descend the tree as long as a child is accepted.

    `step(tree, parent, p, chance)` returns the accepted child of a node (`ROOT` if none), and p [V] as changed by the
    refused children: the distribution of the bonus token.
    """
    path: list[int] = []
    node = ROOT
    while True:
        node, p = step(tree, node, probs[node + 1], chance)
        if node == ROOT:
            return Acceptance(tuple(path), chance.draw(p))
        path.append(node)


def longest(tree: DraftTree, kept: Sequence[bool], scores: Sequence[float]) -> tuple[int, ...]:
    """The longest path of kept nodes; of equally long paths the one with the highest sum of scores, then the first."""
    best, reached = ROOT, {ROOT: (0, 0.0)}
    for node, parent in enumerate(tree.parents):
        if kept[node] and parent in reached:
            depth, score = reached[parent]
            reached[node] = (depth + 1, score + scores[node])
            if reached[node] > reached[best]:
                best = node
    return tuple(tree.path(best))


def draft_probs(tree: DraftTree, child: int, refused: Sequence[int], p: Tensor) -> Tensor:
    """[V] the distribution of a child's token given its earlier siblings, on p's device and in p's dtype."""
    token, row = tree.tokens[child], tree.drawn_from[child]
    point = torch.zeros_like(p)
    point[token] = 1
    if tree.dists is None or row < 0:
        return point
    q = tree.dists[row].to(p)
    if refused:
        q = without(q, to_device(torch.tensor(refused), p.device))
    # A token of weight 0 was not drawn from q, or q's rounding lost it: a point mass is exact for any token.
    return torch.where(q[token] > 0, q, point)


def acceptance_ratios(tree: DraftTree, probs: Tensor) -> list[float]:
    """[n] p(x) / q(x) of each node's token, as if it had no earlier siblings; the device is asked once for all of them.

    Args:
        tree: `aligned` with `probs`.
        probs: [1 + n, V] the target's distributions after the root and every node.
    """
    if not len(tree):
        return []
    nodes = to_device(torch.tensor([tree.parents, tree.tokens, tree.drawn_from]), probs.device)
    parents, tokens, rows = nodes[0] + 1, nodes[1], nodes[2]
    p = probs[parents, tokens]
    if tree.dists is None:
        return p.tolist()
    q = tree.dists[rows.clamp_min(0), tokens].to(p)
    return (p / torch.where((rows >= 0) & (q > 0), q, 1)).tolist()


def without(q: Tensor, tokens: Tensor) -> Tensor:
    """q [..., V] without `tokens` [..., m], renormalised; all 0 if nothing is left."""
    if not tokens.shape[-1]:
        return q
    rest = q.scatter(-1, tokens, 0)
    return rest / rest.sum(-1, keepdim=True).clamp_min(torch.finfo(q.dtype).tiny)


def normalised(rest: Tensor, otherwise: Tensor) -> Tensor:
    """`rest` [..., V] over its sum; `otherwise` where that is 0."""
    total = rest.sum(-1, keepdim=True)
    return torch.where(total > 0, rest / total, otherwise)


def as_wide(tree: DraftTree, width: int) -> DraftTree:
    """The tree with distributions over `width` tokens.

    Heads of one vocabulary may be padded differently; the narrower distribution is zero where the other goes on.

    Raises:
        CrossdraftError: the drafter gives probability to ids that the target does not have.
    """
    if tree.dists is None or tree.dists.shape[-1] == width:
        return tree
    if tree.dists[:, width:].any():
        raise CrossdraftError(
            f"The drafter's distributions are over {tree.dists.shape[-1]} tokens, the target's over {width}; "
            "they must share one vocabulary."
        )
    return replace(tree, dists=F.pad(tree.dists, (0, width - tree.dists.shape[-1])))


def aligned(tree: DraftTree, probs: Tensor) -> DraftTree:
    """The tree with distributions as wide as `probs` [1 + n, V], on their device and in their dtype: one copy.

    Raises:
        CrossdraftError: as `as_wide`.
    """
    tree = as_wide(tree, probs.shape[-1])
    if tree.dists is None:
        return tree
    used = tree.dists[: max(tree.drawn_from, default=-1) + 1]  # the rows after these belong to nodes cut off
    return replace(tree, dists=to_device(used, probs.device).to(probs))
