"""What may separate a head from its target, place by place: pure functions, a number for each of n places.

p is the target's law and q the head's, both over the draft vocabulary: where that is a part of the whole, p is the
target's law given that it says a word of the draft vocabulary, as EAGLE-3 trains. Means are the caller's.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

RANKED = 10  # of the target's words that `top_k_rank` ranks: ViSpec's and HiViS's number


def cross_entropy(student: Tensor, labels: Tensor) -> Tensor:
    """−log q(label): logits [n, D] and labels [n], all of them in the draft vocabulary, to [n]."""
    return F.cross_entropy(_wide(student), labels, reduction="none")


def soft_cross_entropy(student: Tensor, teacher: Tensor) -> Tensor:
    """−Σ p log q: logits [n, D] twice, to [n]. Its gradient is that of `kl`, its least value p's entropy."""
    return -(_log_law(teacher).exp() * _log_law(student)).sum(-1)


def kl(student: Tensor, teacher: Tensor) -> Tensor:
    """Σ p log(p / q), forward: q must cover all that p says. Logits [n, D] twice, to [n]."""
    log_p = _log_law(teacher)
    return (log_p.exp() * (log_p - _log_law(student))).sum(-1)


def reverse_kl(student: Tensor, teacher: Tensor) -> Tensor:
    """Σ q log(q / p): q may leave out words of p, but pays for those p does not say. Logits [n, D] twice, to [n]."""
    return kl(teacher, student)


def total_variation(student: Tensor, teacher: Tensor) -> Tensor:
    """½ Σ |p − q|, the probability that speculative sampling rejects. Logits [n, D] twice, to [n]."""
    return (_log_law(teacher).exp() - _log_law(student).exp()).abs().sum(-1) / 2


def lk(student: Tensor, teacher: Tensor) -> Tensor:
    """−log α, where α = Σ min(p, q) is the probability that speculative sampling accepts. Logits [n, D] twice, to [n].

    0 where p = q. Taken of logarithms: α may be smaller than any float, its logarithm is not.
    """
    log_accepted = torch.minimum(_log_law(teacher), _log_law(student)).logsumexp(-1)
    return -log_accepted.clamp(max=0)  # rounding apart, α is at most 1


def lk_lambda(student: Tensor, teacher: Tensor) -> Tensor:
    """λ·KL + (1 − λ)·(1 − α) with λ = exp(−α), held constant. Logits [n, D] twice, to [n].

    KL leads where little is accepted and the slope of 1 − α is flat, and gives way to it. λ is each place's own here;
    SpecForge takes that of the batch, which would make a loss depend on how its batch is cut.
    """
    rejected = total_variation(student, teacher)
    share = (rejected.detach() - 1).exp()
    return share * kl(student, teacher) + (1 - share) * rejected


def top_k_rank(student: Tensor, teacher: Tensor) -> Tensor:
    """−log of the Plackett-Luce probability that q draws the target's ten likeliest words in the target's order.

    Drawn among those ten, each in turn from what is left of them: −Σ_i [s_i − log Σ_{j ≥ i} exp s_j], where s are the
    student's logits in the teacher's order. Logits [n, D] twice, to [n].
    """
    best = teacher.topk(min(RANKED, teacher.shape[-1]), dim=-1).indices
    scores = _wide(student).gather(-1, best)
    left = scores.flip(-1).logcumsumexp(-1).flip(-1)
    return (left - scores).sum(-1)


def smooth_l1(guessed: Tensor, features: Tensor) -> Tensor:
    """Huber's, squares up to a difference of 1 and lines beyond: features [n, H] twice, to their means [n]."""
    return F.smooth_l1_loss(_wide(guessed), _wide(features), reduction="none").mean(-1)


def mse(guessed: Tensor, features: Tensor) -> Tensor:
    """Squared difference: features [n, H] twice, to its means [n]."""
    return (_wide(guessed) - _wide(features)).square().mean(-1)


def cosine(guessed: Tensor, features: Tensor) -> Tensor:
    """1 − the cosine of the angle between them, which their lengths have no part in: features [n, H] twice, to [n]."""
    return 1 - F.cosine_similarity(_wide(guessed), _wide(features), dim=-1)


def mse_cosine(guessed: Tensor, features: Tensor) -> Tensor:
    """`mse` + `cosine`: features [n, H] twice, to [n]."""
    return mse(guessed, features) + cosine(guessed, features)


@dataclass(frozen=True, slots=True)
class Loss:
    """A loss by its name.

    Args:
        compares: what of the head it holds against what of the target: logits against the word it said (`labels`),
            logits against logits, or features against features.
        measure: the function.
        source: who trains with it.
    """

    compares: Literal["labels", "logits", "features"]
    measure: Callable[[Tensor, Tensor], Tensor]
    source: str


LOSSES: Mapping[str, Loss] = {
    "cross_entropy": Loss("labels", cross_entropy, "Medusa (2401.10774), ReDrafter (2403.09919)"),
    "soft_cross_entropy": Loss("logits", soft_cross_entropy, "EAGLE (2401.15077), EAGLE-3 (2503.01840), Hydra++"),
    "kl": Loss("logits", kl, "DREAM (2505.19201); the default of speculators and SpecForge"),
    "reverse_kl": Loss("logits", reverse_kl, "DistillSpec (2310.08461), speculators"),
    "total_variation": Loss("logits", total_variation, "DistillSpec (2310.08461); ViSpec's L1 is twice this"),
    "lk": Loss("logits", lk, "LK losses (2602.23881), SpecForge's 'alpha'"),
    "lk_lambda": Loss("logits", lk_lambda, "LK losses (2602.23881), SpecForge's 'lambda'"),
    "top_k_rank": Loss("logits", top_k_rank, "ViSpec (2509.15235), HiViS (2509.23928)"),
    "smooth_l1": Loss("features", smooth_l1, "EAGLE (2401.15077), HiViS (2509.23928)"),
    "mse": Loss("features", mse, "Chimera (2402.15758)"),
    "cosine": Loss("features", cosine, "beside mse, for the direction alone"),
    "mse_cosine": Loss("features", mse_cosine, "alignment of features of two models"),
}  # fmt: skip


def _wide(values: Tensor) -> Tensor:
    """At least float32: halves lose the tail of a law."""
    return values.float() if values.dtype in {torch.bfloat16, torch.float16} else values


def _log_law(logits: Tensor) -> Tensor:
    return _wide(logits).log_softmax(-1)
