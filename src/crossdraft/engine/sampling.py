"""From logits to the distribution that a token is drawn from, at every node of a draft tree, and the drawing itself.

Warping happens here and once, before any acceptance rule sees the logits; order and formulas are those of
`transformers`' logits processors: bias, repetition penalty, temperature, top-k, top-p, min-p. Reported
log-probabilities are another thing: they are the target's raw ones, before any warping.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from crossdraft.engine.tree import DraftTree
from crossdraft.errors import CrossdraftError

COLDEST = 1e-3  # below this, logits over temperature overflow float32


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn.

    Args:
        temperature: 0 = greedy; the filters below then have no effect, penalty and bias do.
        top_k: draw from the k most likely tokens; 0 = from all.
        top_p: draw from the fewest most likely tokens that hold this mass together; 1 = from all.
        min_p: draw from tokens at least this likely, relative to the most likely one; 0 = from all.
        repetition_penalty: above 1, tokens of the prompt and of the answer so far become less likely; 1 = off.
        logit_bias: (token id, number added to its logit) pairs; -inf forbids a token.
        seed: without a drafter, two runs of the same request draw the same tokens. With one, how much is drafted
            follows measured times, and other tokens of the same distribution may be drawn; with one that remembers
            earlier answers the seed is not used at all (see `Needs.remembers`).

    Raises:
        CrossdraftError: a number outside its range, or a token that is biased twice.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        warm = COLDEST <= self.temperature < math.inf
        _check(
            warm or self.temperature == 0,
            "temperature",
            self.temperature,
            f"0 (greedy) or at least {COLDEST}",
        )
        _check(self.top_k >= 0, "top_k", self.top_k, "0 (off) or more")
        _check(0 < self.top_p <= 1, "top_p", self.top_p, "above 0 and at most 1 (off)")
        _check(0 <= self.min_p <= 1, "min_p", self.min_p, "between 0 (off) and 1")
        _check(
            0 < self.repetition_penalty < math.inf, "repetition_penalty", self.repetition_penalty, "above 0"
        )
        _check(0 <= self.seed < 2**63, "seed", self.seed, "between 0 and 2^63 - 1")
        ids = [token for token, _ in self.logit_bias]
        _check(len(set(ids)) == len(ids), "logit_bias", self.logit_bias, "one number per token id")
        for token, bias in self.logit_bias:
            _check(
                token >= 0 and bias < math.inf,
                "logit_bias",
                (token, bias),
                "a token id and a number below infinity",
            )

    @property
    def greedy(self) -> bool:
        """True if the most likely token is always taken."""
        return self.temperature == 0

    @property
    def plain(self) -> bool:
        """True if the model's own likeliest token is always taken: what is said at one place changes no other's law."""
        return self.greedy and self.repetition_penalty == 1 and not self.logit_bias


def _check(holds: bool, name: str, value: object, wanted: str) -> None:
    if not holds:
        raise CrossdraftError(f"{name} is {value}; it must be {wanted}.")


def warp(logits: Tensor, sampling: Sampling, seen: Sequence[int] = ()) -> Tensor:
    """The distribution behind one context.

    Args:
        logits: [..., V], raw.
        sampling: what to apply.
        seen: token ids of the context, for the repetition penalty; all rows share them.

    Returns:
        [..., V] probabilities; when greedy, logits whose argmax is the token. Half precision becomes float32.
    """
    penalised = _seen_mask(seen, logits) if sampling.repetition_penalty != 1 else None
    return _warp(logits, sampling, penalised)


def warp_tree(logits: Tensor, tree: DraftTree, context: Sequence[int], sampling: Sampling) -> Tensor:
    """The distribution behind the root and behind every node; each node has seen its own path and no other.

    Args:
        logits: [1 + n, V], the root's first.
        tree: the n nodes.
        context: token ids of the prompt and the answer so far, the root's among them.
        sampling: what to apply.

    Returns:
        [1 + n, V], as `warp` does.
    """
    if sampling.repetition_penalty == 1:
        return _warp(logits, sampling, None)
    penalised = _seen_mask(context, logits).repeat(1 + len(tree), 1)
    nodes, ancestors = tree.visible.nonzero(as_tuple=True)
    penalised[nodes + 1, torch.tensor(tree.tokens, dtype=torch.long)[ancestors]] = True
    return _warp(logits, sampling, penalised)


def _seen_mask(seen: Sequence[int], logits: Tensor) -> Tensor:
    """[V] bool. Visual placeholders may lie beyond the head; they have no logit to penalise."""
    vocabulary = logits.shape[-1]
    mask = torch.zeros(vocabulary, dtype=torch.bool, device=logits.device)
    mask[[token for token in set(seen) if token < vocabulary]] = True
    return mask


def _warp(logits: Tensor, sampling: Sampling, penalised: Tensor | None) -> Tensor:
    scores = logits if logits.dtype == torch.float64 else logits.float()
    if sampling.logit_bias:
        scores = scores + _bias(scores, sampling)
    if penalised is not None:
        penalty = sampling.repetition_penalty
        scores = torch.where(penalised, torch.where(scores < 0, scores * penalty, scores / penalty), scores)
    if sampling.greedy:
        return scores
    scores = scores / sampling.temperature
    if sampling.top_k:
        scores = _top_k(scores, sampling.top_k)
    if sampling.top_p < 1:
        scores = _top_p(scores, sampling.top_p)
    probs = scores.softmax(-1)
    if sampling.min_p:
        likely = probs >= sampling.min_p * probs.amax(-1, keepdim=True)
        probs = scores.masked_fill(~likely, -math.inf).softmax(-1)
    return probs


def _bias(scores: Tensor, sampling: Sampling) -> Tensor:
    """[V] numbers to add."""
    vocabulary = scores.shape[-1]
    bias = scores.new_zeros(vocabulary)
    for token, value in sampling.logit_bias:
        if token >= vocabulary:
            raise CrossdraftError(
                f"logit_bias names token {token}, but the vocabulary has {vocabulary} tokens."
            )
        bias[token] = value
    return bias


def _top_k(scores: Tensor, k: int) -> Tensor:
    """Equals of the k-th stay, as in `transformers`."""
    least = scores.topk(min(k, scores.shape[-1])).values[..., -1:]
    return scores.masked_fill(scores < least, -math.inf)


def _top_p(scores: Tensor, mass: float) -> Tensor:
    """From the least likely upwards, drop tokens as long as no more than `1 - mass` is lost; the likeliest stays."""
    ascending, order = scores.sort(-1)
    dropped = ascending.softmax(-1).cumsum(-1) <= 1 - mass
    dropped[..., -1] = False
    return scores.masked_fill(dropped.scatter(-1, order, dropped), -math.inf)


def sample_one(weights: Tensor, generator: torch.Generator) -> int:
    """Draw one token with probability proportional to `weights` [V]; never one of weight 0.

    Raises:
        CrossdraftError: the weights are not finite or all 0, which a broken model produces.
    """
    mass = weights.double().cumsum(-1)
    total = mass[-1].item()
    if not 0 < total < math.inf:
        raise CrossdraftError(
            "The model's output is not finite; load it in another dtype, or check its weights."
        )
    point = torch.rand((), dtype=torch.float64, generator=generator, device=generator.device).item() * total
    # The last step of the sum may round `point` up to the total, beyond the last token.
    return int(torch.searchsorted(mass, min(point, math.nextafter(total, 0)), right=True))


def sample_children(weights: Tensor, k: int, generator: torch.Generator) -> Tensor:
    """Draw up to k different tokens one after another, without replacement, by an exponential race.

    Token i arrives at time E_i / w_i with E_i ~ Exp(1). The first arrival is i with probability proportional to w_i,
    and the same holds among those still running. (Efraimidis and Spirakis 2006; the same as Gumbel top-k.)

    Args:
        weights: [..., V], not negative.
        k: how many to draw; fewer are drawn where fewer have a positive weight.
        generator: the source of chance.

    Returns:
        [..., k] token ids in the order of arrival: the order in which siblings must stand in the tree.
    """
    support = weights > 0
    k = min(k, int(support.sum(-1).min()))
    # In float64: a float32 Exp(1) is 0 once in 10^7 draws.
    clock = torch.empty(weights.shape, dtype=torch.float64, device=generator.device).exponential_(
        generator=generator
    )
    speed = (weights.double() / clock.to(weights.device)).masked_fill(~support, -1)
    return speed.topk(k, -1).indices
