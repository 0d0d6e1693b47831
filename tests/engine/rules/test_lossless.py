"""Lossless rules in exact expectation: every draw of the drafter and every die of the rule is enumerated."""

import pytest
import torch
from torch import Tensor

from crossdraft.engine import accept
from crossdraft.engine.accept import Acceptance, refuse_dependent
from crossdraft.engine.rules import RULES, block, kseq, specinfer, speculative
from crossdraft.engine.tree import ROOT, DraftTree
from crossdraft.errors import CrossdraftError
from tests.engine.drafting import certain, independent, mixed, sampled, tree_of
from tests.engine.exact import distribution
from tests.engine.rules.rounds import CASES, CHAINS, INDEPENDENT, JUDGES, WIDE_P, WIDE_Q, P, Q, emitted, error


@pytest.mark.parametrize(("rule", "case"), [(rule, case) for rule, cases in CASES.items() for case in cases])
def test_exact_in_expectation(rule, case):
    assert error(rule, *CASES[rule][case]) < 1e-12


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


def as_if_without_replacement(tree: DraftTree, child: int, refused: list[int], p: Tensor) -> Tensor:
    """Bug: the law of a token that differs from its elder siblings, for one that need not."""
    elder = [tree.tokens[other] for other in tree.children(tree.parents[child]) if other < child]
    q = accept.without(tree.dists[tree.drawn_from[child]].to(p), torch.tensor(elder, dtype=torch.long))
    return q + 1e-300  # never divides by 0


