"""The roofline (Williams et al. 2009): what a machine reaches in products and copies, and what passes ask of it."""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from crossdraft.engine.target import Target

SIDE = 1024  # of the matrices
COPY_BYTES = 1 << 28  # beyond any cache
BYTES = 4  # of a float32


@dataclass(frozen=True, slots=True)
class MachinePeak:
    """Of some threads.

    Args:
        gflops: of float32 products of matrices, 10⁹ a second.
        copy_gbs: read and written, of a buffer beyond the caches.
        cached_gbs: the same of a buffer as large as the model's weights, which a cache may hold.
    """

    gflops: float
    copy_gbs: float
    cached_gbs: float

    def to_json(self) -> dict[str, float]:
        """Plain values."""
        return {name: round(value, 2) for name, value in asdict(self).items()}


@dataclass(frozen=True, slots=True)
class PassWork:
    """What a pass computes and reads at least.

    Args:
        flops: of all products.
        bytes: weights once, and keys and values.
    """

    flops: float
    bytes: float

    @property
    def intensity(self) -> float:
        """FLOPs a byte."""
        return self.flops / self.bytes

    def least_s(self, peak: MachinePeak, *, cached: bool = True) -> float:
        """The roofline's bound: no pass is faster.

        >>> work = PassWork(flops=2e9, bytes=1e9)
        >>> peak = MachinePeak(gflops=10, copy_gbs=2, cached_gbs=20)
        >>> work.least_s(peak), work.least_s(peak, cached=False)
        (0.2, 0.5)
        """
        bandwidth = max(peak.copy_gbs, peak.cached_gbs) if cached else peak.copy_gbs
        return max(self.flops / (1e9 * peak.gflops), self.bytes / (1e9 * bandwidth))


def machine_peak(weights: int, repeats: int = 5) -> MachinePeak:
    """Measure with as many threads as this thread has; the best of several.

    Args:
        weights: bytes of the model's weights.
        repeats: of each.
    """
    a, b = torch.randn(SIDE, SIDE), torch.randn(SIDE, SIDE)
    product = torch.empty(SIDE, SIDE)
    seconds = _least(lambda: torch.mm(a, b, out=product), repeats)
    return MachinePeak(2 * SIDE**3 / seconds / 1e9, _copy_gbs(COPY_BYTES, repeats), _copy_gbs(weights, repeats))


def _copy_gbs(size: int, repeats: int) -> float:
    source, copy = torch.ones(size // BYTES), torch.empty(size // BYTES)
    return 2 * size / _least(lambda: copy.copy_(source), repeats) / 1e9


def _least(call: Callable[[], object], repeats: int) -> float:
    call()
    least = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        least = min(least, time.perf_counter() - start)
    return least


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A decoder: weights of its layers and of its head, layers, hidden width, width of keys; weights of its encoder."""

    decoder: int
    head: int
    layers: int
    width: int
    keys: int
    encoder: int

    @classmethod
    def of(cls, target: Target) -> "ModelShape":
        """Of a loaded target; embeddings are looked up, not multiplied.

        Counted in an empty copy: the layers of a loaded one may have been packed, and then hold no parameters.
        """
        with torch.device("meta"):
            model: Any = type(target.model)(target.model.config)
        config = target.text_config
        head = model.get_output_embeddings()
        embedded = model.get_input_embeddings().weight.numel()
        language = model.model.language_model if hasattr(model.model, "language_model") else model.model
        decoder = _weights(language) - embedded
        tied = head.weight is model.get_input_embeddings().weight
        encoder = _weights(model) - decoder - embedded - (0 if tied else head.weight.numel())
        one = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        keys = one * (getattr(config, "num_key_value_heads", None) or config.num_attention_heads)
        return cls(decoder, head.weight.numel(), config.num_hidden_layers, config.hidden_size, keys, encoder)

    def pass_over(self, tokens: float, context: float, logits: float) -> PassWork:
        """A pass over so many tokens after a context, with logits for some of them.

        Every weight of a layer is multiplied once a token (2 FLOPs), scores and their sum take 4 · context · width a
        token and layer; weights are read once, keys and values of the context once a layer.

        >>> ModelShape(decoder=10, head=4, layers=1, width=2, keys=2, encoder=0).pass_over(3, 5, 1)
        PassWork(flops=188.0, bytes=136.0)
        """
        attention = 4.0 * tokens * context * self.width * self.layers
        flops = 2.0 * tokens * self.decoder + 2.0 * logits * self.head + attention
        return PassWork(flops, BYTES * (self.decoder + self.head + 2.0 * context * self.keys * self.layers))


def _weights(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
