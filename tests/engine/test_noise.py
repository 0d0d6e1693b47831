"""The noise of a seed: a pure function of (seed, position, token id), uniform, and blind to what is near."""

import math

import pytest
import torch
from scipy import stats

from crossdraft.engine import noise
from crossdraft.engine.noise import Noise, choose, shares, uniform
from crossdraft.errors import CrossdraftError

WIDE = 151_936
SEED = 2**63 - 1


def splitmix(seed: int, position: int, token: int) -> float:
    """The definition, in Python's whole numbers."""

    def mixed(z: int) -> int:
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
        return z ^ (z >> 31)

    def hashed(number: int) -> int:
        return mixed((number + 0x9E3779B97F4A7C15) % 2**64)

    key = hashed(hashed(seed) + position)
    return ((mixed((key + token * 0x9E3779B97F4A7C15) % 2**64) >> 12) + 0.5) / 2**52


@pytest.mark.parametrize("seed", [0, 1, 7, 2**62, SEED])
@pytest.mark.parametrize("position", [0, 1, 4095])
def test_every_number_is_the_definitions_own(seed, position):
    tokens = [0, 1, 2, 31_999, WIDE - 1, 2**31]
    found = uniform(seed, position, torch.tensor(tokens))
    assert found.tolist() == [splitmix(seed, position, token) for token in tokens]


def test_the_mixing_is_that_of_splitmix64():
    """The first outputs of the published generator begun at 1234567 (Rosetta Code, `splitmix64`)."""
    step = 0x9E3779B97F4A7C15
    wanted = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821]
    assert [noise._hash((1234567 + i * step) % 2**64) for i in range(5)] == wanted


def test_a_number_is_the_same_in_any_company():
    """Whatever else is asked for, in any order, shape or width of the vocabulary."""
    alone = uniform(5, 3, torch.arange(1000))
    assert torch.equal(uniform(5, 3, torch.arange(WIDE))[:1000], alone)
    assert torch.equal(uniform(5, 3, torch.arange(1000).flip(0)).flip(0), alone)
    assert torch.equal(uniform(5, 3, torch.arange(1000).view(10, 100)).flatten(), alone)
    assert [uniform(5, 3, torch.tensor([token])).item() for token in (0, 17, 999)] == alone[[0, 17, 999]].tolist()
    torch.manual_seed(99)
    assert torch.equal(uniform(5, 3, torch.arange(1000)), alone)


@pytest.mark.gpu
def test_a_gpu_has_the_same_numbers():
    tokens = torch.arange(WIDE)
    for seed, position in ((0, 0), (7, 511), (SEED, 4095)):
        assert torch.equal(uniform(seed, position, tokens.to("cuda")).cpu(), uniform(seed, position, tokens))


def test_no_number_is_0_or_1_and_53_bits_are_used():
    found = torch.cat([uniform(seed, 0, torch.arange(WIDE)) for seed in range(20)])
    assert 0 < found.min() < 1e-5
    assert 1 - 1e-5 < found.max() < 1
    assert len(found.unique()) == len(found)
    halves = found * 2**52 - 0.5
    assert torch.equal(halves, halves.floor())
    assert all(0.4 < (halves.long() >> bit).bitwise_and_(1).double().mean() < 0.6 for bit in range(52))


def ks(numbers: torch.Tensor) -> float:
    return stats.kstest(numbers.flatten().numpy(), "uniform").pvalue


def test_numbers_are_uniform_over_tokens_over_positions_and_over_seeds():
    tokens, few = torch.arange(WIDE), torch.tensor([0, 1, 31_999])
    assert ks(uniform(3, 5, tokens)) > 1e-3
    assert ks(torch.stack([uniform(3, position, few) for position in range(20_000)])) > 1e-3
    assert ks(torch.stack([uniform(seed, 5, few) for seed in range(20_000)])) > 1e-3
    cells = torch.histc(uniform(4, 5, tokens), 256, 0, 1)
    assert stats.chisquare(cells.numpy()).pvalue > 1e-3


def correlation(left: torch.Tensor, right: torch.Tensor) -> float:
    """In standard deviations of a correlation of independent numbers."""
    return float(torch.corrcoef(torch.stack((left.flatten(), right.flatten())))[0, 1]) * math.sqrt(left.numel())


@pytest.mark.parametrize("step", [1, 2, 256, 2**32])
def test_neighbours_say_nothing_of_each_other(step):
    """In seed, in position, in both at once, in the token's id."""
    tokens = torch.arange(30_000)
    own = uniform(11, 7, tokens)
    neighbours = [
        uniform(11 + step, 7, tokens),
        uniform(11, 7 + step, tokens),
        uniform(11 + step, 7 - step, tokens),
        uniform(11, 7, tokens + step),
    ]
    for other in neighbours:
        assert abs(correlation(own, other)) < 4.5
        quarters = (4 * own).long() * 4 + (4 * other).long()
        assert stats.chisquare(torch.bincount(quarters, minlength=16).numpy()).pvalue > 1e-4


