"""`ears` by hand and in exact expectation."""

import pytest
import torch

from crossdraft.engine.accept import Chance
from crossdraft.engine.rules.rejection import try_children
from crossdraft.engine.tree import ROOT, DraftTree
from crossdraft_lab.rules.ears import Ears
from tests.engine.exact import distribution

P, Q = torch.tensor([0.5, 0.3, 0.2, 0.0]).double(), torch.tensor([0.1, 0.6, 0.1, 0.2]).double()


def kept(rule: Ears, drafted: int) -> dict[tuple[int, ...], float]:
    """The chance that a token drawn from Q is kept, and of the bonus where it is not."""
    tree = DraftTree.chain([drafted], Q[None])

    def outcome(chance: Chance) -> tuple[int, ...]:
        node, left = try_children(tree, ROOT, P, chance, added=rule.added(P).item())
        return (drafted,) if node == 0 else (ROOT, chance.draw(left))

    return distribution(outcome)


def test_the_tolerance_is_that_of_the_authors_code():
    """The two rows of vLLM-Ascend's own test: 0.5 · (1 - 0.4) and 0.5 · (1 - 0.9)."""
    probs = torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.9, 0.05, 0.03, 0.02]])
    assert Ears(tolerance=0.5).added(probs).tolist() == pytest.approx([0.3, 0.05])


def test_ears_by_hand():
    """max p = 0.5: 0.4 · 0.5 = 0.2 is added. Token 1: 0.3 / 0.6 + 0.2 = 0.7; else p - q leaves 4/5 of 0, 1/5 of 2."""
    found = kept(Ears(tolerance=0.4), 1)
    assert found == pytest.approx({(1,): 0.7, (ROOT, 0): 0.3 * 0.8, (ROOT, 2): 0.3 * 0.2})
    assert kept(Ears(tolerance=0.4), 0) == {(0,): 1.0}
    # A token that the target gives no chance stays refused.
    assert (3,) not in kept(Ears(tolerance=1), 3)


def test_acceptance_grows_with_the_tolerance_and_with_doubt():
    shares = [kept(Ears(tolerance=tolerance), 1)[1,] for tolerance in (1e-9, 0.2, 0.6, 1)]
    assert shares == pytest.approx([0.5, 0.6, 0.8, 1.0])
    sure = Ears(tolerance=1).added(torch.tensor([1.0, 0.0]))
    assert sure.item() == 0


def test_the_whole_rule_takes_the_doubt_of_each_node_s_own_parent():
    """After the root the target is sure of another token; after token 1 it is a fair coin, which adds 1/2 to p/q."""
    q = torch.tensor([[0.0, 1.0], [1.0, 0.0]]).double()
    chain = DraftTree.chain([1, 0], q)
    fair = torch.tensor([[0.01, 0.99], [0.5, 0.5], [0.5, 0.5]]).double()
    paths = [Ears(tolerance=1)(chain, fair, torch.Generator().manual_seed(seed)).path for seed in range(60)]
    assert paths.count((0, 1)) == 60  # 0.99 + 0.01, then 0.5 + 0.5
    exact = [Ears(tolerance=1e-9)(chain, fair, torch.Generator().manual_seed(seed)).path for seed in range(60)]
    assert 15 <= exact.count((0, 1)) <= 45


def test_siblings_are_tolerated_too():
    """Two certain siblings, p = (1/2, 1/4, 1/4): 0.5 + 0.5 for the first; of a dark first one the second decides."""
    probs = torch.tensor([[0.5, 0.25, 0.25]]).double().repeat(3, 1)
    tree = DraftTree((0, 1), (ROOT, ROOT))
    assert {Ears(tolerance=1)(tree, probs, torch.Generator().manual_seed(s)).path for s in range(20)} == {(0,)}
    dark = torch.tensor([[0.0, 0.5, 0.5]]).double().repeat(3, 1)
    assert {Ears(tolerance=1)(tree, dark, torch.Generator().manual_seed(s)).path for s in range(20)} == {(1,)}


def test_a_token_is_kept_as_often_as_in_the_port_to_vllm_ascend():
    """Its condition over all U: p / q >= U - tolerance · (1 - max p). What has no chance it may keep, we never."""
    rows = torch.randn(2, 6, generator=torch.Generator().manual_seed(0)).double().softmax(-1)
    p, q = rows[0], rows[1]
    uniform = (torch.arange(100_000).double() + 0.5) / 100_000
    rule, tolerance = Ears(tolerance=0.3), 0.3 * (1 - p.max())
    for token in range(6):
        theirs = (p[token] / q[token] >= uniform - tolerance).double().mean().item()

        def outcome(chance: Chance, token: int = token) -> int:
            tree = DraftTree.chain([token], q[None])
            return try_children(tree, ROOT, p, chance, added=rule.added(p).item())[0]

        assert distribution(outcome).get(0, 0.0) == pytest.approx(theirs, abs=2e-5)
