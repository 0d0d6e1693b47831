"""Training losses of heads, a weighted objective over them, the acceptance of teacher-forced chains, and padding.

Losses are pure functions with a value for each of n positions; means are the caller's. p is the target's distribution
and q the head's, both over the draft vocabulary: where that is a part of the whole, p is the target's conditional
distribution given a token of the draft vocabulary, as EAGLE-3 trains.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from crossdraft.checks import suggestion
from crossdraft.errors import CrossdraftError
from crossdraft.heads.networks.train_batch import DraftLogits, TrainBatch

WARMTH = 2.0  # T of `distillation`
RANKED = 10  # tokens of the target in the top-k losses: HASS's, ViSpec's and HiViS's number


def cross_entropy(student: Tensor, labels: Tensor) -> Tensor:
    """−log q(label): logits [n, D] and labels [n], all of them in the draft vocabulary, to [n]."""
    return F.cross_entropy(_upcast(student), labels, reduction="none")


def soft_cross_entropy(student: Tensor, teacher: Tensor) -> Tensor:
    """−Σ p log q: logits [n, D] twice, to [n]. Its gradient is that of `kl`, its least value p's entropy."""
    return -(_log_probs(teacher).exp() * _log_probs(student)).sum(-1)


def kl(student: Tensor, teacher: Tensor) -> Tensor:
    """Σ p log(p / q), forward: q must cover all of p's support. Logits [n, D] twice, to [n]."""
    log_p = _log_probs(teacher)
    return (log_p.exp() * (log_p - _log_probs(student))).sum(-1)


def distillation(student: Tensor, teacher: Tensor) -> Tensor:
    """T² · KL of both softened by T = 2: tokens that the target would not say count, too. Logits [n, D] twice, to [n].

    T² keeps the gradient as large as that of `kl` (Hinton et al. 2015).
    """
    return WARMTH**2 * kl(student / WARMTH, teacher / WARMTH)


def reverse_kl(student: Tensor, teacher: Tensor) -> Tensor:
    """Σ q log(q / p): q may leave out tokens of p, and pays for those that p lacks. Logits [n, D] twice, to [n]."""
    return kl(teacher, student)


def total_variation(student: Tensor, teacher: Tensor) -> Tensor:
    """½ Σ |p − q|, the probability that speculative sampling rejects. Logits [n, D] twice, to [n]."""
    return (_log_probs(teacher).exp() - _log_probs(student).exp()).abs().sum(-1) / 2


def lk(student: Tensor, teacher: Tensor) -> Tensor:
    """−log α, where α = Σ min(p, q) is the probability that speculative sampling accepts. Logits [n, D] twice, to [n].

    0 where p = q. Computed from logarithms, because α may underflow where its logarithm does not.
    """
    log_accepted = torch.minimum(_log_probs(teacher), _log_probs(student)).logsumexp(-1)
    return -log_accepted.clamp(max=0)  # rounding apart, α is at most 1


def lk_lambda(student: Tensor, teacher: Tensor) -> Tensor:
    """λ·KL + (1 − λ)·(1 − α) with λ = exp(−α), held constant. Logits [n, D] twice, to [n].

    KL dominates where little is accepted and the slope of 1 − α is flat. λ is computed for each position here;
    SpecForge takes one for the batch, which would make a loss depend on how its batch is cut.
    """
    rejected = total_variation(student, teacher)
    share = (rejected.detach() - 1).exp()
    return share * kl(student, teacher) + (1 - share) * rejected


def top_k_rank(student: Tensor, teacher: Tensor) -> Tensor:
    """−log of the Plackett-Luce probability that q draws the target's top-10 tokens in the target's order.

    The draws are among those ten, without replacement: −Σ_i [s_i − log Σ_{j ≥ i} exp s_j], where s are the
    student's logits in the teacher's order. Logits [n, D] twice, to [n].
    """
    best = teacher.topk(min(RANKED, teacher.shape[-1]), dim=-1).indices
    scores = _upcast(student).gather(-1, best)
    left = scores.flip(-1).logcumsumexp(-1).flip(-1)
    return (left - scores).sum(-1)


