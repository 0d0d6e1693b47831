"""What the acceptance rules share: numerics and edges of two distributions."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from crossdraft.engine import accept
from crossdraft.engine.accept import Acceptance, acceptance_ratios, draft_probs
from crossdraft.engine.noise import Noise
from crossdraft.engine.rules import RULES, rejection
from crossdraft.engine.tree import DraftTree
from crossdraft.errors import CrossdraftError
from crossdraft_lab.rules import block
from tests.engine.drafting import Language, probs_of
from tests.engine.exact import distribution
from tests.engine.rules.rounds import VERIFIERS


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_nearly_equal_p_and_q_leave_no_nan():
    """max(0, p - q) sums to rounding noise, or to 0: then p itself is right."""
    p = torch.tensor([0.3, 0.7, 0.0])
    assert torch.equal(rejection.residual(p, p), p)
    rest = rejection.residual(p, p + torch.tensor([1e-7, -1e-7, 0.0]))
    assert rest.tolist() == [0, 1, 0]


def test_an_exact_drafter_leaves_no_nan_in_any_rule():
    """q = p to the bit and to rounding, in float32: everything is accepted, and every weight is finite."""
    p = Language(5, 3)(()).float()
    for q in (p, p * (1 + 1e-7), p * (1 - 1e-7)):
        chain = DraftTree.chain([1, 2], torch.stack([q, q]))
        for verify in (block.verify, rejection.verify):
            assert {verify(chain, p.expand(3, -1), generator(seed)).path for seed in range(50)} == {(0, 1)}


def test_a_draft_that_the_target_forbids_is_never_accepted():
    probs = torch.tensor([[0.0, 1.0], [0.5, 0.5]])
    chain = DraftTree.chain([0], torch.tensor([[1.0, 0.0]]))
    for verify in (rejection.verify, block.verify):
        assert {verify(chain, probs, generator(seed)) for seed in range(50)} == {accept.Acceptance((), 1)}


def test_a_certain_agreement_is_always_accepted():
    probs = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    for verify in (rejection.verify, block.verify):
        assert verify(DraftTree.chain([1]), probs, generator()) == accept.Acceptance((0,), 0)


@pytest.mark.parametrize("rule", VERIFIERS)
def test_a_token_outside_its_own_distribution_counts_as_a_point_mass(rule):
    """A drafter whose q lost a token to rounding must not get it accepted for free."""
    probs = torch.tensor([[0.25, 0.75], [0.5, 0.5]], dtype=torch.float64)
    chain = DraftTree.chain([0], torch.tensor([[0.0, 1.0]], dtype=torch.float64))
    found = distribution(lambda chance: VERIFIERS[rule](chain, probs, chance))
    assert found[accept.Acceptance((), 1)] == pytest.approx(0.75)


def test_the_same_seed_gives_the_same_acceptance():
    tree = DraftTree.from_paths([[0, 1], [2]])
    outputs = {rejection.verify(tree, probs_of(Language(3, 1), tree), generator()) for _ in range(5)}
    assert len(outputs) == 1


@pytest.mark.parametrize("verify", [rejection.verify, block.verify])
def test_another_vocabulary_is_refused(verify):
    chain = DraftTree.chain([0], torch.full((1, 4), 0.25))
    with pytest.raises(CrossdraftError, match="over 4 tokens, the target's over 3"):
        verify(chain, torch.full((2, 3), 1 / 3), generator())


def test_heads_that_are_padded_differently_share_a_vocabulary():
    """A narrower q is zero after its end, and so is a wider one where the target ends."""
    p = torch.tensor([[0.2, 0.3, 0.5], [0.5, 0.5, 0.0]], dtype=torch.float64)
    narrow = torch.tensor([[0.6, 0.4]], dtype=torch.float64)
    wide = torch.tensor([[0.6, 0.4, 0.0, 0.0]], dtype=torch.float64)
    just = torch.tensor([[0.6, 0.4, 0.0]], dtype=torch.float64)
    for seed in range(50):
        outputs = {rejection.verify(DraftTree.chain([0], q), p, generator(seed)) for q in (narrow, wide, just)}
        assert len(outputs) == 1
    outside = torch.tensor([[0.5, 0.4, 0.0, 0.1]], dtype=torch.float64)
    with pytest.raises(CrossdraftError, match="share one vocabulary"):
        rejection.verify(DraftTree.chain([0], outside), p, generator())


class Asked(TorchDispatchMode):
    """Counts what a GPU would be waited for: numbers read one by one, and copies in another dtype."""

    def __init__(self):
        super().__init__()
        self.numbers = self.copies = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.numbers += func is torch.ops.aten._local_scalar_dense.default
        self.copies += func is torch.ops.aten._to_copy.default
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", ["rejection", "block", "fuzzy"])
@pytest.mark.parametrize("nodes", [2, 24])
def test_a_device_is_not_asked_for_every_candidate(name, nodes):
    """All of a long chain is accepted, then the siblings of a root are all refused."""
    q = torch.full((nodes, 8), 1 / 8, dtype=torch.float32)
    tree = DraftTree.chain([node % 8 for node in range(nodes)], q)
    probs = torch.full((1 + nodes, 8), 1 / 8, dtype=torch.float64)
    rule = RULES[name]
    with Asked() as asked:
        output = rule(tree, probs, Noise(0))
    assert len(output.path) == nodes
    draws = nodes if name not in ("block", "fuzzy") else 1  # uniform numbers come from the host
    assert asked.numbers - draws <= 4
    assert asked.copies <= (3 if name != "fuzzy" else 3 + nodes)


def test_siblings_are_asked_about_together():
    q = torch.full((1, 64), 1 / 64)
    tree = DraftTree(tuple(range(30)), (-1,) * 30, q, (0,) * 30)
    probs = torch.zeros(31, 64)
    probs[:, 60] = 1  # nothing that was drafted
    with Asked() as asked:
        output = RULES["rejection"](tree, probs, Noise(0))
    assert output == Acceptance((), 60)
    assert asked.numbers - 30 <= 4


def test_the_ratios_are_those_of_the_drafts_distributions():
    generator = torch.Generator().manual_seed(0)
    dists = torch.rand(2, 6, generator=generator)
    dists[1, 3] = 0  # a token that rounding lost is a point mass
    tree = DraftTree((1, 3, 5, 2), (-1, 0, -1, 2), dists / dists.sum(-1, keepdim=True), (0, 1, -1, 1))
    probs = torch.rand(5, 6, generator=generator)
    found = acceptance_ratios(tree, probs)
    for node, (parent, token) in enumerate(zip(tree.parents, tree.tokens, strict=True)):
        p = probs[parent + 1]
        assert found[node] == (p[token] / draft_probs(tree, node, (), p)[token]).item()
