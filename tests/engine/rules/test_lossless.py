"""Lossless rules in exact expectation: every draw of the drafter and every die of the rule is enumerated."""

import pytest
import torch
from torch import Tensor

from crossdraft.engine import accept
from crossdraft.engine.accept import Acceptance
from crossdraft.engine.rules import rejection
from crossdraft.engine.tree import ROOT, DraftTree
from crossdraft.errors import CrossdraftError
from crossdraft_lab.rules import block
from tests.engine.drafting import sampled, tree_of
from tests.engine.exact import distribution
from tests.engine.rules.rounds import CASES, CHAINS, VERIFIERS, P, Q, emitted, error


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


NEITHER = lambda p, q: p  # noqa: E731
BUGS = {
    "no residual": ("rejection", rejection, "residual", NEITHER, "sampled chain"),
    "no residual between siblings": ("rejection", rejection, "residual", NEITHER, "certain siblings"),
    "residual not renormalised": (
        *("rejection", rejection, "residual"),
        lambda p, q: (p - q).clamp_min(0),
        "two without replacement",
    ),
    "residual the wrong way round": (*("rejection", rejection, "residual"), the_wrong_way_round, "sampled chain"),
    "bonus from q": ("rejection", rejection, "residual", lambda p, q: q, "sampled chain"),
    "q not renormalised": ("rejection", accept, "without", not_renormalised, "two without replacement"),
    "q with its elder siblings": (*("rejection", accept, "without"), lambda q, tokens: q, "three without replacement"),
    "siblings of another drafter forgotten": (
        *("rejection", accept, "without"),
        lambda q, tokens: q,
        "certain before sampled siblings",
    ),
    "point mass treated with q": ("rejection", rejection, "draft_probs", q_of_the_row, "certain chain"),
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
    """The bonus after an accepted leaf comes from the leaf's row, not from its parent's."""
    tree = DraftTree((0,), (ROOT,))
    found = distribution(lambda chance: VERIFIERS["rejection"](tree, P(()).repeat(2, 1), chance))
    second = torch.tensor([found.get(Acceptance((0,), token), 0) for token in range(3)])
    assert (second / second.sum() - P((0,))).abs().max() > 1e-3


# -- how much they accept --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CHAINS)
def test_block_never_accepts_less(case):
    target, grow, _ = CHAINS[case]
    assert emitted("block", target, grow) >= emitted("rejection", target, grow) - 1e-12


def test_block_accepts_more_by_hand():
    """The paper's example: p = (1/3, 2/3), q = (2/3, 1/3), two tokens: 10/9 accepted one by one, 11/9 as a block."""
    p, q = (torch.tensor([share, 1 - share], dtype=torch.float64) for share in (1 / 3, 2 / 3))
    target, drafter = (lambda prefix: p), (lambda prefix: q)
    target.vocabulary = drafter.vocabulary = 2
    grow = tree_of(sampled(drafter, 1), sampled(drafter, 1))
    assert emitted("rejection", target, grow) == pytest.approx(1 + 10 / 9, abs=1e-12)
    assert emitted("block", target, grow) == pytest.approx(1 + 11 / 9, abs=1e-12)


# -- trees that a rule is not exact for ------------------------------------------------------------------------------


def test_block_refuses_a_tree():
    with pytest.raises(CrossdraftError, match="'block' verifies chains, and this draft branches"):
        block.verify(DraftTree.from_paths([[0], [1]]), torch.full((3, 3), 1 / 3), torch.Generator())


def test_a_token_that_q_lost_is_never_accepted_for_free():
    """Two siblings said to be drawn from q = (0, 1): token 0 cannot have been, and counts as a point mass."""
    q = torch.tensor([[0.0, 1.0]], dtype=torch.float64)
    tree = DraftTree((1, 0), (ROOT, ROOT), q, (0, 0))
    probs = torch.tensor([[0.25, 0.75]], dtype=torch.float64).expand(3, -1)
    found = distribution(lambda chance: VERIFIERS["rejection"](tree, probs, chance).path)
    assert found[(0,)] == pytest.approx(0.75)
