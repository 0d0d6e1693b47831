"""The objective on a batch small enough to be worked by hand."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from crossdraft.errors import CrossdraftError
from crossdraft.heads.networks.train_batch import DraftLogits, TrainBatch
from crossdraft_lab.objective import Objective, score, target_to_draft, teacher

# Two answers: positions 1..5 and 2..4. Tokens are ids of a vocabulary of 6, of which the draft vocabulary has 5, 4, 3.
TOKENS = torch.tensor([[0, 5, 4, 3, 2, 5], [1, 0, 4, 4, 3, 0]])
BATCH = TrainBatch(
    tokens=TOKENS,
    hidden={7: torch.arange(24.0).reshape(2, 6, 2)},
    starts=torch.tensor([1, 2]),
    lengths=torch.tensor([6, 5]),
)
DRAFTED = torch.tensor([5, 4, 3])
LABELS = torch.tensor([[0, 1, 2, -1, 0, -1], [-1, 1, 1, 2, -1, -1]])
LOG_PROBS = torch.tensor([0.5, 0.25, 0.25]).log()  # every head here predicts token 0, at ½
EVEN = torch.zeros(2, 6, 3)


def prediction(offset: int, **right: tuple[tuple[int, int], ...]) -> DraftLogits:
    """Word 0 everywhere, except where it is to be right."""
    logits = LOG_PROBS.repeat(2, 6, 1).clone()
    for row, position in right.get("at", ()):
        token = int(LABELS[row, position + offset])
        logits[row, position] = torch.full((3,), 0.25).log()
        logits[row, position, token] = math.log(0.5)
    return DraftLogits(offset, logits, torch.zeros(2, 6, 2))


def test_labels_are_the_next_token_in_the_draft_vocabulary():
    head = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, -1.0]])
    logits, labels = teacher(BATCH, head, 7, target_to_draft(DRAFTED, 6))
    assert torch.equal(labels, LABELS)
    assert logits[0, 3].tolist() == [6.0, 7.0, -1.0]
    assert torch.equal(teacher(BATCH, head, 7)[1][0], torch.tensor([5, 4, 3, 2, 5, -1]))


def test_one_prediction_by_hand():
    """Compared at offset 1: positions 0..3 of the first row, 1..2 of the second; at (0, 2) the target says token -1."""
    loss, figures = score(Objective({"cross_entropy": 2.0}), [prediction(1)], BATCH, EVEN, LABELS)
    # labels at t + 1: 1, 2, (-1), 0 and 1, 2: four of ¼, one of ½, over six positions
    expected = (4 * math.log(4) + math.log(2)) / 6
    assert loss.item() == pytest.approx(2 * expected)
    assert figures == pytest.approx({"places": 6, "cross_entropy": expected, "right_1": 1 / 6, "tau": 1 + 1 / 6})


def test_predictions_are_weighted_by_step_weight_and_added():
    parts = [
        score(Objective({"cross_entropy": 1.0}), [prediction(k)], BATCH, EVEN, LABELS)[1]["cross_entropy"]
        for k in (1, 2)
    ]
    positions = [6, 4]  # offset 2: three of the first row, one of the second; the loss of both is over the first's six
    loss, figures = score(
        Objective({"cross_entropy": 1.0}, step_weight=0.8), [prediction(2), prediction(1)], BATCH, EVEN, LABELS
    )
    assert loss.item() == pytest.approx(parts[0] + 0.8 * parts[1] * positions[1] / positions[0])
    assert figures["cross_entropy"] == pytest.approx(loss.item())


def test_chains_end_at_the_first_wrong_prediction():
    """Right at offset 1: (0,0), (0,1), (1,1), and (0,3), where it predicts 0 anyway; at offset 2: (0,0), (0,2)."""
    predictions = [prediction(1, at=((0, 0), (0, 1), (1, 1))), prediction(2, at=((0, 0),))]
    figures = score(Objective({"kl": 1.0}), predictions, BATCH, EVEN, LABELS)[1]
    assert figures["right_1"] == pytest.approx(4 / 6)
    assert figures["right_2"] == pytest.approx(2 / 4)
    # in a row: (0,0) two, (0,1), (0,3) and (1,1) one each, (0,2) none, its first prediction being wrong
    assert figures["tau"] == pytest.approx(1 + 5 / 6)


def test_logits_and_features_are_compared_at_the_offset():
    """Only the target's position t + offset may matter: everything else is NaN."""
    spots = torch.zeros(2, 6, dtype=torch.bool)
    for row, position in ((0, 2), (0, 4), (1, 3)):  # compared at offset 2 and known: (0,0), (0,2), (1,1)
        spots[row, position] = True
    teacher_logits = torch.where(spots[..., None], LOG_PROBS, torch.tensor(float("nan")))
    features = torch.where(spots[..., None], torch.tensor(3.0), torch.tensor(float("nan")))
    objective = Objective({"kl": 1.0, "mse": 1.0})
    loss, figures = score(objective, [prediction(2)], BATCH, teacher_logits, LABELS, features)
    assert figures["kl"] == pytest.approx(0, abs=1e-6)
    assert figures["mse"] == pytest.approx(9 * 3 / 4)
    assert loss.item() == pytest.approx(9 * 3 / 4)


def test_micro_batches_weighted_by_positions_add_up_to_the_batch():
    def of(rows: slice) -> tuple[Tensor, dict[str, float]]:
        batch = replace(BATCH, tokens=TOKENS[rows], starts=BATCH.starts[rows], lengths=BATCH.lengths[rows])
        predictions = [DraftLogits(g.offset, g.logits[rows]) for g in (prediction(1), prediction(2), prediction(3))]
        return score(Objective({"lk": 1.0}, 0.8), predictions, batch, EVEN[rows], LABELS[rows])

    (first, a), (second, b), (both, c) = of(slice(0, 1)), of(slice(1, 2)), of(slice(0, 2))
    assert a["places"] + b["places"] == c["places"]
    assert both.item() == pytest.approx((first * a["places"] + second * b["places"]).item() / c["places"])


def test_an_answer_too_short_has_loss_0_and_keeps_the_graph():
    """Ranks wait for every gradient of one another, so a loss of nothing must still have a slope, of zero."""
    batch = replace(BATCH, lengths=torch.tensor([2, 3]))
    logits = torch.zeros(2, 6, 3, requires_grad=True)
    loss, figures = score(Objective({"kl": 1.0}), [DraftLogits(1, logits)], batch, EVEN, LABELS)
    loss.backward()
    assert (loss.item(), figures) == (0.0, {"places": 0.0, "kl": 0.0})
    assert logits.grad is not None
    assert not logits.grad.any()


def test_a_wrong_objective_is_one_sentence():
    with pytest.raises(CrossdraftError, match="unknown loss 'soft_ce'; did you mean 'soft_cross_entropy'"):
        Objective({"soft_ce": 1.0})
    with pytest.raises(CrossdraftError, match="weighs no loss"):
        Objective({})
    with pytest.raises(CrossdraftError, match="'mse', a loss of features, where the head predicts none"):
        score(Objective({"mse": 1.0}), [DraftLogits(1, EVEN)], BATCH, EVEN, LABELS)
    with pytest.raises(CrossdraftError, match="predicted nothing"):
        score(Objective({"kl": 1.0}), [], BATCH, EVEN, LABELS)