def top_k_cross_entropy(student: Tensor, teacher: Tensor) -> Tensor:
    """−Σ p log q over the target's top-10 tokens alone: logits [n, D] twice, to [n]."""
    best = teacher.topk(min(RANKED, teacher.shape[-1]), dim=-1).indices
    return -(_log_probs(teacher).gather(-1, best).exp() * _log_probs(student).gather(-1, best)).sum(-1)


def smooth_l1(predicted: Tensor, features: Tensor) -> Tensor:
    """Huber loss with β = 1: features [n, H] twice, to their means [n]."""
    return F.smooth_l1_loss(_upcast(predicted), _upcast(features), reduction="none").mean(-1)


def mse(predicted: Tensor, features: Tensor) -> Tensor:
    """Squared difference: features [n, H] twice, to its means [n]."""
    return (_upcast(predicted) - _upcast(features)).square().mean(-1)


def cosine(predicted: Tensor, features: Tensor) -> Tensor:
    """1 − cosine similarity: features [n, H] twice, to [n]."""
    return 1 - F.cosine_similarity(_upcast(predicted), _upcast(features), dim=-1)


def mse_cosine(predicted: Tensor, features: Tensor) -> Tensor:
    """`mse` + `cosine`: features [n, H] twice, to [n]."""
    return mse(predicted, features) + cosine(predicted, features)


def info_nce(predicted: Tensor, features: Tensor) -> Tensor:
    """−log softmax of the cosine with the own feature among those with all n, over τ = 0.07 (van den Oord et al. 2018).

    Features [n, H] twice, to [n]. The other positions of the batch are the negatives.
    """
    mine, theirs = F.normalize(_upcast(predicted), dim=-1), F.normalize(_upcast(features), dim=-1)
    return F.cross_entropy(mine @ theirs.T / 0.07, torch.arange(len(mine), device=mine.device), reduction="none")


@dataclass(frozen=True, slots=True)
class Loss:
    """A record of `LOSSES`.

    Args:
        compares: the head's logits with the target's token (`labels`) or with its logits, or features with features.
        measure: the function.
        source: papers and projects that train with it.
    """

    compares: Literal["labels", "logits", "features"]
    measure: Callable[[Tensor, Tensor], Tensor]
    source: str


LOSSES: Mapping[str, Loss] = {
    "cross_entropy": Loss("labels", cross_entropy, "Medusa (2401.10774), ReDrafter (2403.09919)"),
    "soft_cross_entropy": Loss("logits", soft_cross_entropy, "EAGLE (2401.15077), EAGLE-3 (2503.01840), Hydra++"),
    "kl": Loss("logits", kl, "DREAM (2505.19201); the default of speculators and SpecForge"),
    "distillation": Loss("logits", distillation, "Hinton et al. (1503.02531)"),
    "reverse_kl": Loss("logits", reverse_kl, "DistillSpec (2310.08461), speculators"),
    "total_variation": Loss("logits", total_variation, "DistillSpec (2310.08461); ViSpec's L1 is twice this"),
    "lk": Loss("logits", lk, "LK losses (2602.23881), SpecForge's 'alpha'"),
    "lk_lambda": Loss("logits", lk_lambda, "LK losses (2602.23881), SpecForge's 'lambda'"),
    "top_k_rank": Loss("logits", top_k_rank, "ViSpec (2509.15235), HiViS (2509.23928)"),
    "top_k_cross_entropy": Loss("logits", top_k_cross_entropy, "HASS (2408.15766), GRIFFIN (2502.11018)"),
    "smooth_l1": Loss("features", smooth_l1, "EAGLE (2401.15077), HiViS (2509.23928)"),
    "mse": Loss("features", mse, "Chimera (2402.15758)"),
    "cosine": Loss("features", cosine, "in addition to mse, for the direction alone"),
    "info_nce": Loss("features", info_nce, "CPC (1807.03748), CLIP (2103.00020): contrastive alignment"),
    "mse_cosine": Loss("features", mse_cosine, "alignment of features of two models"),
}  # fmt: skip


OUTSIDE = -1  # the label of a token that the draft vocabulary lacks
LOSS_POSITIONS = "places"  # as metrics logs have it
"""Figure that counts the positions of a loss: micro-batches are weighted by it, or equally without it."""
PREFIX, PREFIXES = "prefix", "prefixes"
"""The mean accepted prefix of a batch's answers, and how many answers these are, by which it is weighted."""


