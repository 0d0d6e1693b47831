"""A second copy of a head's weights, which learns while the first one serves."""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from crossdraft.heads.networks.base import Head, target_to_draft
from crossdraft.heads.networks.objective import Objective, acceptance, score, teacher
from crossdraft.heads.networks.train_batch import DraftLogits, TrainBatch

WIDE = (torch.float32, torch.float64)
OBJECTIVE = Objective({"soft_cross_entropy": 1.0}, step_weight=0.8)  # EAGLE-3's: needs logits alone, of any head
CLIP = 1.0  # norm of the gradients
DECAY = 0.01  # AdamW's


class StudentCopy:
    """A copy of a head with an optimiser; what no head trains, it shares with the one that serves.

    Args:
        head: the one that serves.
        rows: [D, H] the target's output rows of the draft vocabulary.
        rate: AdamW's.
    """

    def __init__(self, head: Head, rows: Tensor, rate: float) -> None:
        borrowed = [*head.buffers(), *(weight for weight in head.parameters() if not weight.requires_grad)]
        self.network = copy.deepcopy(head, {id(tensor): tensor for tensor in borrowed})
        self.rows = rows
        self.lookup = target_to_draft(head.draft_ids, head.config.vocab_size)
        self.weights = trained(self.network)
        # A step is smaller than what bf16 can tell apart: the optimiser moves weights of full width.
        self.masters = [
            weight if weight.dtype in WIDE else nn.Parameter(weight.detach().float()) for weight in self.weights
        ]
        self.optimiser = torch.optim.AdamW(self.masters, lr=rate, weight_decay=DECAY)

    @property
    def bytes(self) -> int:
        """Memory that the copy takes: weights, gradients, and the optimiser's two moments."""
        masters = sum(map(_bytes, self.masters))
        narrow = sum(2 * _bytes(w) for w, m in zip(self.weights, self.masters, strict=True) if w is not m)
        return 4 * masters + narrow

    def step(self, batch: TrainBatch) -> bool:
        """Learn from some answers; false if loss or gradients are not finite, and nothing was learned."""
        logits, labels = self._teacher(batch)
        predictions = self.network(batch)
        loss, _ = score(OBJECTIVE, predictions, batch, logits, labels)
        loss.backward()
        for weight, master in zip(self.weights, self.masters, strict=True):
            if master is not weight and weight.grad is not None:
                master.grad = weight.grad.float()
        norm = nn.utils.clip_grad_norm_(self.masters, CLIP)
        finite = bool(loss.isfinite() & norm.isfinite())
        if finite:
            self.optimiser.step()
            self._narrow()
        for weight in (*self.weights, *self.masters):
            weight.grad = None
        return finite

    def judge(self, head: Head, batch: TrainBatch) -> tuple[float, float]:
        """Tokens a round that chains of `head` would come to on some answers, summed over places, and the places."""
        with torch.no_grad():
            predictions: Sequence[DraftLogits] = sorted(head(batch), key=lambda prediction: prediction.offset)
            labels = self._teacher(batch)[1]
            loss_mask = batch.loss_mask(predictions[0].offset)
            if predictions[0].valid is not None:
                loss_mask &= predictions[0].valid
            places = float(loss_mask.sum())
            return places * acceptance(predictions, batch, labels).get("tau", 0.0), places

    def _teacher(self, batch: TrainBatch) -> tuple[Tensor, Tensor]:
        return teacher(batch, self.rows, self.network.config.num_layers, self.lookup)

    @torch.no_grad()
    def _narrow(self) -> None:
        for weight, master in zip(self.weights, self.masters, strict=True):
            if master is not weight:
                weight.copy_(master)


def trained(head: Head) -> list[nn.Parameter]:
    """The weights that learning changes."""
    return [weight for weight in head.parameters() if weight.requires_grad]


def _bytes(weight: Tensor) -> int:
    return weight.numel() * weight.element_size()
