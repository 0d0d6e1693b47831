r"""What a head learns from, and what it says of it: the two values that every network here speaks.

A lesson holds answers of the target as text behind the last visual token, place by place:

    place        0     1    …   s-1     s      s+1   …   T-1
    tokens       \n   What  …   :       A      red   …   </s>       s = where the answer begins
    hidden       f0    f1   …   f(s-1)  f(s)   …         (none: the last token was never fed)

The target's feature at place t is what it says *behind* token t, so with it comes the law of token t + 1. A head that
stands at place t knows the features up to t and the token t + 1 (the root of the draft), and guesses what the target
will say at place t + 1, t + 2, …: the first draft token, the second, ….
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class TrainBatch:
    """B answers of the target, padded on the right.

    Args:
        tokens: [B, T] ids of the text behind the visual part and of the answer.
        hidden: layer -> [B, T, H] the target's features at these places; 0 at the last token of each row and behind.
        starts: [B] place of each answer's first token.
        lengths: [B] tokens of each row.
        visual: layer -> [B, N, H] features at the prompt's first piece, which ends with its last visual token; empty
            where no head asked for it.
        visual_ids: [B, N] ids of that piece, placeholders where a feature stands for something visual; `None` likewise.
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
        """[B, T] true at the places t that stand before a draft, and whose target at `t + offset` says a token we know.

        The first of them is the prompt's last token: at the first draft the answer's first token is the root.
        """
        places = torch.arange(self.tokens.shape[1], device=self.tokens.device)
        return (places >= self.starts[:, None] - 1) & (places + offset < self.lengths[:, None] - 1)

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> "TrainBatch":
        """The lesson on another device, its features in another dtype."""

        def moved(features: Mapping[int, Tensor]) -> dict[int, Tensor]:
            return {layer: value.to(device, dtype) for layer, value in features.items()}

        ids = None if self.visual_ids is None else self.visual_ids.to(device)
        places = {name: getattr(self, name).to(device) for name in ("tokens", "starts", "lengths")}
        return replace(self, **places, hidden=moved(self.hidden), visual=moved(self.visual), visual_ids=ids)


@dataclass(frozen=True)
class DraftLogits:
    """What a head says, at every place of a lesson, of the target `offset` places further on.

    Args:
        offset: 1 = the draft's first token, given the root; 2 = the second; …
        logits: [B, T, D] over the head's draft vocabulary.
        features: [B, T, H] what it takes the target's last feature there to be, if it guesses features.
        valid: [B, T] true where it said anything; `None` = everywhere. What stands in other places means nothing.
    """

    offset: int
    logits: Tensor
    features: Tensor | None = None
    valid: Tensor | None = None