NEITHER = lambda p, q: p  # noqa: E731
BUGS = {
    "no residual": ("speculative", accept, "residual", NEITHER, "sampled chain"),
    "no residual between siblings": ("speculative", accept, "residual", NEITHER, "certain siblings"),
    "residual not renormalised": (
        *("speculative", accept, "residual"),
        lambda p, q: (p - q).clamp_min(0),
        "two without replacement",
    ),
    "residual the wrong way round": (*("speculative", accept, "residual"), the_wrong_way_round, "sampled chain"),
    "bonus from q": ("speculative", accept, "residual", lambda p, q: q, "sampled chain"),
    "q not renormalised": ("speculative", accept, "without", not_renormalised, "two without replacement"),
    "q with its elder siblings": (
        *("speculative", accept, "without"),
        lambda q, tokens: q,
        "three without replacement",
    ),
    "siblings of another drafter forgotten": (
        *("speculative", accept, "without"),
        lambda q, tokens: q,
        "certain before sampled siblings",
    ),
    "point mass treated with q": ("speculative", speculative, "law", q_of_the_row, "certain chain"),
    "the mark overlooked": ("speculative", speculative, "law", as_if_without_replacement, "two independent"),
    "specinfer: no residual": ("specinfer", accept, "residual", NEITHER, "two independent"),
    "specinfer: the law of drawing without replacement": (
        *("specinfer", specinfer, "law"),
        as_if_without_replacement,
        "two independent",
    ),
    "kseq: no divisor": (*("kseq", kseq, "divisor"), lambda p, q, k: torch.ones_like(p[..., :1]), "two independent"),
    "kseq: the residual of one draw": (
        *("kseq", kseq, "remainder"),
        lambda p, q, k, rho: accept.residual(p, q),
        "two independent",
    ),
    "kseq: p itself when all are refused": (*("kseq", kseq, "remainder"), lambda p, q, k, rho: p, "two independent"),
    "kseq: the chance of any taken for k times that of one": (
        *("kseq", kseq, "chance_of_any"),
        lambda beta, k: (k * beta).clamp_max(1),
        "two independent",
    ),
    "block: passes with the joint ratio alone": (*("block", block, "passes"), lambda rest, owed: owed, "sampled chain"),
    "block: the residual of one token": (
        *("block", block, "beyond"),
        lambda p, q, owed: (p - q).clamp_min(0),
        "sampled chain",
    ),
    "block: the joint ratio not capped at every step": (
        *("block", block, "joint"),
        lambda ratios: [min(1.0, torch.tensor([1.0, *ratios[:n]]).prod().item()) for n in range(len(ratios) + 1)],
        "sampled chain",
    ),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_shows(bug, monkeypatch):
    rule, module, name, wrong, case = BUGS[bug]
    assert error(rule, *CASES[rule][case]) < 1e-12
    monkeypatch.setattr(module, name, wrong)
    assert error(rule, *CASES[rule][case]) > 1e-3


def test_a_bonus_from_the_wrong_row_shows():
    """The bonus behind an accepted leaf comes from the leaf's row, not from its parent's."""
    tree = DraftTree((0,), (ROOT,))
    found = distribution(lambda chance: JUDGES["speculative"](tree, P(()).repeat(2, 1), chance))
    second = torch.tensor([found.get(Acceptance((0,), token), 0) for token in range(3)])
    assert (second / second.sum() - P((0,))).abs().max() > 1e-3


# -- how much they accept --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CHAINS)
def test_block_never_accepts_less(case):
    target, grow, _ = CHAINS[case]
    assert emitted("block", target, grow) >= emitted("speculative", target, grow) - 1e-12


def test_block_accepts_more_by_hand():
    """The paper's example: p = (1/3, 2/3), q = (2/3, 1/3), two tokens: 10/9 accepted one by one, 11/9 as a block."""
    p, q = (torch.tensor([share, 1 - share], dtype=torch.float64) for share in (1 / 3, 2 / 3))
    target, drafter = (lambda prefix: p), (lambda prefix: q)
    target.vocabulary = drafter.vocabulary = 2
    grow = tree_of(sampled(drafter, 1), sampled(drafter, 1))
    assert emitted("speculative", target, grow) == pytest.approx(1 + 10 / 9, abs=1e-12)
    assert emitted("block", target, grow) == pytest.approx(1 + 11 / 9, abs=1e-12)


def test_independent_rules_agree_and_kseq_may_accept_more():
    target, grow, _ = INDEPENDENT["two independent"]
    unmarked = tree_of(independent(WIDE_Q, 2))
    assert emitted("specinfer", target, grow) == pytest.approx(emitted("speculative", target, grow), abs=1e-12)
    # The mark is worth something: without it a token that repeats an elder sibling is skipped.
    assert emitted("speculative", target, grow) > emitted("speculative", WIDE_P, unmarked) + 1e-4


def test_divisor_by_hand():
    """p = (3/4, 1/4), q = (1/4, 3/4), k = 2: 1 ≤ ρ ≤ 3 gives β = 1/4 + 1/(4ρ), and 2 - β = ρ gives 4ρ² - 7ρ + 1 = 0."""
    p, q = torch.tensor([[0.75, 0.25], [0.25, 0.75]], dtype=torch.float64)
    rho = kseq.divisor(p, q, 2).item()
    assert (7 + 33**0.5) / 8 <= rho < (7 + 33**0.5) / 8 + 1e-5
    assert kseq.divisor(p, q, 1).item() == 1
    assert kseq.divisor(p, p, 3).item() == pytest.approx(1, abs=1e-5)
    apart = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    assert torch.equal(kseq.remainder(*apart, 2, kseq.divisor(*apart, 2)), apart[0])


# -- trees that a rule is not exact for ------------------------------------------------------------------------------

DEPENDENT = {
    "drawn without replacement": tree_of(sampled(Q, 2)),
    "sampled beside a certain one": tree_of(mixed(certain(Q, 1), sampled(Q, 1))),
    "on the second level": tree_of(certain(Q, 2), sampled(Q, 2)),
}


@pytest.mark.parametrize("rule", ["specinfer", "kseq"])
@pytest.mark.parametrize("draft", DEPENDENT)
def test_dependent_siblings_are_refused(rule, draft):
    generator = torch.Generator().manual_seed(0)
    tree = DEPENDENT[draft](accept.Dice(generator))
    with pytest.raises(CrossdraftError, match=f"'{rule}' is exact for siblings drawn independently"):
        RULES[rule](tree, torch.full((1 + len(tree), 3), 1 / 3), generator)


def test_the_refusal_is_needed():
    """What specinfer would make of siblings that were drawn without replacement is not p."""
    assert error("specinfer", WIDE_P, tree_of(sampled(WIDE_Q, 2)), 1) > 1e-3
    assert error("kseq", WIDE_P, tree_of(sampled(WIDE_Q, 2)), 1) > 1e-3


def test_sampled_eldest_and_certain_siblings_are_independent_anyway():
    refuse_dependent(tree_of(mixed(sampled(Q, 1), certain(Q, 2)))(accept.Dice(torch.Generator())), "kseq")


def test_block_refuses_a_tree():
    with pytest.raises(CrossdraftError, match="'block' verifies chains, and this draft branches"):
        block.judge(DraftTree.from_paths([[0], [1]]), torch.full((3, 3), 1 / 3), torch.Generator())


def test_a_token_that_q_lost_is_never_accepted_for_free():
    """Two siblings said to be drawn from q = (0, 1): token 0 cannot have been, and counts as a point mass."""
    q = torch.tensor([[0.0, 1.0]], dtype=torch.float64)
    tree = DraftTree((1, 0), (ROOT, ROOT), q, (0, 0), independent=True)
    assert kseq.groups(tree, ROOT) == [[0], [1]]
    probs = torch.tensor([[0.25, 0.75]], dtype=torch.float64).expand(3, -1)
    for rule in ("specinfer", "kseq", "speculative"):
        found = distribution(lambda chance, rule=rule: JUDGES[rule](tree, probs, chance).path)
        assert found[(0,)] == pytest.approx(0.75)
