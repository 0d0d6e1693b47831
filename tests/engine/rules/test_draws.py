"""Lossless rules in a million draws: the batched arithmetic in float32, and real rounds of the real rules."""

import pytest
import torch
from scipy import stats
from torch import Tensor

from crossdraft.engine import accept
from crossdraft.engine.accept import Dice
from crossdraft.engine.rules import RULES, rejection
from crossdraft.engine.sampling import sample_children
from crossdraft_lab.rules import block
from tests.engine.drafting import Grow, Language, certain, mixed, probs_of, sampled, tree_of, with_replacement
from tests.engine.rules.rounds import WIDE_P, WIDE_Q, WIDE_R

DRAWS = 10**6


def total_variation(counts: Tensor, wanted: Tensor) -> float:
    return 0.5 * (counts / counts.sum() - wanted).abs().sum().item()


def p_value(counts: Tensor, wanted: Tensor) -> float:
    """Of a chi-square test: how often chance alone strays so far from `wanted`."""
    return stats.chisquare(counts.numpy(), (counts.sum() * wanted).numpy()).pvalue


def fits(tokens: Tensor, wanted: Tensor) -> bool:
    counts = torch.bincount(tokens, minlength=len(wanted)).double()
    return total_variation(counts, wanted) < 0.005 and p_value(counts, wanted) > 1e-3


# -- the batched core ------------------------------------------------------------------------------------------------

FIVE_P = Language(5, seed=11, sharpness=1.5)(())
FIVE_Q = Language(5, seed=12, sharpness=1.5)(()).float()
FIVE_R = Language(5, seed=13, zeros=1)(()).float()


def draw(weights: Tensor, generator: torch.Generator) -> Tensor:
    """[DRAWS] one token of each row."""
    return sample_children(weights.expand(DRAWS, -1), 1, generator)[:, 0]


def happens(chance: Tensor, generator: torch.Generator) -> Tensor:
    return torch.rand(DRAWS, generator=generator) < chance


def multi_round(p: Tensor, siblings: list[tuple[Tensor | int, int]], generator: torch.Generator) -> Tensor:
    """[DRAWS] first tokens of one round each.

    `siblings`: (q [V], k) for k drawn children, (token, 1) for a certain one.
    """
    rows = torch.arange(DRAWS)
    drawn: list[tuple[Tensor, Tensor, bool]] = []
    for source, k in siblings:
        if isinstance(source, int):
            drawn.append((torch.full((DRAWS,), source), torch.eye(len(p))[source].expand(DRAWS, -1), True))
        else:
            tokens = sample_children(source.expand(DRAWS, -1), k, generator)
            drawn += [(token, source.expand(DRAWS, -1), False) for token in tokens.T]
    left, refused = p.repeat(DRAWS, 1), torch.empty(DRAWS, 0, dtype=torch.long)
    emitted = torch.full((DRAWS,), -1)
    for token, dist, whole in drawn:
        trying = (emitted < 0) & ~(refused == token[:, None]).any(-1)
        q = dist if whole else accept.without(dist, refused)
        taken = happens(left[rows, token] / q[rows, token], generator)
        emitted = torch.where(trying & taken, token, emitted)
        left = torch.where((trying & ~taken)[:, None], rejection.residual(left, q), left)
        refused = torch.cat([refused, token[:, None]], 1)
    return torch.where(emitted < 0, draw(left, generator), emitted)


SIBLINGS = {
    "chain": [(FIVE_Q, 1)],
    "point masses": [(2, 1), (0, 1)],
    "without replacement": [(FIVE_Q, 3)],
    "two drafters": [(FIVE_Q, 2), (FIVE_R, 2)],
    "point masses and samples": [(1, 1), (FIVE_R, 2), (3, 1)],
}


@pytest.mark.parametrize("siblings", SIBLINGS)
def test_a_million_draws_of_rejection(siblings):
    generator = torch.Generator().manual_seed(7)
    assert fits(multi_round(FIVE_P.float(), SIBLINGS[siblings], generator), FIVE_P)


