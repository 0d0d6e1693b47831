"""Whether two heads say the same: asked about one seeded lesson of random features, their logits compared."""

from dataclasses import fields, replace

import torch

from crossdraft.heads.networks.base import Head, HeadConfig, target_to_draft
from crossdraft.heads.networks.train_batch import TrainBatch

TOLERANCE = 1e-5  # of float32, for logits of this size: a wider output layer adds up in another order
OF_TRAINING = ("steps", "anchors")  # how many tokens in a row, and from how many places, are rehearsed
ROWS, LONG, START, VISUAL = 2, 24, 8, 6


def seeded_lesson(head: Head, seed: int = 0) -> TrainBatch:
    """Random tokens and features, of every hidden state that the target has, in the head's dtype."""
    config, generator = head.config, torch.Generator().manual_seed(seed)

    def features(length: int) -> dict[int, torch.Tensor]:
        shape = (ROWS, length, config.hidden_size)
        layers = range(config.num_layers + 1)
        return {k: torch.randn(shape, generator=generator).to(head.embeddings.dtype) for k in layers}

    return TrainBatch(
        torch.randint(config.vocab_size, (ROWS, LONG), generator=generator),
        features(LONG),
        torch.full((ROWS,), START),
        torch.full((ROWS,), LONG),
        features(VISUAL),
        torch.randint(config.vocab_size, (ROWS, VISUAL), generator=generator),
    )


@torch.inference_mode()
def difference(head: Head, other: Head) -> float:
    """The largest |Δ| between their logits, over the ids that `head` drafts; relative where logits are larger than 1.

    Infinite where the other drafts fewer tokens in a row or fewer ids, or says no number.
    """
    batch = seeded_lesson(head)
    places = target_to_draft(other.config.draft_ids, other.config.vocab_size)[torch.tensor(head.config.draft_ids)]
    said, again = head(batch), {prediction.offset: prediction.logits for prediction in other(batch)}
    if bool((places < 0).any()) or any(prediction.offset not in again for prediction in said):
        return float("inf")
    worst = 0.0
    for prediction in said:
        found = (
            again[prediction.offset][..., places] - prediction.logits
        ).abs().max() / prediction.logits.abs().max().clamp(min=1)
        worst = max(worst, float(found.nan_to_num(nan=float("inf"))))
    return worst


def as_long(config: HeadConfig, other: HeadConfig) -> HeadConfig:
    """The configuration with the other's settings of training alone, which foreign files leave out."""
    known = {field.name for field in fields(config)}
    return replace(config, **{name: getattr(other, name) for name in OF_TRAINING if name in known})
