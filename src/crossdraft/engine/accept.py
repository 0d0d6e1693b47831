"""Acceptance rules: which path of a draft tree the target keeps, and the token it adds behind it.

Both rules are lossless. Greedy keeps what the target would have chosen. Speculative sampling (Leviathan et al. 2023,
Chen et al. 2023; trees: SpecInfer 2023, Sequoia 2024) walks down from the root; at a node with target distribution p
it tries the children in order. A child x, drawn from q, is

    accepted with probability min(1, p(x) / q(x)); otherwise p becomes norm(max(0, p - q)) and the next child is tried.

When none is left, the bonus token is drawn from what p has become. The emitted token follows p exactly, if q is the
law of x *given the siblings tried before it*. That law is

    a point mass on x           for a child chosen deterministically: accepted with probability p(x);
    q without the elder tokens, for a child drawn without replacement, or drawn from another drafter's q and entered in
    renormalised                the tree only where no elder sibling had the same token.

So chains, top-k trees, sampled trees and unions of all these are one rule. What it asks of a drafter: a sampled token
must not be dropped because of its value (whether anything is drafted behind it may depend on that), and a
deterministic choice must not depend on what was sampled beside it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from crossdraft.engine.sampling import Sampling, sample_one
from crossdraft.engine.tree import ROOT, DraftTree
from crossdraft.errors import CrossdraftError


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the target makes of a tree.

    Args:
        path: accepted nodes, from a child of the root downwards; may be empty.
        bonus: the token that the target adds behind them.
    """

    path: tuple[int, ...]
    bonus: int


@dataclass(frozen=True, slots=True)
class Rule:
    """A named rule; call it with `(tree, warped, generator)`, `warped` [1 + n, V] coming from `warp_tree`.

    Args:
        name: what users call it.
        lossless: true if the answer is the target's own (in distribution, when sampling).
        greedy: true if it judges greedy answers, false if sampled ones.
        judge: the function itself; pure but for the generator.
    """

    name: str
    lossless: bool
    greedy: bool
    judge: Callable[[DraftTree, Tensor, torch.Generator], Verdict]

    def __call__(self, tree: DraftTree, warped: Tensor, generator: torch.Generator) -> Verdict:
        """Judge a tree."""
        return self.judge(tree, warped, generator)


def rule_for(name: str | None, sampling: Sampling) -> Rule:
    """The rule of that name; `None` = the exact one for the request's temperature.

    Raises:
        CrossdraftError: no rule has the name, or it does not fit the temperature.
    """
    if name is None:
        name = "greedy" if sampling.greedy else "speculative"
    if name not in RULES:
        raise CrossdraftError(f"There is no acceptance rule '{name}'; choose one of: {', '.join(RULES)}.")
    rule = RULES[name]
    if rule.greedy != sampling.greedy:
        raise CrossdraftError(
            f"The acceptance rule '{name}' does not fit temperature {sampling.temperature}; name no rule, "
            "and the exact one is taken."
        )
    return rule


def greedy(tree: DraftTree, logits: Tensor, generator: torch.Generator) -> Verdict:
    """Keep the path whose every token is the argmax behind the one before it; add the argmax behind the last."""
    best = logits.argmax(-1).tolist()
    path: list[int] = []
    node = ROOT
    while True:
        wanted = best[node + 1]
        node = next((child for child in tree.children(node) if tree.tokens[child] == wanted), ROOT)
        if node == ROOT:
            return Verdict(tuple(path), wanted)
        path.append(node)


def speculative(tree: DraftTree, probs: Tensor, generator: torch.Generator) -> Verdict:
    """Multi-round rejection sampling: the tokens emitted are distributed as `probs` [1 + n, V] says.

    Heads of one vocabulary may be padded differently; the narrower distribution is zero where the other goes on.

    Raises:
        CrossdraftError: the drafter gives a chance to ids that the target does not have.
    """
    return walk(_as_wide(tree, probs.shape[-1]), probs, Dice(generator))


