"""Every loss against cases worked by hand, its gradient against finite differences, and its properties."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from crossdraft_lab.objective import LOSSES, RANKED

EQUAL_DISTRIBUTIONS = ("kl", "distillation", "reverse_kl", "total_variation", "lk", "lk_lambda")
ALL = sorted(LOSSES)


def loss(name: str, ours: Tensor, theirs: Tensor) -> Tensor:
    return LOSSES[name].measure(ours, theirs)


def logits(*probabilities: float) -> Tensor:
    """Log-probabilities plus a constant, which no loss may depend on."""
    return torch.tensor([probabilities], dtype=torch.float64).log() + 3.0


Q, P = logits(0.5, 0.25, 0.25), logits(0.25, 0.25, 0.5)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("soft_cross_entropy", (0.25 + 2 * 0.25 + 2 * 0.5) * math.log(2)),
        ("kl", 0.25 * math.log(2)),  # ¼·ln(¼/½) + ¼·ln 1 + ½·ln(½/¼)
        ("reverse_kl", 0.25 * math.log(2)),
        ("total_variation", 0.25),
        ("lk", -math.log(0.75)),  # ¼ + ¼ + ¼ are accepted
        ("lk_lambda", math.exp(-0.75) * 0.25 * math.log(2) + (1 - math.exp(-0.75)) * 0.25),
        ("top_k_cross_entropy", (0.25 + 2 * 0.25 + 2 * 0.5) * math.log(2)),  # of three tokens all
        # the target's order is 2, 0, 1 (of the equal ones, the first): ¼ of 1, then ½ of ½ + ¼, then all that is left
        ("top_k_rank", -math.log(0.25) - math.log(0.5 / 0.75)),
    ],
)
def test_losses_of_distributions_by_hand(name, expected):
    assert loss(name, Q, P).item() == pytest.approx(expected, abs=1e-12)


def test_softened_distributions_by_hand():
    """q = (1/2, 1/2) stays; of p = (16/17, 1/17) the logits 2 ln 4 and 0 become ln 4 and 0: (4/5, 1/5)."""
    softened = 0.8 * math.log(0.8 / 0.5) + 0.2 * math.log(0.2 / 0.5)
    assert loss("distillation", logits(0.5, 0.5), logits(16 / 17, 1 / 17)).item() == pytest.approx(4 * softened)


def test_forward_and_reverse_kl_are_not_exchanged():
    """q = (½, ½), p = (¾, ¼)."""
    q, p = logits(0.5, 0.5), logits(0.75, 0.25)
    forward = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
    backward = 0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(2)
    assert loss("kl", q, p).item() == pytest.approx(forward)
    assert loss("reverse_kl", q, p).item() == pytest.approx(backward)
    assert abs(forward - backward) > 0.01


def test_cross_entropy_by_hand():
    assert loss("cross_entropy", Q.repeat(3, 1), torch.tensor([0, 1, 2])).tolist() == pytest.approx(
        [math.log(2), math.log(4), math.log(4)]
    )


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("smooth_l1", (0.5 * 0.25 + 2.5) / 2),  # differences ½ and 3: ½d², and |d| − ½
        ("mse", (0.25 + 9) / 2),
        ("cosine", 1 - (1.5 * 1 + 1 * 4) / math.sqrt((1.5**2 + 1) * 17)),
        ("mse_cosine", (0.25 + 9) / 2 + 1 - (1.5 * 1 + 1 * 4) / math.sqrt((1.5**2 + 1) * 17)),
    ],
)
def test_features_by_hand(name, expected):
    predicted, true = torch.tensor([[1.5, 1.0]]), torch.tensor([[1.0, 4.0]])
    assert loss(name, predicted, true).item() == pytest.approx(expected)


@pytest.mark.parametrize("name", ALL)
def test_each_position_has_its_own_loss_and_the_right_gradient(name):
    generator = torch.Generator().manual_seed(1)
    ours = torch.randn(4, 13, dtype=torch.float64, generator=generator, requires_grad=True)
    theirs = torch.randn(4, 13, dtype=torch.float64, generator=generator)
    if LOSSES[name].compares == "labels":
        theirs = theirs.argmax(-1)
    values = loss(name, ours, theirs)
    assert values.shape == (4,)
    if name != "info_nce":  # whose negatives are the other positions
        assert torch.allclose(values, torch.cat([loss(name, ours[i : i + 1], theirs[i : i + 1]) for i in range(4)]))
    if name == "lk_lambda":  # whose λ is held constant: its slope is not that of its value
        return
    assert torch.autograd.gradcheck(lambda x: loss(name, x, theirs), (ours,))


def test_the_weight_of_lk_lambda_has_no_gradient():
    generator = torch.Generator().manual_seed(1)
    ours = torch.randn(2, 5, dtype=torch.float64, generator=generator, requires_grad=True)
    theirs = torch.randn(2, 5, dtype=torch.float64, generator=generator)
    share = (-(1 - loss("total_variation", ours, theirs))).exp().detach()
    mixed = share * loss("kl", ours, theirs) + (1 - share) * loss("total_variation", ours, theirs)
    (expected,) = torch.autograd.grad(mixed.sum(), ours)
    (slope,) = torch.autograd.grad(loss("lk_lambda", ours, theirs).sum(), ours)
    assert torch.allclose(slope, expected)


@given(st.lists(st.tuples(st.floats(-20, 20), st.floats(-20, 20)), min_size=2, max_size=14))
def test_properties_of_losses_for_any_two_distributions(pairs):
    q, p = torch.tensor(pairs, dtype=torch.float64).T.unsqueeze(1)
    value = {name: loss(name, q, p).item() for name in LOSSES if LOSSES[name].compares == "logits"}
    tv, kl = value["total_variation"], value["kl"]
    assert all(math.isfinite(v) for v in value.values())
    assert min(value["kl"], value["reverse_kl"], value["lk"], value["top_k_rank"]) >= -1e-9
    assert -1e-12 <= tv <= 1 + 1e-12
    assert tv <= math.sqrt(max(kl, 0) / 2) + 1e-9  # Pinsker
    assert math.exp(-value["lk"]) == pytest.approx(1 - tv, abs=1e-9)
    entropy = loss("soft_cross_entropy", p, p).item()
    assert value["soft_cross_entropy"] - entropy == pytest.approx(kl, abs=1e-9)
    assert loss("total_variation", p, q).item() == pytest.approx(tv)


@pytest.mark.parametrize("name", EQUAL_DISTRIBUTIONS)
def test_equal_distributions_have_loss_0_and_others_more(name):
    assert loss(name, P, P + 5).item() == pytest.approx(0, abs=1e-12)
    assert loss(name, Q, P).item() > 0.1


@pytest.mark.parametrize("name", ["smooth_l1", "mse", "cosine", "mse_cosine"])
def test_equal_features_have_loss_0(name):
    features = torch.randn(3, 6)
    assert loss(name, features, features).abs().max() < 1e-6


def test_contrastive_loss_by_hand():
    """The first is like the second's feature, the second like none: cosines (0, 1) and (0, 0), over 0.07."""
    ours = torch.tensor([[0.0, 2.0, 0.0], [0.0, 0.0, 3.0]])
    theirs = torch.tensor([[5.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    expected = [math.log(1 + math.exp(1 / 0.07)), math.log(2)]
    assert loss("info_nce", ours, theirs).tolist() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("name", [n for n in ALL if LOSSES[n].compares == "logits"])
def test_disjoint_distributions_have_a_finite_loss_and_gradient(name):
    ours = torch.tensor([[300.0, 0.0]], requires_grad=True)
    value = loss(name, ours, torch.tensor([[0.0, 300.0]]))
    value.sum().backward()
    assert value.isfinite().all()
    assert ours.grad is not None
    assert ours.grad.isfinite().all()


def test_lk_has_a_gradient_where_acceptance_underflows():
    ours = torch.tensor([[300.0, 0.0]], requires_grad=True)
    value = loss("lk", ours, torch.tensor([[0.0, 300.0]]))
    value.sum().backward()
    assert value.item() == pytest.approx(300 - math.log(2))
    assert ours.grad is not None
    assert ours.grad[0, 0] > 0.4


def test_only_the_target_s_ten_likeliest_are_ranked_and_in_its_order():
    theirs = torch.arange(20.0).unsqueeze(0)
    right = loss("top_k_rank", theirs, theirs)
    assert loss("top_k_rank", -theirs, theirs) > 10 * right
    moved = theirs.clone()
    moved[0, : 20 - RANKED] += 100
    assert torch.equal(loss("top_k_rank", moved, theirs), right)


@pytest.mark.parametrize("name", ALL)
def test_losses_of_16_bit_logits_are_computed_in_float32(name):
    ours, theirs = torch.randn(2, 6), torch.randn(2, 6)
    if LOSSES[name].compares == "labels":
        assert loss(name, ours.bfloat16(), theirs.argmax(-1)).dtype == torch.float32
    else:
        assert loss(name, ours.bfloat16(), theirs.bfloat16()).dtype == torch.float32


def test_every_loss_names_its_source():
    assert all(entry.source and entry.compares in {"labels", "logits", "features"} for entry in LOSSES.values())