@dataclass(frozen=True)
class Objective:
    """Losses by name, each with its weight; a prediction weighs `step_weight` times the one before it.

    Example: `Objective({"smooth_l1": 1.0, "soft_cross_entropy": 0.1})` is EAGLE's; EAGLE-3's is
    `Objective({"soft_cross_entropy": 1.0}, step_weight=0.8)`.

    Raises:
        CrossdraftError: there is no such loss (the nearest is suggested), or none at all.
    """

    weights: Mapping[str, float]
    step_weight: float = 1.0

    def __post_init__(self) -> None:
        if not self.weights:
            raise CrossdraftError(f"The objective weighs no loss; give one of {', '.join(LOSSES)}.")
        for name in self.weights:
            if name not in LOSSES:
                hint = suggestion(name, LOSSES, f"choose from {', '.join(LOSSES)}.")
                raise CrossdraftError(f"The objective weighs an unknown loss '{name}'; {hint}")


def score(
    objective: Objective,
    predictions: Sequence[DraftLogits],
    batch: TrainBatch,
    teacher_logits: Tensor,
    labels: Tensor,
    teacher_features: Tensor | None = None,
) -> tuple[Tensor, dict[str, float]]:
    """The loss of a head's predictions against the target's output, and figures.

    The logits of offset k at position t are compared with the target at t + k, where `batch.loss_mask(k)` is true; a
    position whose target token lies outside the draft vocabulary, or where the head predicted nothing
    (`DraftLogits.valid`), is left out. With N the number of positions compared at the first offset, the loss is,
    as in EAGLE-3's code (traineagle3),

        Σ_i step_weight^i · 1/N · Σ_positions Σ_names weight · loss     i = 0 for the first, 1 for the second, …

    a plain sum over predictions, all divided by the same N: so micro-batches, weighted by their N, add up to the batch.

    Args:
        teacher_logits: [B, T, D] the target's logits over the draft vocabulary.
        labels: [B, T] index into the draft vocabulary of the target's token there; -1 where that lacks it.
        teacher_features: [B, T, H], for losses of features.

    Returns:
        The loss, and figures: N as `places`; each loss by name, unweighted but for `step_weight`; `right_k`, top-1
        accuracy over the positions compared at offset k (a token outside the draft vocabulary is never right); `tau`,
        tokens per round of greedy chains that begin at each position: 1 + the predictions right in a row.

    Raises:
        CrossdraftError: a loss of features is weighted and the head predicts none, or it predicts nothing at all.
    """
    if not predictions:
        raise CrossdraftError("The head predicted nothing; it must predict one token or more.")
    ordered = sorted(predictions, key=lambda prediction: prediction.offset)
    count = int(_compared_at(batch, ordered[0]).sum())
    total = ordered[0].logits.new_zeros((), dtype=torch.float32)
    parts: dict[str, float] = {}
    for step, prediction in enumerate(ordered):
        for name, values in _losses(objective, prediction, batch, teacher_logits, labels, teacher_features):
            part = objective.step_weight**step * values.sum() / max(count, 1)
            total = total + objective.weights[name] * part
            parts[name] = parts.get(name, 0.0) + float(part.detach())
    return total, {LOSS_POSITIONS: float(count)} | parts | acceptance(ordered, batch, labels)


def acceptance(predictions: Sequence[DraftLogits], batch: TrainBatch, labels: Tensor) -> dict[str, float]:
    """`right_k` of every prediction and `tau` of their chain, in order of their offsets; see `score`."""
    return {name: total / count for name, (total, count) in acceptance_counts(predictions, batch, labels).items()}


@torch.no_grad()
def acceptance_counts(
    predictions: Sequence[DraftLogits], batch: TrainBatch, labels: Tensor
) -> dict[str, tuple[int, int]]:
    """Figures of `acceptance`, each as (sum, number of positions), so that the pairs of several batches add up.

    Positions are fewer at larger offsets; a figure without positions is left out.
    """
    tallies: dict[str, tuple[int, int]] = {}
    chains = _compared_at(batch, predictions[0])
    rounds, row, length = int(chains.sum()), chains, 0
    for prediction in predictions:
        loss_mask = _compared_at(batch, prediction)
        wanted = labels.roll(-prediction.offset, 1)  # `loss_mask` leaves out what wraps around
        right = loss_mask & (prediction.logits.argmax(-1) == wanted)
        tallies[f"right_{prediction.offset}"] = int(right.sum()), int(loss_mask.sum())
        row = row & right
        length += int(row.sum())
    tallies["tau"] = rounds + length, rounds
    return {name: tally for name, tally in tallies.items() if tally[1]}


