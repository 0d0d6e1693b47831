"""DREAM's own loss, the middle feature, by hand."""

from dataclasses import replace

import pytest
import torch

from crossdraft.heads.networks.train_batch import TrainBatch
from tests.heads.rehearsal import LAYERS, some_head, some_lesson

MIDDLE, LAST = 3, LAYERS


def of_lengths(*lengths: int) -> TrainBatch:
    """Answers that begin at place 4, of so many tokens with what was asked."""
    batch = some_lesson(some_head("dream"), len(lengths))
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
    """Three offsets, each a sum over its places, all divided by the number of the first one's."""
    batch, head = of_lengths(12, 9), some_head("dream", steps=3)
    predictions = head(batch)
    total, first = 0.0, 0
    for prediction in predictions:
        for row, length in enumerate((12, 9)):
            for place in range(3, length - 1 - prediction.offset):
                first += prediction.offset == 1
                told = batch.hidden[MIDDLE][row, place + prediction.offset]
                away = (prediction.middle[row, place] - told).abs()
                total += float(torch.where(away < 1, away.square() / 2, away - 0.5).mean())
    assert first == 7 + 4
    assert float(head.extra_losses(batch, predictions)["middle"]) == pytest.approx(total / first / 3)


def test_answers_too_short_for_a_guess_cost_nothing_and_keep_the_graph():
    """Of the first, two guesses are judged; of the second, none: the mean of nothing is no number."""
    assert 0 < middle(of_lengths(7)) < 10
    batch, head = of_lengths(5), some_head("dream", steps=3)
    loss = head.extra_losses(batch, head(batch))["middle"]
    loss.backward()
    assert loss.item() == 0
    assert all(weight.grad is not None and not weight.grad.any() for weight in head.layer.parameters())


def test_shares_weighted_by_their_places_make_up_the_batch():
    batch = of_lengths(12, 7)
    places = [int(cut(batch, row).loss_mask(1).sum()) for row in (0, 1)]
    shares = [middle(cut(batch, row)) for row in (0, 1)]
    mean = sum(share * count for share, count in zip(shares, places, strict=True)) / sum(places)
    assert middle(batch) == pytest.approx(mean)