def _as_wide(tree: DraftTree, width: int) -> DraftTree:
    if tree.dists is None or tree.dists.shape[-1] == width:
        return tree
    if tree.dists[:, width:].any():
        raise CrossdraftError(
            f"The drafter's distributions are over {tree.dists.shape[-1]} tokens, the target's over {width}; "
            "they must share one vocabulary."
        )
    return replace(tree, dists=F.pad(tree.dists, (0, width - tree.dists.shape[-1])))


class Chance(Protocol):
    """The two random decisions of a walk. The tests enumerate them instead of drawing them."""

    def happens(self, probability: float) -> bool:
        """True with this probability (surely, if it is 1 or more)."""
        ...

    def draw(self, weights: Tensor) -> int:
        """A token, with probability proportional to its weight."""
        ...


@dataclass(frozen=True, slots=True)
class Dice:
    """Decisions drawn from a generator, wherever that lives."""

    generator: torch.Generator

    def happens(self, probability: float) -> bool:
        """True with this probability."""
        uniform = torch.rand((), dtype=torch.float64, generator=self.generator, device=self.generator.device)
        return uniform.item() < probability

    def draw(self, weights: Tensor) -> int:
        """A token, with probability proportional to its weight."""
        return sample_one(weights, self.generator)


def walk(tree: DraftTree, probs: Tensor, chance: Chance) -> Verdict:
    """Descend as long as a child is accepted."""
    path: list[int] = []
    node = ROOT
    while True:
        node, p = try_children(tree, node, probs[node + 1], chance)
        if node == ROOT:
            return Verdict(tuple(path), chance.draw(p))
        path.append(node)


def try_children(tree: DraftTree, parent: int, p: Tensor, chance: Chance) -> tuple[int, Tensor]:
    """The first accepted child (`ROOT` if none), and what p [V] has become by the refusals before it."""
    refused: list[int] = []
    for child in tree.children(parent):
        token = tree.tokens[child]
        if token in refused:
            continue
        q = law(tree, child, refused, p)
        if chance.happens((p[token] / q[token]).item()):
            return child, p
        p = residual(p, q)
        refused.append(token)
    return ROOT, p


def law(tree: DraftTree, child: int, refused: Sequence[int], p: Tensor) -> Tensor:
    """[V] the distribution of a child's token given its elder siblings, on p's device and in p's dtype."""
    token, row = tree.tokens[child], tree.drawn_from[child]
    if tree.dists is not None and row >= 0:
        q = without(tree.dists[row].to(p), torch.tensor(refused, dtype=torch.long, device=p.device))
        # A token of weight 0 was not drawn from q, or q's rounding lost it: a point mass is exact for any token.
        if q[token] > 0:
            return q
    return torch.zeros_like(p).index_fill_(0, torch.tensor(token, device=p.device), 1)


def without(q: Tensor, tokens: Tensor) -> Tensor:
    """q [..., V] without `tokens` [..., m], renormalised; all 0 if nothing is left."""
    if not tokens.shape[-1]:
        return q
    rest = q.scatter(-1, tokens, 0)
    return rest / rest.sum(-1, keepdim=True).clamp_min(torch.finfo(q.dtype).tiny)


def residual(p: Tensor, q: Tensor) -> Tensor:
    """norm(max(0, p - q)) over [..., V]: what the target still owes after a candidate of law q was refused.

    The sum is 0 only if p = q. Such a candidate is refused by rounding alone, and p itself is then right.
    """
    rest = (p - q).clamp_min(0)
    total = rest.sum(-1, keepdim=True)
    return torch.where(total > 0, rest / total, p)


RULES: Mapping[str, Rule] = MappingProxyType(
    {
        rule.name: rule
        for rule in (
            Rule("greedy", lossless=True, greedy=True, judge=greedy),
            Rule("speculative", lossless=True, greedy=False, judge=speculative),
        )
    }
)