def test_a_million_draws_of_block():
    """Pairs: both drafted and kept, or the first kept with a bonus, or a bonus and the target's own next token."""
    vocabulary, generator = 4, torch.Generator().manual_seed(10)
    p = torch.stack([WIDE_P(()), *(WIDE_P((token,)) for token in range(vocabulary))]).float()
    q = torch.stack([WIDE_Q(()), *(WIDE_Q((token,)) for token in range(vocabulary))]).float()
    first = draw(q[0], generator)
    second = sample_children(q[1 + first], 1, generator)[:, 0]
    one = (p[0, first] / q[0, first]).clamp_max(1)
    both = (one * p[1 + first, second] / q[1 + first, second]).clamp_max(1)
    rest = block.beyond(p[1 + first], q[1 + first], one[:, None])
    total = rest.sum(-1)
    whole = happens(both, generator)
    part = ~whole & happens(torch.where(total > 0, total / (total + 1 - one), 0), generator)
    none = draw(accept.normalised(block.beyond(p[0], q[0], 1.0), p[0]), generator)
    bonus = sample_children(accept.normalised(rest, p[1 + first]), 1, generator)[:, 0]
    own = sample_children(p[1 + none], 1, generator)[:, 0]
    left = torch.where(whole | part, first, none)
    right = torch.where(whole, second, torch.where(part, bonus, own))
    assert fits(left * vocabulary + right, PAIRS)


# -- real rounds -----------------------------------------------------------------------------------------------------

PAIRS = torch.stack([WIDE_P(())[token] * WIDE_P((token,)) for token in range(4)]).flatten()


def pair_counts(rule: str, target: Language, grow: Grow, draws: int, seed: int) -> Tensor:
    """Counts [V * V] of the first two tokens of real rounds; drafter and target draw from generators of their own."""
    drafter, own = Dice(torch.Generator().manual_seed(seed)), torch.Generator().manual_seed(seed + 1)
    counts = torch.zeros(target.vocabulary, target.vocabulary, dtype=torch.float64)
    for _ in range(draws):
        tree = grow(drafter)
        output = RULES[rule].verify(tree, probs_of(target, tree), own)
        tokens = (*(tree.tokens[node] for node in output.path), output.bonus)
        if len(tokens) < 2:
            tokens += (Dice(own).draw(target(tokens)),)
        counts[tokens[:2]] += 1
    return counts.flatten()


CHAIN = tree_of(sampled(WIDE_Q, 1), sampled(WIDE_Q, 1))
ROUNDS = {
    "chain": ("rejection", CHAIN),
    "certain siblings": ("rejection", tree_of(certain(WIDE_Q, 2), certain(WIDE_Q, 2))),
    "without replacement": ("rejection", tree_of(sampled(WIDE_Q, 2), sampled(WIDE_Q, 1))),
    "two drafters": ("rejection", tree_of(mixed(certain(WIDE_R, 1), sampled(WIDE_Q, 2)), sampled(WIDE_Q, 1))),
    "with replacement": ("rejection", tree_of(with_replacement(WIDE_Q, 2), with_replacement(WIDE_R, 1))),
    "block": ("block", CHAIN),
}


@pytest.mark.parametrize("shape", ROUNDS)
def test_real_rounds_pass_a_chi_square(shape):
    rule, grow = ROUNDS[shape]
    assert p_value(pair_counts(rule, WIDE_P, grow, 2500, seed=5), PAIRS) > 1e-3


def test_a_planted_bug_fails_the_chi_square(monkeypatch):
    monkeypatch.setattr(rejection, "residual", lambda p, q: p)
    assert p_value(pair_counts("rejection", WIDE_P, CHAIN, 2500, seed=5), PAIRS) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("shape", ROUNDS)
def test_a_million_real_rounds(shape):
    rule, grow = ROUNDS[shape]
    assert total_variation(pair_counts(rule, WIDE_P, grow, DRAWS, seed=6), PAIRS) < 0.005
