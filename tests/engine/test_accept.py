"""Losslessness of the acceptance rules: in exact expectation, in 10^6 draws, and red for every planted bug.

The exact tests enumerate a whole round: the drafter draws its tree, the rule judges it, and the target alone finishes
the answer to a fixed length. The answer must then be distributed as the target's own, to rounding.
"""

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from crossdraft.engine import accept
from crossdraft.engine.accept import Chance, Dice, greedy, rule_for, speculative, walk
from crossdraft.engine.sampling import Sampling, sample_children
from crossdraft.engine.tree import ROOT, DraftTree
from crossdraft.errors import CrossdraftError
from tests.engine.drafting import (
    Grow,
    Language,
    Prefix,
    Way,
    certain,
    independent,
    mixed,
    probs_of,
    sampled,
    tree_of,
    union_of,
)
from tests.engine.exact import distribution

DRAWS = 10**6


# -- one whole round, in exact expectation ---------------------------------------------------------------------------


def error(target: Language, grow: Grow, length: int) -> float:
    """Largest error of any answer's probability, after one round that the target alone finishes to `length` tokens."""

    def answer(chance: Chance) -> Prefix:
        tree = grow(chance)
        verdict = walk(tree, probs_of(target, tree), chance)
        tokens = (*(tree.tokens[node] for node in verdict.path), verdict.bonus)
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


P = Language(3, seed=1)
Q = Language(3, seed=2)
R = Language(3, seed=3, sharpness=2)
SPARSE_P = Language(4, seed=4, zeros=1)
SPARSE_Q = Language(4, seed=5, zeros=1)
WIDE_P, WIDE_Q, WIDE_R = Language(4, seed=6), Language(4, seed=7, sharpness=2), Language(4, seed=8)

CASES: dict[str, tuple[Language, Grow, int]] = {
    "nothing drafted": (P, tree_of(), 2),
    "sampled chain": (P, tree_of(sampled(Q, 1), sampled(Q, 1)), 3),
    "sampled chain, zeros in p and q": (SPARSE_P, tree_of(sampled(SPARSE_Q, 1), sampled(SPARSE_Q, 1)), 2),
    "certain chain": (P, tree_of(certain(Q, 1), certain(Q, 1), certain(Q, 1)), 3),
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
    "with replacement": (WIDE_P, tree_of(independent(WIDE_Q, 3)), 1),
    "union of three drafters": (
        P,
        union_of(
            tree_of(sampled(Q, 1), sampled(Q, 1)),
            tree_of(sampled(R, 2)),
            tree_of(certain(P, 1), certain(P, 1)),
        ),
        2,
    ),
    "drafter equals target": (P, tree_of(sampled(P, 2), sampled(P, 1)), 2),
}


@pytest.mark.parametrize("case", CASES)
def test_speculative_is_exact_in_expectation(case):
    assert error(*CASES[case]) < 1e-12


@settings(max_examples=60)
@given(st.data())
def test_speculative_is_exact_on_random_trees(data):
    """Any shape of at most two levels, any mixture of ways, any zeros in p and q."""
    vocabulary = data.draw(st.integers(2, 3))
    seeds, zeros = st.integers(0, 10**6), st.integers(0, vocabulary - 1)
    target = Language(vocabulary, data.draw(seeds), data.draw(st.floats(0, 4)), data.draw(zeros))

    def way() -> Way:
        q = Language(vocabulary, data.draw(seeds), data.draw(st.floats(0, 4)), data.draw(zeros))
        kind = data.draw(st.sampled_from([sampled, certain, independent]))
        return kind(q, data.draw(st.integers(1, 2)))

    levels = [way() if data.draw(st.booleans()) else mixed(way(), way())]
    if data.draw(st.booleans()):
        levels.append(way())
    assert error(target, tree_of(*levels), 2) < 1e-12


# -- planted bugs ----------------------------------------------------------------------------------------------------


def q_of_the_row(tree: DraftTree, child: int, refused: list[int], p: Tensor) -> Tensor:
    """Bug: a deterministic child is treated as if it had been drawn from its drafter's distribution."""
    return Q(tuple(tree.path_tokens(tree.parents[child])))


def not_renormalised(q: Tensor, tokens: Tensor) -> Tensor:
    """Bug: siblings keep the weights that they had before the elder ones were taken out."""
    return q.scatter(-1, tokens, 0) if tokens.shape[-1] else q


def the_wrong_way_round(p: Tensor, q: Tensor) -> Tensor:
    """Bug: what the drafter gave too much, instead of what the target still owes."""
    return (q - p).clamp_min(0) / (q - p).clamp_min(0).sum()


