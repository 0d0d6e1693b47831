"""One whole round by any lossless rule, with chances that can be drawn or enumerated.

A round: the drafter draws its tree, the rule verifies it, and the target alone finishes the answer to a fixed length.
The answer must then be distributed as the target's own.
"""

import itertools
import math
from collections.abc import Callable

from torch import Tensor

from crossdraft.engine import accept
from crossdraft.engine.accept import Acceptance, Chance, walk
from crossdraft.engine.rules import rejection
from crossdraft.engine.tree import DraftTree
from crossdraft_lab.rules import block
from tests.engine.drafting import (
    Grow,
    Language,
    Prefix,
    certain,
    mixed,
    probs_of,
    sampled,
    tree_of,
    union_of,
    with_replacement,
)
from tests.engine.exact import distribution

Verifier = Callable[[DraftTree, Tensor, Chance], Acceptance]

VERIFIERS: dict[str, Verifier] = {
    "gumbel": lambda tree, probs, chance: accept.follow(tree, lambda node, depth: chance.draw(probs[node + 1])),
    "rejection": lambda tree, probs, chance: walk(tree, probs, chance, rejection.try_children),
    "block": block.keep_longest,
}


def error(rule: str, target: Language, grow: Grow, length: int) -> float:
    """Largest error of any answer's probability, after one round that the target alone finishes to `length` tokens."""

    def answer(chance: Chance) -> Prefix:
        tree = grow(chance)
        output = VERIFIERS[rule](tree, probs_of(target, tree), chance)
        tokens = (*(tree.tokens[node] for node in output.path), output.bonus)
        while len(tokens) < length:
            tokens += (chance.draw(target(tokens)),)
        return tokens[:length]

    found = distribution(answer)
    wanted = {
        tokens: math.prod(target(tokens[:i])[token].item() for i, token in enumerate(tokens))
        for tokens in itertools.product(range(target.vocabulary), repeat=length)
    }
    assert math.isclose(sum(found.values()), 1, abs_tol=1e-12)
    return max(abs(found.get(tokens, 0) - wanted[tokens]) for tokens in wanted)


def emitted(rule: str, target: Language, grow: Grow) -> float:
    """Expected number of tokens of one round, the bonus included."""
    found = distribution(lambda chance: len(VERIFIERS[rule](tree := grow(chance), probs_of(target, tree), chance).path))
    return 1 + sum(length * share for length, share in found.items())


P = Language(3, seed=1)
Q = Language(3, seed=2)
R = Language(3, seed=3, sharpness=2)
SPARSE_P = Language(4, seed=4, zeros=1)
SPARSE_Q = Language(4, seed=5, zeros=1)
WIDE_P, WIDE_Q, WIDE_R = Language(4, seed=6), Language(4, seed=7, sharpness=2), Language(4, seed=8)

Case = tuple[Language, Grow, int]

CHAINS: dict[str, Case] = {
    "nothing drafted": (P, tree_of(), 2),
    "sampled chain": (P, tree_of(sampled(Q, 1), sampled(Q, 1)), 3),
    "sampled chain, zeros in p and q": (SPARSE_P, tree_of(sampled(SPARSE_Q, 1), sampled(SPARSE_Q, 1)), 2),
    "certain chain": (P, tree_of(certain(Q, 1), certain(Q, 1), certain(Q, 1)), 3),
    "certain, then sampled chain": (P, tree_of(certain(Q, 1), sampled(R, 1)), 3),
    "sampled, then certain chain": (P, tree_of(sampled(R, 1), certain(Q, 1)), 3),
    "chain of the target's own": (P, tree_of(sampled(P, 1), sampled(P, 1)), 3),
}

TREES: dict[str, Case] = {
    "certain siblings": (WIDE_P, tree_of(certain(WIDE_Q, 3), certain(WIDE_Q, 2)), 3),
    "certain siblings, the whole vocabulary": (P, tree_of(certain(Q, 3)), 2),
    "two without replacement": (WIDE_P, tree_of(sampled(WIDE_Q, 2)), 2),
    "three without replacement": (WIDE_P, tree_of(sampled(WIDE_Q, 3)), 1),
    "all without replacement": (P, tree_of(sampled(Q, 3)), 2),
    "all without replacement, zeros": (SPARSE_P, tree_of(sampled(SPARSE_Q, 4)), 1),
    "sampled tree of two levels": (P, tree_of(sampled(Q, 2), sampled(Q, 1)), 2),
    "certain, then sampled": (P, tree_of(certain(Q, 2), sampled(R, 2)), 2),
    "siblings from two drafters": (WIDE_P, tree_of(mixed(sampled(WIDE_Q, 2), sampled(WIDE_R, 1))), 1),
    "sampled before certain siblings": (WIDE_P, tree_of(mixed(sampled(WIDE_Q, 2), certain(WIDE_R, 2))), 1),
    "certain before sampled siblings": (WIDE_P, tree_of(mixed(certain(WIDE_R, 1), sampled(WIDE_Q, 2))), 1),
    "with replacement": (WIDE_P, tree_of(with_replacement(WIDE_Q, 3)), 1),
    "with replacement, zeros in p and q": (SPARSE_P, tree_of(with_replacement(SPARSE_Q, 2)), 1),
    "with replacement, two levels": (P, tree_of(with_replacement(Q, 2), with_replacement(R, 1)), 2),
    "certain before siblings with replacement": (P, tree_of(mixed(certain(R, 1), with_replacement(Q, 2))), 1),
    "union of three drafters": (
        P,
        union_of(tree_of(sampled(Q, 1), sampled(Q, 1)), tree_of(sampled(R, 2)), tree_of(certain(P, 1), certain(P, 1))),
        2,
    ),
    "union of two drafters that draw with replacement": (
        P,
        union_of(tree_of(with_replacement(Q, 2)), tree_of(with_replacement(R, 2))),
        1,
    ),
    "drafter equals target": (P, tree_of(sampled(P, 2), sampled(P, 1)), 2),
}

CASES: dict[str, dict[str, Case]] = {"gumbel": CHAINS | TREES, "rejection": CHAINS | TREES, "block": CHAINS}