@torch.no_grad()
def teacher(batch: TrainBatch, head: Tensor, layer: int, lookup: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The target's logits [B, T, D] and labels [B, T] at every position of a batch, for `score`.

    The answers are the target's own, also while serving: what it chose at position t, greedily or by chance, is token
    t + 1, and no product with the whole vocabulary is needed to know it. Labels before the answer are the prompt's
    tokens, which no loss reads.

    Args:
        head: [D, H] the target's output rows of the draft vocabulary.
        layer: number of the layer whose features the head reads.
        lookup: [V] of `target_to_draft`; `None` where the draft vocabulary is the whole one.
    """
    logits = batch.hidden[layer] @ head.to(batch.hidden[layer].dtype).T
    following = batch.tokens[:, 1:] if lookup is None else lookup.to(batch.tokens.device)[batch.tokens[:, 1:]]
    labels = torch.full_like(batch.tokens, OUTSIDE)
    labels[:, :-1] = following
    positions = torch.arange(labels.shape[1], device=labels.device)
    return logits, labels.masked_fill(positions >= batch.lengths[:, None] - 1, OUTSIDE)


def pad_batch(tokens: Sequence[Tensor], starts: Sequence[int], hidden: Mapping[int, Sequence[Tensor]]) -> TrainBatch:
    """Pad answers to one batch, given [T] ids of each, where it starts, and layer -> [T - 1, H] features of each."""
    padded = {
        layer: pad_sequence([torch.cat((row, row.new_zeros(1, row.shape[1]))) for row in rows], batch_first=True)
        for layer, rows in hidden.items()
    }
    lengths = torch.tensor([len(ids) for ids in tokens])
    return TrainBatch(pad_sequence(list(tokens), batch_first=True), padded, torch.tensor(starts), lengths)


def _compared_at(batch: TrainBatch, prediction: DraftLogits) -> Tensor:
    """[B, T] true where the head predicts and the target's token is known."""
    loss_mask = batch.loss_mask(prediction.offset)
    return loss_mask if prediction.valid is None else loss_mask & prediction.valid


def _losses(
    objective: Objective,
    prediction: DraftLogits,
    batch: TrainBatch,
    teacher_logits: Tensor,
    labels: Tensor,
    teacher_features: Tensor | None,
) -> Iterator[tuple[str, Tensor]]:
    """(name, losses [n]) of one prediction, at the positions where it is compared."""
    offset, width = prediction.offset, labels.shape[1]
    here, there = slice(0, max(width - offset, 0)), slice(offset, width)
    positions = _compared_at(batch, prediction)[:, here] & (labels[:, there] != OUTSIDE)
    student = prediction.logits[:, here][positions]
    for name in objective.weights:
        loss = LOSSES[name]
        if loss.compares == "labels":
            yield name, loss.measure(student, labels[:, there][positions])
        elif loss.compares == "logits":
            yield name, loss.measure(student, teacher_logits[:, there][positions])
        elif prediction.features is None or teacher_features is None:
            raise CrossdraftError(
                f"The objective weighs '{name}', a loss of features, where the head predicts none; leave it out."
            )
        else:
            yield name, loss.measure(prediction.features[:, here][positions], teacher_features[:, there][positions])


def _upcast(values: Tensor) -> Tensor:
    """Cast to float32 at least: 16 bits lose the tail of a distribution."""
    return values.float() if values.dtype in {torch.bfloat16, torch.float16} else values


def _log_probs(logits: Tensor) -> Tensor:
    return _upcast(logits).log_softmax(-1)


def target_to_draft(draft_ids: Sequence[int] | Tensor, vocab_size: int) -> Tensor:
    """Index [V] of each id among the draft ids [D], -1 for other ids.

    >>> target_to_draft((3, 1), 4)
    tensor([-1,  1, -1,  0])
    """
    ids = torch.as_tensor(draft_ids)
    index = torch.full((vocab_size,), -1, device=ids.device)
    index[ids] = torch.arange(len(ids), device=ids.device)
    return index