BUGS = {
    "no residual": ("residual", lambda p, q: p, "sampled chain"),
    "no residual between siblings": ("residual", lambda p, q: p, "certain siblings"),
    "residual not renormalised": ("residual", lambda p, q: (p - q).clamp_min(0), "two without replacement"),
    "residual the wrong way round": ("residual", the_wrong_way_round, "sampled chain"),
    "bonus from q": ("residual", lambda p, q: q, "sampled chain"),
    "q not renormalised": ("without", not_renormalised, "two without replacement"),
    "q with its elder siblings": ("without", lambda q, tokens: q, "three without replacement"),
    "siblings of another drafter forgotten": ("without", lambda q, _: q, "certain before sampled siblings"),
    "point mass treated with q": ("law", q_of_the_row, "certain chain"),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_shows(bug, monkeypatch):
    name, wrong, case = BUGS[bug]
    monkeypatch.setattr(accept, name, wrong)
    assert error(*CASES[case]) > 1e-3


def test_a_bonus_from_the_wrong_row_shows():
    """The bonus behind an accepted leaf comes from the leaf's row, not from its parent's."""
    tree = DraftTree((0,), (ROOT,))
    found = distribution(lambda chance: walk(tree, P(()).repeat(2, 1), chance))
    second = torch.tensor([found.get(accept.Verdict((0,), token), 0) for token in range(3)])
    assert (second / second.sum() - P((0,))).abs().max() > 1e-3


# -- draws -----------------------------------------------------------------------------------------------------------


def total_variation(counts: Tensor, wanted: Tensor) -> float:
    return 0.5 * (counts / counts.sum() - wanted).abs().sum().item()


def p_value(counts: Tensor, wanted: Tensor) -> float:
    """Of a chi-square test: how often chance alone strays so far from `wanted`."""
    return stats.chisquare(counts.numpy(), (counts.sum() * wanted).numpy()).pvalue


def first_tokens(p: Tensor, siblings: list[tuple[Tensor | int, int]], generator: torch.Generator) -> Tensor:
    """[DRAWS] first tokens of one round each, all rounds at once, by the rule's own batched parts in float32.

    `siblings`: (q [V], k) for k children without replacement, (token, 1) for a certain one.
    """
    rows = torch.arange(DRAWS)
    tokens, laws = [], []
    for source, k in siblings:
        if isinstance(source, int):
            drawn, q = torch.full((DRAWS, 1), source), torch.eye(len(p))[source]
        else:
            drawn, q = sample_children(source.expand(DRAWS, -1), k, generator), source
        tokens += list(drawn.T)
        laws += [(q.expand(DRAWS, -1), isinstance(source, int))] * drawn.shape[1]
    left, refused = p.repeat(DRAWS, 1), torch.empty(DRAWS, 0, dtype=torch.long)
    emitted = torch.full((DRAWS,), -1)
    for token, (law, point) in zip(tokens, laws, strict=True):
        trying = (emitted < 0) & ~(refused == token[:, None]).any(-1)
        q = law if point else accept.without(law, refused)
        taken = torch.rand(DRAWS, generator=generator) < left[rows, token] / q[rows, token]
        emitted = torch.where(trying & taken, token, emitted)
        left = torch.where((trying & ~taken)[:, None], accept.residual(left, q), left)
        refused = torch.cat([refused, token[:, None]], 1)
    return torch.where(emitted < 0, sample_children(left, 1, generator)[:, 0], emitted)


FIVE_P = Language(5, seed=11, sharpness=1.5)(())
FIVE_Q = Language(5, seed=12, sharpness=1.5)(()).float()
FIVE_R = Language(5, seed=13, zeros=1)(()).float()
SIBLINGS = {
    "chain": [(FIVE_Q, 1)],
    "point masses": [(2, 1), (0, 1)],
    "without replacement": [(FIVE_Q, 3)],
    "two drafters": [(FIVE_Q, 2), (FIVE_R, 2)],
    "point masses and samples": [(1, 1), (FIVE_R, 2), (3, 1)],
}


@pytest.mark.parametrize("siblings", SIBLINGS)
def test_a_million_draws_of_the_batched_core(siblings):
    tokens = first_tokens(FIVE_P.float(), SIBLINGS[siblings], torch.Generator().manual_seed(7))
    counts = torch.bincount(tokens, minlength=5).double()
    assert total_variation(counts, FIVE_P) < 0.005
    assert p_value(counts, FIVE_P) > 1e-3


def pair_counts(target: Language, grow: Grow, draws: int, seed: int) -> Tensor:
    """Counts [V * V] of the first two tokens of real rounds; drafter and target draw from generators of their own."""
    drafter, own = Dice(torch.Generator().manual_seed(seed)), torch.Generator().manual_seed(seed + 1)
    counts = torch.zeros(target.vocabulary, target.vocabulary, dtype=torch.float64)
    for _ in range(draws):
        tree = grow(drafter)
        verdict = speculative(tree, probs_of(target, tree), own)
        tokens = (*(tree.tokens[node] for node in verdict.path), verdict.bonus)
        if len(tokens) < 2:
            tokens += (Dice(own).draw(target(tokens)),)
        counts[tokens[:2]] += 1
    return counts.flatten()


ROUNDS = {
    "chain": tree_of(sampled(WIDE_Q, 1), sampled(WIDE_Q, 1)),
    "certain siblings": tree_of(certain(WIDE_Q, 2), certain(WIDE_Q, 2)),
    "without replacement": tree_of(sampled(WIDE_Q, 2), sampled(WIDE_Q, 1)),
    "two drafters": tree_of(mixed(certain(WIDE_R, 1), sampled(WIDE_Q, 2)), sampled(WIDE_Q, 1)),
}
WIDE_PAIRS = torch.stack([WIDE_P(())[token] * WIDE_P((token,)) for token in range(4)]).flatten()


@pytest.mark.parametrize("shape", ROUNDS)
def test_real_rounds_pass_a_chi_square(shape):
    counts = pair_counts(WIDE_P, ROUNDS[shape], 4000, seed=5)
    assert p_value(counts, WIDE_PAIRS) > 1e-3


def test_a_planted_bug_fails_the_chi_square(monkeypatch):
    monkeypatch.setattr(accept, "residual", lambda p, q: p)
    counts = pair_counts(WIDE_P, ROUNDS["chain"], 4000, seed=5)
    assert p_value(counts, WIDE_PAIRS) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("shape", ROUNDS)
def test_a_million_real_rounds(shape):
    assert total_variation(pair_counts(WIDE_P, ROUNDS[shape], DRAWS, seed=6), WIDE_PAIRS) < 0.005


# -- numerics and edges ----------------------------------------------------------------------------------------------


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_nearly_equal_p_and_q_leave_no_nan():
    """max(0, p - q) sums to rounding noise, or to 0: then p itself is right."""
    p = torch.tensor([0.3, 0.7, 0.0])
    assert torch.equal(accept.residual(p, p), p)
    rest = accept.residual(p, p + torch.tensor([1e-7, -1e-7, 0.0]))
    assert rest.tolist() == [0, 1, 0]


def test_a_draft_that_the_target_forbids_is_never_accepted():
    probs = torch.tensor([[0.0, 1.0], [0.5, 0.5]])
    chain = DraftTree.chain([0], torch.tensor([[1.0, 0.0]]))
    chances = generator()
    assert {speculative(chain, probs, chances) for _ in range(50)} == {accept.Verdict((), 1)}


def test_a_certain_agreement_is_always_accepted():
    probs = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    assert speculative(DraftTree.chain([1]), probs, generator()) == accept.Verdict((0,), 0)


def test_a_token_outside_its_own_distribution_counts_as_a_point_mass():
    """A drafter whose q lost a token to rounding must not get it accepted for free."""
    probs = torch.tensor([[0.25, 0.75], [0.5, 0.5]], dtype=torch.float64)
    chain = DraftTree.chain([0], torch.tensor([[0.0, 1.0]], dtype=torch.float64))
    found = distribution(lambda chance: walk(chain, probs, chance))
    assert found[accept.Verdict((), 1)] == pytest.approx(0.75)


def test_the_same_seed_gives_the_same_verdict():
    tree = DraftTree.from_paths([[0, 1], [2]])
    verdicts = {speculative(tree, probs_of(P, tree), generator()) for _ in range(5)}
    assert len(verdicts) == 1


def test_another_vocabulary_is_refused():
    chain = DraftTree.chain([0], torch.full((1, 4), 0.25))
    with pytest.raises(CrossdraftError, match="over 4 tokens, the target's over 3"):
        speculative(chain, torch.full((2, 3), 1 / 3), generator())


# -- greedy ----------------------------------------------------------------------------------------------------------


def logits_for(best: list[int], vocabulary: int = 10) -> Tensor:
    """[1 + n, V] with the given argmax in each row."""
    return torch.eye(vocabulary)[best]


def test_greedy_by_hand():
    """Root: 5 is wanted and there; behind it 7, the second child; behind that 3, which nobody drafted."""
    tree = DraftTree(tokens=(4, 5, 6, 7, 9), parents=(-1, -1, 1, 1, 3))
    assert greedy(tree, logits_for([5, 0, 7, 0, 3, 0]), generator()) == accept.Verdict((1, 3), 3)


def test_greedy_accepts_a_whole_chain_and_adds_its_own():
    assert greedy(DraftTree.chain([1, 2]), logits_for([1, 2, 3]), generator()) == accept.Verdict((0, 1), 3)


def test_greedy_refuses_what_stands_in_the_wrong_place():
    assert greedy(DraftTree.chain([2, 1]), logits_for([1, 2, 3]), generator()) == accept.Verdict((), 1)


def test_greedy_without_a_draft_is_plain_decoding():
    assert greedy(DraftTree.empty(), logits_for([8]), generator()) == accept.Verdict((), 8)


def greedy_faults(rule: Callable[[DraftTree, Tensor, torch.Generator], accept.Verdict]) -> int:
    """In how many of 200 random rounds the emitted tokens are not the target's own, or a longer path was right."""
    faults = 0
    for seed in range(200):
        target, source = Language(3, seed), torch.Generator().manual_seed(seed)
        paths = torch.randint(0, 3, (3, 4), generator=source).tolist()
        tree = DraftTree.from_paths(paths)
        verdict = rule(tree, probs_of(target, tree), generator())
        emitted = [*(tree.tokens[node] for node in verdict.path), verdict.bonus]
        alone = [int(target(tuple(emitted[:i])).argmax()) for i in range(len(emitted))]
        faults += emitted != alone or emitted in [path[: len(emitted)] for path in paths]
    return faults


def first_child(tree: DraftTree, logits: Tensor, chances: torch.Generator) -> accept.Verdict:
    """Bug: takes the first child on trust."""
    node = tree.children(ROOT)[0]
    return accept.Verdict((node,), int(logits[node + 1].argmax()))


def one_too_short(tree: DraftTree, logits: Tensor, chances: torch.Generator) -> accept.Verdict:
    """Bug: stops although the next node was right; lossless, but not the longest path."""
    path = greedy(tree, logits, chances).path[:-1]
    return accept.Verdict(path, int(logits[path[-1] + 1 if path else 0].argmax()))


def test_greedy_emits_what_the_target_alone_would_write():
    assert greedy_faults(greedy) == 0


@pytest.mark.parametrize(
    "bug",
    [first_child, one_too_short, lambda tree, logits, chances: greedy(tree, logits.roll(1, 0), chances)],
)
def test_a_planted_bug_in_greedy_shows(bug):
    assert greedy_faults(bug) > 20


# -- choosing a rule -------------------------------------------------------------------------------------------------


def test_the_temperature_chooses_the_exact_rule():
    assert rule_for(None, Sampling()).name == "greedy"
    assert rule_for(None, Sampling(temperature=0.7)).name == "speculative"
    assert all(rule.lossless for rule in accept.RULES.values())


def test_an_unknown_or_unfitting_rule_is_refused():
    with pytest.raises(CrossdraftError, match="no acceptance rule 'typical'; choose one of: greedy, spec"):
        rule_for("typical", Sampling())
    with pytest.raises(CrossdraftError, match="'greedy' does not fit temperature 1"):
        rule_for("greedy", Sampling(temperature=1.0))
    with pytest.raises(CrossdraftError, match="'speculative' does not fit temperature 0"):
        rule_for("speculative", Sampling())


def test_heads_that_are_padded_differently_share_a_vocabulary():
    """A narrower q is zero behind its end, and so is a wider one where the target ends."""
    p = torch.tensor([[0.2, 0.3, 0.5], [0.5, 0.5, 0.0]], dtype=torch.float64)
    narrow = torch.tensor([[0.6, 0.4]], dtype=torch.float64)
    wide = torch.tensor([[0.6, 0.4, 0.0, 0.0]], dtype=torch.float64)
    just = torch.tensor([[0.6, 0.4, 0.0]], dtype=torch.float64)
    for seed in range(50):
        verdicts = {
            accept.speculative(DraftTree.chain([0], q), p, torch.Generator().manual_seed(seed))
            for q in (narrow, wide, just)
        }
        assert len(verdicts) == 1
    outside = torch.tensor([[0.5, 0.4, 0.0, 0.1]], dtype=torch.float64)
    with pytest.raises(CrossdraftError, match="share one vocabulary"):
        accept.speculative(DraftTree.chain([0], outside), p, torch.Generator())
