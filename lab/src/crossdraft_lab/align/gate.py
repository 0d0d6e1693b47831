"""The gate of a speculative prefill: predicts how much of an answer stays the target's own after predicted tokens.

It looks at the event encoder's features alone. What an adapter predicts could be compared with the target's features,
but their computing is what is to be saved.

    event encoder   [B, T, P, S]   mean and spread over the P patches of each frame -> [B, 2·T·S]
    gate            [B]            the share, 0..1, of an answer's tokens that the target would say, too

That share is of tokens after the target's own answer so far; a budget is of whole answers, of which more is lost. So
beside its weights a gate keeps what became of other clips' answers: how sure it was of each, and what was lost.
"""

import math
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F

from crossdraft.errors import CrossdraftError

GATE, GATE_FIGURES = "gate.safetensors", "gate.json"  # in the folder of its adapter
WIDTH = 32


class PrefillGate(nn.Module):
    """One hidden layer over pooled features, which it has in the units of those it learned from.

    Args:
        frames, size: T and S.
        width: of the hidden layer.
        clips: n, of which it keeps what was lost.
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
        """Take units from features [n, 2·T·S], and start with the mean of the shares [n] as every prediction."""
        self.mean.copy_(pooled.mean(0))
        self.scale.copy_(pooled.std(0, correction=0).clamp_min(1e-6))
        self.out.weight.zero_()
        self.out.bias.copy_(share.mean().logit(1e-6))

    @torch.no_grad()
    def calibrate(self, sure: Tensor, lost: Tensor) -> None:
        """Keep how sure it was of clips that it did not learn from [n], and 1 - ROUGE-L of their answers [n]."""
        self.sure, self.lost = sure.clone(), lost.to(sure)

    def threshold(self, loss: float) -> float:
        """The lowest confidence from which on predicting may be expected to lose at most `loss`, over all clips.

        Conformal risk control (Angelopoulos et al. 2022): with the answers of clips below a threshold read whole, and
        so without loss, (the sum of losses + 1) / (n + 1) is at most `loss`. Where no threshold does that, because the
        clips are too few or lose too much, it is the least above all of them.

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
            if risk <= loss and (index + 1 == len(sure) or sure[index + 1] < one)  # equally sure clips: all or none
        ]
        return within[-1] if within else min(1.0, math.nextafter(float(sure[0]), math.inf))


def save_gate(gate: PrefillGate, folder: Path) -> None:
    """Write the gate beside its adapter."""
    save_file({name: value.contiguous() for name, value in gate.state_dict().items()}, folder / GATE)


def load_gate(folder: Path, frames: int, size: int) -> PrefillGate:
    """The gate of the adapter in a folder.

    Raises:
        CrossdraftError: there is none, it is damaged, not finite, of another adapter or of an earlier version.
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
