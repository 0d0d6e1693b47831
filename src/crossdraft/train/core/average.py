"""The running average of a network's weights, which judges better than the last of them."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn


class Average:
    """Exponential moving average of the weights that are trained.

    Every step takes the average (1 − d) of the way to the weights. d grows to `decay` with the steps done, as
    min(decay, (1 + step) / (10 + step)): so a short run does not remember how it was initialised.

    Args:
        modules: whose weights; their present values are where the average begins.
        decay: how much of the average a step leaves, 0 to 1; 0.999 is common.
    """

    def __init__(self, modules: nn.Module, decay: float) -> None:
        self._decay = decay
        self._weights = {name: p for name, p in modules.named_parameters() if p.requires_grad}
        self.values = {name: p.detach().clone() for name, p in self._weights.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Follow the weights after the `step`-th step."""
        decay = min(self._decay, (1 + step) / (10 + step))
        get_ema_multi_avg_fn(decay)(list(self.values.values()), list(self._weights.values()), step)

    @torch.no_grad()
    def take(self, values: Mapping[str, Tensor]) -> None:
        """Resume from a checkpoint's averages, laid out as the weights are.

        Raises:
            KeyError, RuntimeError: they are of other weights.
        """
        for name, value in self.values.items():
            value.copy_(values[name])

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Put the averages in the weights' place for a while."""
        kept = {name: weight.detach().clone() for name, weight in self._weights.items()}
        self._put(self.values)
        try:
            yield
        finally:
            self._put(kept)

    def put(self) -> None:
        """Put the averages in the weights' place for good."""
        self._put(self.values)

    @torch.no_grad()
    def _put(self, values: Mapping[str, Tensor]) -> None:
        for name, weight in self._weights.items():
            weight.copy_(values[name])
