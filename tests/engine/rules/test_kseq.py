"""k-SEQ in exact expectation: every draw of the drafter and every die of the rule is enumerated."""

import pytest
import torch

from crossdraft.drafters.independent import IndependentDrafter
from crossdraft.engine import accept
from crossdraft.engine.loop import DecodeLoop
from crossdraft.engine.request import Request
from crossdraft.engine.rules import rejection, rule_for
from crossdraft.engine.runner.runner import DraftRunner
from crossdraft.engine.sampling import Sampling
from crossdraft.engine.tree import ROOT, DraftTree
from crossdraft_lab.drafters.iid.drafter import IndependentChildrenDrafter, WithReplacement
from crossdraft_lab.rules import kseq
from tests.engine.drafting import certain, mixed, sampled, tree_of, with_replacement
from tests.engine.rules import rounds
from tests.engine.rules.rounds import CHAINS, SPARSE_P, SPARSE_Q, WIDE_P, WIDE_Q, P, Q, R, emitted, error
from tests.engine.zoo import ZOO, as_target, noisy

INDEPENDENT = {
    "two independent": (WIDE_P, tree_of(with_replacement(WIDE_Q, 2)), 1),
    "three independent": (WIDE_P, tree_of(with_replacement(WIDE_Q, 3)), 1),
    "four independent": (P, tree_of(with_replacement(Q, 4)), 1),
    "independent, zeros in p and q": (SPARSE_P, tree_of(with_replacement(SPARSE_Q, 2)), 1),
    "independent, two levels": (P, tree_of(with_replacement(Q, 2), with_replacement(R, 1)), 2),
    "certain beside independent": (P, tree_of(mixed(certain(R, 1), with_replacement(Q, 2))), 1),
    "independent beside certain": (P, tree_of(mixed(with_replacement(Q, 2), certain(R, 2))), 1),
    "independent of two drafters": (P, tree_of(mixed(with_replacement(Q, 2), with_replacement(R, 2))), 1),
    "independent of the target's own": (P, tree_of(with_replacement(P, 2)), 2),
}
CASES = CHAINS | INDEPENDENT


@pytest.fixture(autouse=True)
def _verifier(monkeypatch):
    step = lambda tree, probs, chance: accept.walk(tree, probs, chance, kseq.try_groups)  # noqa: E731
    monkeypatch.setitem(rounds.VERIFIERS, "kseq", step)


@pytest.mark.parametrize("case", CASES)
def test_exact_in_expectation(case):
    assert error("kseq", *CASES[case]) < 1e-12


BUGS = {
    "no divisor": ("divisor", lambda p, q, k: torch.ones_like(p[..., :1])),
    "the residual of one draw": ("remainder", lambda p, q, k, rho: rejection.residual(p, q)),
    "p itself when all are refused": ("remainder", lambda p, q, k, rho: p),
    "the chance of any taken for k times that of one": ("chance_of_any", lambda beta, k: (k * beta).clamp_max(1)),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_shows(bug, monkeypatch):
    name, wrong = BUGS[bug]
    monkeypatch.setattr(kseq, name, wrong)
    assert error("kseq", *INDEPENDENT["two independent"]) > 1e-3


def test_dependent_siblings_are_not_for_it():
    """Those drawn without replacement come out wrong, so the rule may judge the drafts of `iid` alone."""
    assert error("kseq", WIDE_P, tree_of(sampled(WIDE_Q, 2)), 1) > 1e-3
    assert rule_for("kseq", Sampling(temperature=1.0)).drafter == "iid"


def test_it_accepts_more_than_rejection_here():
    target, grow, _ = INDEPENDENT["two independent"]
    assert emitted("kseq", target, grow) > emitted("rejection", target, grow) + 1e-3


def test_divisor_by_hand():
    """p = (3/4, 1/4), q = (1/4, 3/4), k = 2: 1 ≤ ρ ≤ 3 gives β = 1/4 + 1/(4ρ), and 2 - β = ρ gives 4ρ² - 7ρ + 1 = 0."""
    p, q = torch.tensor([[0.75, 0.25], [0.25, 0.75]], dtype=torch.float64)
    rho = kseq.divisor(p, q, 2).item()
    assert (7 + 33**0.5) / 8 <= rho < (7 + 33**0.5) / 8 + 1e-5
    assert kseq.divisor(p, q, 1).item() == 1
    assert kseq.divisor(p, p, 3).item() == pytest.approx(1, abs=1e-5)
    disjoint = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    assert torch.equal(kseq.remainder(*disjoint, 2, kseq.divisor(*disjoint, 2)), disjoint[0])


def test_a_token_that_q_lost_is_a_group_of_its_own():
    q = torch.tensor([[0.0, 1.0]], dtype=torch.float64)
    tree = DraftTree((1, 0), (ROOT, ROOT), q, (0, 0))
    assert kseq.groups(tree, ROOT) == [[0], [1]]


def test_the_drafter_draws_independently_and_answers_end_well():
    model, prompt = ZOO["video_llava"]()
    target, near = as_target(model, prompt), as_target(noisy(model, 0.02), prompt)
    drafter = IndependentChildrenDrafter(near, width=3)
    request = Request("xx", max_new_tokens=12, sampling=Sampling(temperature=1.0, seed=5))
    (answer,) = DecodeLoop(target, DraftRunner(drafter, "before"), rule="kseq", adaptive=False).generate([request])
    assert (answer.stats.rule, answer.stats.lossless) == ("kseq", True)
    assert answer.stats.accepted > 0
    greedy = Request("xx", max_new_tokens=12)
    (drafted,) = DecodeLoop(target, DraftRunner(drafter, "before"), adaptive=False).generate([greedy])
    (alone,) = DecodeLoop(target, None).generate([greedy])
    assert drafted.tokens == alone.tokens
    draws = WithReplacement(torch.Generator().manual_seed(0))(torch.tensor([0.9, 0.1]), 50)
    assert len(draws) == 50
    assert set(draws) == {0, 1}
    assert not isinstance(drafter, IndependentDrafter)
