r"""`TrainBatch`, the input of a head in training, and `DraftLogits`, its output.

A batch holds the target's answers as text after the last visual token:

    position     0     1    …   s-1     s      s+1   …   T-1
    tokens       \n   What  …   :       A      red   …   </s>       s = where the answer begins
    hidden       f0    f1   …   f(s-1)  f(s)   …         (none: the last token was never fed)

The target's feature at position t gives its distribution of token t + 1. A head at t knows the features up to t and
token t + 1 (the root of the draft), and predicts the target at t + 1, t + 2, …: the first draft token, the second, ….
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class TrainBatch:
    """B answers of the target, padded on the right.

    Args:
        tokens: [B, T] ids of the text after the visual part and of the answer.
        hidden: layer -> [B, T, H] the target's features; 0 at the last token of each row and after.
        starts: [B] position of each answer's first token.
        lengths: [B] tokens of each row.
        visual: layer -> [B, N, H] features at the prompt's first piece, which ends with its last visual token; empty
            where the head does not read it.
        visual_ids: [B, N] ids of that piece, placeholders where a feature stands for something visual; may be `None`.
    """

    tokens: Tensor
    hidden: Mapping[int, Tensor]
    starts: Tensor
    lengths: Tensor
    visual: Mapping[int, Tensor] = field(default_factory=dict)
    visual_ids: Tensor | None = None

    def __len__(self) -> int:
        return len(self.tokens)

    def loss_mask(self, offset: int) -> Tensor:
        """[B, T] true at positions t at which a draft may begin and the target's token at `t + offset` is known.

        The first of them is the prompt's last token: the answer's first token is the root of the first draft.
        """
        positions = torch.arange(self.tokens.shape[1], device=self.tokens.device)
        return (positions >= self.starts[:, None] - 1) & (positions + offset < self.lengths[:, None] - 1)

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> "TrainBatch":
        """The batch on another device, its features in another dtype."""

        def moved(features: Mapping[int, Tensor]) -> dict[int, Tensor]:
            return {layer: value.to(device, dtype) for layer, value in features.items()}

        ids = None if self.visual_ids is None else self.visual_ids.to(device)
        integers = {name: getattr(self, name).to(device) for name in ("tokens", "starts", "lengths")}
        return replace(self, **integers, hidden=moved(self.hidden), visual=moved(self.visual), visual_ids=ids)


@dataclass(frozen=True)
class DraftLogits:
    """A head's prediction, at every position of a batch, of the target's output `offset` positions later.

    Args:
        offset: 1 = the draft's first token, given the root; 2 = the second; …
        logits: [B, T, D] over the head's draft vocabulary.
        features: [B, T, H] its prediction of the target's last feature there, if it predicts features.
        valid: [B, T] true where there is a prediction; `None` = everywhere. Other values are undefined.
    """

    offset: int
    logits: Tensor
    features: Tensor | None = None
    valid: Tensor | None = None
