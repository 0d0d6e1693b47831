"""What a head is trained for: weighted losses of every guess it makes, and how often its chains would be accepted."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from crossdraft.checks import suggestion
from crossdraft.errors import CrossdraftError
from crossdraft.heads.networks.losses import LOSSES
from crossdraft.heads.networks.train_batch import DraftLogits, TrainBatch

OUTSIDE = -1  # the label of a word that the draft vocabulary lacks
LOSS_POSITIONS = "places"
"""The figure that says over how much a loss is a mean. Shares of a batch are weighted by it; without it, alike."""


@dataclass(frozen=True)
class Objective:
    """Losses by name, each with its weight; a guess weighs `step_weight` times the one before it.

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
    """Hold a head's guesses against what the target said; return the loss and figures.

    The logits of offset k at position t are compared with the target at t + k, where `batch.loss_mask(k)` is true; a
    position whose target token lies outside the draft vocabulary, or where the head predicted nothing
    (`DraftLogits.valid`), is left out. With N the positions that a draft may leave from, the loss is, as in EAGLE-3's
    code (traineagle3),

        Σ_i step_weight^i · 1/N · Σ_places Σ_names weight · loss        i = 0 for the first guess, 1 for the second, …

    a plain sum over guesses, all divided by the same N: so shares of a batch, weighted by their N, add up to the batch.

    Args:
        teacher_logits: [B, T, D] the target's logits over the draft vocabulary.
        labels: [B, T] index into the draft vocabulary of the word that the target says there; -1 if it lacks the word.
        teacher_features: [B, T, H], for losses of features.

    Returns:
        The loss, and figures: N as `places`; each loss by name, unweighted but for `step_weight`; `right_k`, the share
        of the places judged at offset k at which the head's argmax is the target's word (a word outside the vocabulary
        is never right); `tau`, tokens a round of greedy chains begun at each place: 1 + the guesses right in a row.

    Raises:
        CrossdraftError: a loss of features is weighted and the head guesses none, or it guesses nothing at all.
    """
    if not predictions:
        raise CrossdraftError("The head guessed nothing; it must look at least one token ahead.")
    ordered = sorted(predictions, key=lambda prediction: prediction.offset)
    places = int(_judged(batch, ordered[0]).sum())
    total = ordered[0].logits.new_zeros((), dtype=torch.float32)
    parts: dict[str, float] = {}
    for step, prediction in enumerate(ordered):
        for name, values in _compared(objective, prediction, batch, teacher_logits, labels, teacher_features):
            part = objective.step_weight**step * values.sum() / max(places, 1)
            total = total + objective.weights[name] * part
            parts[name] = parts.get(name, 0.0) + float(part.detach())
    return total, {LOSS_POSITIONS: float(places)} | parts | acceptance(ordered, batch, labels)


def acceptance(predictions: Sequence[DraftLogits], batch: TrainBatch, labels: Tensor) -> dict[str, float]:
    """`right_k` of every guess and `tau` of their chain, given in order of their offsets; see `score`."""
    return {name: total / count for name, (total, count) in acceptance_counts(predictions, batch, labels).items()}


@torch.no_grad()
def acceptance_counts(
    predictions: Sequence[DraftLogits], batch: TrainBatch, labels: Tensor
) -> dict[str, tuple[int, int]]:
    """`acceptance`, each figure as (what was counted, over how many places): so those of several lessons add up.

    Places are fewer the further on a guess looks; a figure without any is left out.
    """
    tallies: dict[str, tuple[int, int]] = {}
    chains = _judged(batch, predictions[0])
    rounds, row, length = int(chains.sum()), chains, 0
    for prediction in predictions:
        loss_mask = _judged(batch, prediction)
        said = labels.roll(-prediction.offset, 1)  # `loss_mask` leaves out what comes round from the row's front
        right = loss_mask & (prediction.logits.argmax(-1) == said)
        tallies[f"right_{prediction.offset}"] = int(right.sum()), int(loss_mask.sum())
        row = row & right
        length += int(row.sum())
    tallies["tau"] = rounds + length, rounds
    return {name: tally for name, tally in tallies.items() if tally[1]}


@torch.no_grad()
def teacher(batch: TrainBatch, head: Tensor, layer: int, lookup: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """What the target says at every place of a lesson: logits [B, T, D] and labels [B, T], as `score` wants them.

    The answers are the target's own greedy ones, also while serving: its argmax at place t is token t + 1, and no
    product with the whole vocabulary is needed to know it. Labels before the answer are the prompt's tokens, which
    nobody judges.

    Args:
        head: [D, H] the target's output rows of the draft vocabulary.
        layer: whose features the head reads.
        lookup: [V] of `heads.networks.base.target_to_draft`; `None` where the draft vocabulary is the whole one.
    """
    logits = batch.hidden[layer] @ head.to(batch.hidden[layer].dtype).T
    said = batch.tokens[:, 1:] if lookup is None else lookup.to(batch.tokens.device)[batch.tokens[:, 1:]]
    labels = torch.full_like(batch.tokens, OUTSIDE)
    labels[:, :-1] = said
    places = torch.arange(labels.shape[1], device=labels.device)
    return logits, labels.masked_fill(places >= batch.lengths[:, None] - 1, OUTSIDE)


def _judged(batch: TrainBatch, prediction: DraftLogits) -> Tensor:
    """[B, T] true where there is a guess, and something to hold it against."""
    loss_mask = batch.loss_mask(prediction.offset)
    return loss_mask if prediction.valid is None else loss_mask & prediction.valid


def _compared(
    objective: Objective,
    prediction: DraftLogits,
    batch: TrainBatch,
    teacher_logits: Tensor,
    labels: Tensor,
    teacher_features: Tensor | None,
) -> Iterator[tuple[str, Tensor]]:
    """(name, losses [n]) of one guess, at the places where it is judged."""
    offset, width = prediction.offset, labels.shape[1]
    here, there = slice(0, max(width - offset, 0)), slice(offset, width)
    spots = _judged(batch, prediction)[:, here] & (labels[:, there] != OUTSIDE)
    student = prediction.logits[:, here][spots]
    for name in objective.weights:
        loss = LOSSES[name]
        if loss.compares == "labels":
            yield name, loss.measure(student, labels[:, there][spots])
        elif loss.compares == "logits":
            yield name, loss.measure(student, teacher_logits[:, there][spots])
        elif prediction.features is None or teacher_features is None:
            raise CrossdraftError(
                f"The objective weighs '{name}', a loss of features, where the head guesses none; leave it out."
            )
        else:
            yield name, loss.measure(prediction.features[:, here][spots], teacher_features[:, there][spots])