def test_the_same_token_of_neighbouring_positions_and_seeds_is_independent():
    at = torch.stack([uniform(1, position, torch.arange(50)) for position in range(2_000)])
    assert abs(correlation(at[:-1], at[1:])) < 4.5
    of = torch.stack([uniform(seed, 0, torch.arange(50)) for seed in range(2_000)])
    assert abs(correlation(of[:-1], of[1:])) < 4.5


# -- tokens drawn with it --------------------------------------------------------------------------------------------

WEIGHTS = torch.tensor([0.05, 0.0, 0.15, 0.3, 0.4, 0.1], dtype=torch.float64)


def test_a_choice_is_the_arg_max_of_log_p_and_gumbel_noise():
    for seed in range(200):
        gumbel = -(-uniform(seed, 2, torch.arange(6)).log()).log()
        assert choose(WEIGHTS, seed, 2) == int((WEIGHTS.log() + gumbel).argmax())


def test_choices_follow_the_weights_over_seeds_and_over_positions():
    for drawn in ([choose(WEIGHTS, seed, 4) for seed in range(6_000)], [choose(WEIGHTS, 9, at) for at in range(6_000)]):
        counts = torch.bincount(torch.tensor(drawn), minlength=6).double()
        assert counts[1] == 0
        present = WEIGHTS > 0
        assert stats.chisquare(counts[present].numpy(), (6_000 * WEIGHTS[present]).numpy()).pvalue > 1e-3


def test_pairs_of_places_are_independent():
    pairs = torch.tensor([6 * choose(WEIGHTS, seed, 0) + choose(WEIGHTS, seed, 1) for seed in range(6_000)])
    wanted = (WEIGHTS[:, None] * WEIGHTS).flatten()
    counts, present = torch.bincount(pairs, minlength=36).double(), wanted > 0
    assert stats.chisquare(counts[present].numpy(), (6_000 * wanted[present]).numpy()).pvalue > 1e-3


@pytest.mark.parametrize("kept", [1, 3, 200, 2000])
def test_the_choice_is_the_same_whatever_is_left_out_or_padded(kept):
    """Where few tokens have a chance the noise is computed for these alone."""
    weights = torch.zeros(2000)
    weights[torch.randperm(2000)[:kept]] = torch.rand(kept) + 0.1
    for seed in range(50):
        wanted = choose(weights, seed, 3)
        assert wanted == choose(torch.cat((weights, torch.zeros(70_000))), seed, 3)
        assert wanted == choose(weights.double() * 5, seed, 3)
        assert wanted == int(shares(weights, seed, 3).argmax())


def test_shares_order_a_draw_without_replacement():
    """The two largest: the second one follows the weights without the first."""
    ordered = torch.stack([shares(WEIGHTS, seed, 0).topk(2).indices for seed in range(6_000)])
    pairs = 6 * ordered[:, 0] + ordered[:, 1]
    wanted = WEIGHTS[:, None] * WEIGHTS / (1 - WEIGHTS[:, None])
    wanted.fill_diagonal_(0)
    counts, present = torch.bincount(pairs, minlength=36).double(), wanted.flatten() > 0
    assert stats.chisquare(counts[present].numpy(), (6_000 * wanted.flatten()[present]).numpy()).pvalue > 1e-3


def test_shares_of_rows():
    rows = torch.stack((WEIGHTS, torch.zeros(6, dtype=torch.float64)))
    found = shares(rows, 1, 2)
    assert torch.equal(found[0], shares(WEIGHTS, 1, 2))
    assert found.sum(-1).tolist() == pytest.approx([1, 0])


@pytest.mark.parametrize("bad", [[0.0, 0.0], [float("nan"), 0.5], [float("inf"), 0.5], [0.5, float("nan")]])
def test_what_a_broken_model_says_is_refused(bad):
    for width in (2, 40):
        weights = torch.zeros(width)
        weights[:2] = torch.tensor(bad)
        with pytest.raises(CrossdraftError, match="output is not finite"):
            choose(weights, 0, 0)


def test_two_distributions_mostly_draw_the_same_token():
    """One noise, two distributions: they agree at least (1 - TV) / (1 + TV) of the time, and 1 - TV at most."""
    other = torch.tensor([0.1, 0.2, 0.3, 0.1, 0.2, 0.1], dtype=torch.float64)
    far = 0.5 * float((WEIGHTS - other).abs().sum())
    agree = sum(choose(WEIGHTS, seed, 0) == choose(other, seed, 0) for seed in range(6_000)) / 6_000
    assert (1 - far) / (1 + far) - 0.02 < agree < 1 - far + 0.02


def test_coins_do_not_repeat_the_noise():
    """A rule that tosses coins gets a stream of its own, for every seed and position another."""
    streams = {(seed, at): Noise(seed, at).generator() for seed in range(20) for at in range(20)}
    firsts = {float(torch.rand((), dtype=torch.float64, generator=stream)) for stream in streams.values()}
    assert len(firsts) == 400
    assert firsts.isdisjoint(uniform(0, 0, torch.arange(1000)).tolist())
    again = torch.rand(3, generator=Noise(3, 4).generator())
    assert torch.equal(again, torch.rand(3, generator=Noise(3, 4).generator()))
