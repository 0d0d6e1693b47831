"""The gate of a speculative prefill: how far will an answer be the target's own if it reads predicted visual tokens?

It looks at the event encoder's features alone. What an adapter predicts could be compared with the target's features,
but their computing is what is to be saved.

    event encoder   [B, T, P, S]   mean and spread over the P patches of each frame -> [B, 2·T·S]
    gate            [B]            the share, 0..1, of an answer's tokens that the target would say, too
"""

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F

from crossdraft.errors import CrossdraftError

GATE = "gate.safetensors"  # in the folder of its adapter
WIDTH = 32


class PrefillGate(nn.Module):
    """One hidden layer over pooled features, which it has in the units of those it learned from.

    Args:
        frames, size: T and S.
        width: of the hidden layer.
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, frames: int, size: int, width: int = WIDTH) -> None:
        super().__init__()
        pooled = 2 * frames * size
        self.register_buffer("mean", torch.zeros(pooled))
        self.register_buffer("scale", torch.ones(pooled))
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
        """Take the units of these features [n, 2·T·S]; at first it says the mean of the shares [n]."""
        self.mean.copy_(pooled.mean(0))
        self.scale.copy_(pooled.std(0, correction=0).clamp_min(1e-6))
        self.out.weight.zero_()
        self.out.bias.copy_(share.mean().logit(1e-6))


def save_gate(gate: PrefillGate, folder: Path) -> None:
    """Write it beside its adapter."""
    save_file({name: value.contiguous() for name, value in gate.state_dict().items()}, folder / GATE)


def load_gate(folder: Path, frames: int, size: int) -> PrefillGate:
    """The gate of the adapter in a folder.

    Raises:
        CrossdraftError: there is none, it is damaged, not finite or of another adapter.
    """
    path = folder / GATE
    if not path.is_file():
        raise CrossdraftError(f"{path} is missing: the adapter has no gate; train it again, or leave out confidence.")
    try:
        weights = load_file(path)
        gate = PrefillGate(frames, size, len(weights["up.bias"]))
        gate.load_state_dict(weights)
    except (OSError, SafetensorError, KeyError, RuntimeError) as error:
        raise CrossdraftError(f"{path} cannot be read as the gate of the adapter beside it: {error}.") from error
    if not all(bool(value.isfinite().all()) for value in weights.values()):
        raise CrossdraftError(f"{path} has weights that are not finite; train the adapter again.")
    return gate.eval()
