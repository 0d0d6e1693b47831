"""Watching a model that somebody else drives: when its passes ran, when its first token came."""

import time
from types import TracebackType
from typing import Self

import torch
from torch import Tensor, nn
from transformers.generation.streamers import BaseStreamer


class PassClock:
    """Start and end of every forward of a module while the context is open; `None` watches nothing."""

    def __init__(self, module: nn.Module | None) -> None:
        self.module = module
        self.spans: list[tuple[float, float]] = []
        self._start = 0.0

    def __enter__(self) -> Self:
        hooks = []
        if self.module is not None:
            hooks = [self.module.register_forward_pre_hook(self._begin), self.module.register_forward_hook(self._end)]
        self._hooks = hooks
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for hook in self._hooks:
            hook.remove()

    def seconds(self, until: float = float("inf")) -> float:
        """Time in passes that ended by `until` (seconds on `time.perf_counter`)."""
        return sum(end - start for start, end in self.spans if end <= until)

    def _begin(self, module: nn.Module, arguments: object) -> None:
        self._start = time.perf_counter()

    def _end(self, module: nn.Module, arguments: object, output: object) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()  # the caller reads the result next in any case
        self.spans.append((self._start, time.perf_counter()))


class FirstToken(BaseStreamer):
    """Notes when `generate` handed out its first new token: the second `put`, the first is the prompt."""

    def __init__(self) -> None:
        self.puts = 0
        self.at = 0.0

    def put(self, value: Tensor) -> None:
        """Called by `generate`."""
        self.puts += 1
        if self.puts == 2:
            self.at = time.perf_counter()

    def end(self) -> None:
        """Called by `generate`."""
