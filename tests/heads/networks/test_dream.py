"""DREAM's own loss, the middle feature, by hand."""

from dataclasses import replace

import pytest
import torch

from crossdraft.heads.networks.train_batch import TrainBatch
from tests.heads.consistency import LAYERS, some_batch, some_head

MIDDLE, LAST = 3, LAYERS


def of_lengths(*lengths: int) -> TrainBatch:
    """Answers that begin at position 4, of so many tokens with the question."""
    batch = some_batch(some_head("dream"), len(lengths))
    return replace(batch, lengths=torch.tensor(lengths))


def cut(batch: TrainBatch, row: int) -> TrainBatch:
    rows = slice(row, row + 1)
    hidden = {layer: value[rows] for layer, value in batch.hidden.items()}
    return TrainBatch(batch.tokens[rows], hidden, batch.starts[rows], batch.lengths[rows])


@torch.no_grad()
def middle(batch: TrainBatch) -> float:
    head = some_head("dream", steps=3)
    return float(head.extra_losses(batch, head(batch))["middle"])


@torch.no_grad()
def test_the_middle_loss_by_hand():
    """Three offsets, each a sum over its positions, all divided by the number of the first one's."""
    batch, head = of_lengths(12, 9), some_head("dream", steps=3)
    predictions = head(batch)
    total, first = 0.0, 0
    for prediction in predictions:
        for row, length in enumerate((12, 9)):
            for position in range(3, length - 1 - prediction.offset):
                first += prediction.offset == 1
                wanted = batch.hidden[MIDDLE][row, position + prediction.offset]
                away = (prediction.middle[row, position] - wanted).abs()
                total += float(torch.where(away < 1, away.square() / 2, away - 0.5).mean())
    assert first == 7 + 4
    assert float(head.extra_losses(batch, predictions)["middle"]) == pytest.approx(total / first / 3)


def test_answers_too_short_have_loss_0_and_keep_the_graph():
    """Of the first, two predictions are compared; of the second, none: the mean over none is NaN."""
    assert 0 < middle(of_lengths(7)) < 10
    batch, head = of_lengths(5), some_head("dream", steps=3)
    loss = head.extra_losses(batch, head(batch))["middle"]
    loss.backward()
    assert loss.item() == 0
    assert all(weight.grad is not None and not weight.grad.any() for weight in head.layer.parameters())


def test_micro_batches_weighted_by_positions_add_up_to_the_batch():
    batch = of_lengths(12, 7)
    positions = [int(cut(batch, row).loss_mask(1).sum()) for row in (0, 1)]
    shares = [middle(cut(batch, row)) for row in (0, 1)]
    mean = sum(share * count for share, count in zip(shares, positions, strict=True)) / sum(positions)
    assert middle(batch) == pytest.approx(mean)
