"""Gumbel noise that is a pure function of (seed, position, token id), and tokens drawn with it.

A token drawn from p is the arg max of log p + Gumbel noise (Gumbel 1954), which is the same as the winner of an
exponential race: token i arrives at time E_i / p_i, where E_i ~ Exp(1) and -log E_i is the noise. Here E_i follows from
the request's seed, the token's position in the answer (0 = its first token) and its id, and from nothing else: not from
the batch, the device, the width of the vocabulary or what was drawn before. So target and drafter, which draw at one
position with one noise, mostly draw the same token: with probability at least (1 - TV) / (1 + TV), TV the total
variation distance of their distributions (Daliri, Musco and Suresh, arXiv 2408.07978).

The numbers are those of SplitMix64 (Steele, Lea and Flood 2014): of the stream whose state is a hash of seed and
position, the one at the token's id.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from crossdraft.errors import CrossdraftError

MASK = 2**64 - 1
STEP = 0x9E3779B97F4A7C15  # 2^64 over the golden ratio
ROUNDS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
BITS = 52  # a number is (k + 1/2) / 2^52, which a float64 holds exactly: never 0, never 1
SPARSE = 4  # only possible tokens' noise is computed where at most a quarter of the tokens is possible
COINS = -1  # stands for a position in the seeds of rules' other random numbers


def uniform(seed: int, position: int, tokens: Tensor) -> Tensor:
    """Numbers between 0 and 1, both excluded, the same on every device.

    Args:
        seed: from 0 to 2^63 - 1.
        position: of the token in the answer, from 0.
        tokens: [...] int64 ids.

    Returns:
        [...] float64.
    """
    # int64 wraps as uint64 does; a shift keeps the sign, which is masked away.
    z = tokens * _signed(STEP)
    z += _signed(_hash(_hash(seed) + position))
    for shift, factor in ROUNDS:
        z ^= (z >> shift).bitwise_and_((1 << (64 - shift)) - 1)
        z *= _signed(factor)
    z ^= (z >> 31).bitwise_and_((1 << 33) - 1)
    z >>= 64 - BITS
    z &= (1 << BITS) - 1
    return z.double().add_(0.5).mul_(2.0**-BITS)


def choose(weights: Tensor, seed: int, position: int) -> int:
    """The token of a position: drawn with probability proportional to `weights` [V], never one of weight 0.

    Raises:
        CrossdraftError: the weights are not finite or all 0, which a broken model produces.
    """
    possible = weights != 0  # where it is NaN, too
    if few := SPARSE * int(possible.sum()) <= len(weights):
        tokens = possible.nonzero()[:, 0]
        weights = weights[tokens]
    else:
        tokens = torch.arange(len(weights), device=weights.device)
    speeds = weights.double() / uniform(seed, position, tokens).log_().neg_()
    best = int(speeds.argmax()) if len(speeds) else 0
    if not len(speeds) or not 0 < speeds[best].item() < math.inf:
        raise CrossdraftError("The model's output is not finite; load it in another dtype, or check its weights.")
    return int(tokens[best]) if few else best


def seed_of(seed: int, answer: int) -> int:
    """The seed of answer `answer` of several that are asked for with one seed; the first one's is that seed."""
    return _hash(_hash(seed) + answer) >> 1 if answer else seed


def shares(weights: Tensor, seed: int, position: int) -> Tensor:
    """Shares in the race of a position: softmax(log w + Gumbel noise), for rows of distributions.

    The k largest are k tokens drawn without replacement (Gumbel top-k, Kool et al. 2019), the largest is `choose`'s.
    Its lead says how likely another distribution, close to this one, is to draw the same token.

    Args:
        weights: [..., V]; a row of zeros stays one.
        seed, position: see `uniform`.

    Returns:
        [..., V] float64.
    """
    tokens = torch.arange(weights.shape[-1], device=weights.device)
    speeds = weights.double() / uniform(seed, position, tokens).log_().neg_()
    return speeds / speeds.sum(-1, keepdim=True).clamp_min(torch.finfo(speeds.dtype).tiny)


@dataclass(frozen=True, slots=True)
class Noise:
    """The noise of a round, the only source of randomness of an acceptance rule.

    Args:
        seed: the request's seed.
        position: position in the answer of the first token after the root.
    """

    seed: int
    position: int = 0

    def choose(self, weights: Tensor, depth: int) -> int:
        """The target's own token after a node of this depth (0 = the root), by its distribution [V]; see `choose`."""
        return choose(weights, self.seed, self.position + depth)

    def generator(self) -> torch.Generator:
        """A stream of random numbers, for rules that draw them instead of using the noise."""
        return torch.Generator().manual_seed(_hash(_hash(_hash(self.seed) + COINS) + self.position) >> 1)


def _hash(number: int) -> int:
    """SplitMix64's mixing of an integer: 64 bits, each of which depends on all bits of the integer."""
    z = (number + STEP) & MASK
    for shift, factor in ROUNDS:
        z = (z ^ (z >> shift)) * factor & MASK
    return z ^ (z >> 31)


def _signed(number: int) -> int:
    """The int64 of the same bits."""
    return number - 2**64 if number >= 2**63 else number
