"""The gate of a speculative prefill: predicts what share of an answer stays the target's own after predicted tokens.

It reads the event encoder's features alone. An adapter's output could be compared with the target's features, but their
computation is what a speculative prefill saves.

    event encoder   [B, T, P, S]   mean and spread over the P patches of each frame -> [B, 2·T·S]
    gate            [B]            the share, 0..1, of an answer's tokens that the target would say, too

This share counts tokens given the target's own answer so far; a budget is about whole answers, which lose more. So
beside its weights a gate keeps, for other clips, its confidence and the loss of their answers.
"""

import math
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F

from crossdraft.errors import CrossdraftError

GATE, GATE_FIGURES = "gate.safetensors", "gate.json"  # files in the folder of its adapter
WIDTH = 32


class PrefillGate(nn.Module):
    """One hidden layer over pooled features, standardised by the statistics of the training features.

    Args:
        frames, size: T and S.
        width: width of the hidden layer.
        clips: n, number of clips whose losses are kept.
    """

    mean: Tensor
    scale: Tensor
    sure: Tensor
    lost: Tensor

    def __init__(self, frames: int, size: int, width: int = WIDTH, clips: int = 0) -> None:
        super().__init__()
        pooled = 2 * frames * size
        self.register_buffer("mean", torch.zeros(pooled))
        self.register_buffer("scale", torch.ones(pooled))
        self.register_buffer("sure", torch.zeros(clips))
        self.register_buffer("lost", torch.zeros(clips))
        self.up = nn.Linear(pooled, width)
        self.out = nn.Linear(width, 1)

    def forward(self, source: Tensor) -> Tensor:
        """[B, T, P, S] -> [B], 0..1."""
        return self.logits(self.pool(source)).sigmoid()

    def logits(self, pooled: Tensor) -> Tensor:
        """[B, 2·T·S] -> [B]."""
        return self.out(F.gelu(self.up((pooled - self.mean) / self.scale)))[:, 0]

    @staticmethod
    def pool(source: Tensor) -> Tensor:
        """[B, T, P, S] -> [B, 2·T·S]."""
        return torch.cat((source.mean(2), source.std(2, correction=0)), -1).flatten(1)

    @torch.no_grad()
    def begin_at(self, pooled: Tensor, share: Tensor) -> None:
        """Set the standardisation from features [n, 2·T·S], and initialise predictions to the mean of shares [n]."""
        self.mean.copy_(pooled.mean(0))
        self.scale.copy_(pooled.std(0, correction=0).clamp_min(1e-6))
        self.out.weight.zero_()
        self.out.bias.copy_(share.mean().logit(1e-6))

    @torch.no_grad()
    def calibrate(self, sure: Tensor, lost: Tensor) -> None:
        """Keep the gate's confidence in clips that it did not learn from [n], and 1 - ROUGE-L of their answers [n]."""
        self.sure, self.lost = sure.clone(), lost.to(sure)

    def threshold(self, loss: float) -> float:
        """Lowest confidence from which on prediction is expected to lose at most `loss`, over all clips.

        By conformal risk control (Angelopoulos et al. 2022): if the answers to clips below a threshold are read whole
        and so lose nothing, (the sum of losses + 1) / (n + 1) is at most `loss`. If no threshold achieves this, because
        the clips are too few or lose too much, the result is just above all confidences.

        Raises:
            CrossdraftError: the gate was not calibrated.
        """
        if not len(self.sure):
            raise CrossdraftError("The gate was not calibrated, so that no threshold follows; name one.")
        sure, order = self.sure.double().sort(descending=True, stable=True)
        risks = (self.lost.double()[order].cumsum(0) + 1) / (len(order) + 1)
        within = [
            float(one)
            for index, (one, risk) in enumerate(zip(sure, risks, strict=True))
            if risk <= loss and (index + 1 == len(sure) or sure[index + 1] < one)  # equal confidence: all or none
        ]
        return within[-1] if within else min(1.0, math.nextafter(float(sure[0]), math.inf))


def save_gate(gate: PrefillGate, folder: Path) -> None:
    """Write the gate beside its adapter."""
    save_file({name: value.contiguous() for name, value in gate.state_dict().items()}, folder / GATE)


def load_gate(folder: Path, frames: int, size: int) -> PrefillGate:
    """Load the gate of the adapter in a folder.

    Raises:
        CrossdraftError: there is no gate, or it is damaged, not finite, of another adapter or of an earlier version.
    """
    path = folder / GATE
    if not path.is_file():
        raise CrossdraftError(f"{path} is missing: the adapter has no gate; train it again, or leave out confidence.")
    try:
        weights = load_file(path)
        if missing := {"sure", "lost"} - weights.keys():
            raise CrossdraftError(
                f"{path} lacks {' and '.join(sorted(missing))}: it is of an earlier version; train it again."
            )
        gate = PrefillGate(frames, size, len(weights["up.bias"]), len(weights["sure"]))
        gate.load_state_dict(weights)
    except (OSError, SafetensorError, KeyError, RuntimeError) as error:
        raise CrossdraftError(f"{path} cannot be read as the gate of the adapter beside it: {error}.") from error
    if not all(bool(value.isfinite().all()) for value in weights.values()):
        raise CrossdraftError(f"{path} has weights that are not finite; train the adapter again.")
    return gate.eval()
