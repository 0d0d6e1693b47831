"""The roofline (Williams et al. 2009): a machine's peak rates of products and copies, and what a pass needs of each."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import nn

from crossdraft.engine.fast.packed_linear import prepack
from crossdraft.engine.target import Target

SIDE = 1024  # side of the plain matrices
ROWS = (64, 256, 512)  # rows of products with a layer's weights, as pieces of a prompt
COPY_BYTES = 1 << 28  # larger than any cache
BYTES = 4  # bytes of a float32


@dataclass(frozen=True, slots=True)
class MachinePeak:
    """Peak rates of some number of threads.

    Args:
        gflops: 10⁹ float32 operations a second; the best of plain matrices and of a layer's by the engine's kernels.
        copy_gbs: gigabytes a second, read and written, of a buffer larger than the caches.
        cached_gbs: `copy_gbs` of a buffer as large as the model's weights, which a cache may hold.
    """

    gflops: float
    copy_gbs: float
    cached_gbs: float

    def to_json(self) -> dict[str, float]:
        """Plain values."""
        return {name: round(value, 2) for name, value in asdict(self).items()}

    def raised(self, work: "PassWork", seconds: float) -> "MachinePeak":
        """Raise the peaks to a pass's own rates where the pass was faster than the measured peaks."""
        return replace(
            self,
            gflops=max(self.gflops, work.flops / seconds / 1e9),
            cached_gbs=max(self.cached_gbs, work.bytes / seconds / 1e9),
        )


@dataclass(frozen=True, slots=True)
class PassWork:
    """Least work of a pass: operations to compute and bytes to read.

    Args:
        flops: floating-point operations of all products.
        bytes: bytes of the weights, once, and of keys and values.
    """

    flops: float
    bytes: float

    @property
    def intensity(self) -> float:
        """Arithmetic intensity, FLOPs per byte."""
        return self.flops / self.bytes

    def least_s(self, peak: MachinePeak, *, cached: bool = True) -> float:
        """Least time of a pass by the roofline, in seconds.

        >>> work = PassWork(flops=2e9, bytes=1e9)
        >>> peak = MachinePeak(gflops=10, copy_gbs=2, cached_gbs=20)
        >>> work.least_s(peak), work.least_s(peak, cached=False)
        (0.2, 0.5)
        """
        bandwidth = max(peak.copy_gbs, peak.cached_gbs) if cached else peak.copy_gbs
        return max(self.flops / (1e9 * peak.gflops), self.bytes / (1e9 * bandwidth))


def machine_peak(weights: int, layers: Sequence[tuple[int, int]] = (), repeats: int = 5) -> MachinePeak:
    """Measure peak rates with as many threads as this thread has; the best of several.

    Args:
        weights: bytes of the model's weights.
        layers: widths [in, out] of the model's matrices.
        repeats: number of runs of each measurement.
    """
    gflops = max(flops / _least(call, repeats) / 1e9 for flops, call in _products(layers))
    return MachinePeak(gflops, _copy_gbs(COPY_BYTES, repeats), _copy_gbs(weights, repeats))


def _products(layers: Sequence[tuple[int, int]]) -> Iterator[tuple[float, Callable[[], object]]]:
    """Yield FLOPs and a function that computes them: for plain matrices, and for weights packed as in the engine."""
    a, b, product = torch.randn(SIDE, SIDE), torch.randn(SIDE, SIDE), torch.empty(SIDE, SIDE)
    yield 2.0 * SIDE**3, lambda: torch.mm(a, b, out=product)
    for width, features in layers:
        packed = nn.Sequential(nn.Linear(width, features, bias=False)).requires_grad_(requires_grad=False)
        prepack(packed)
        for count in ROWS:
            rows = torch.randn(count, width)
            yield 2.0 * count * width * features, lambda packed=packed, rows=rows: packed(rows)


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
    """Numbers of weights of a decoder's layers, head and encoder; its layers, hidden width, and width of keys."""

    decoder: int
    head: int
    layers: int
    width: int
    keys: int
    encoder: int

    @classmethod
    def of(cls, target: Target) -> "ModelShape":
        """Determine the shape of a loaded target; embeddings are looked up, not multiplied.

        The weights are counted in an empty copy: layers of a loaded target may be packed, and then hold no parameters.
        """
        model, language = _empty_copy(target)
        config = target.text_config
        head = model.get_output_embeddings()
        embedded = model.get_input_embeddings().weight.numel()
        decoder = _weights(language) - embedded
        tied = head.weight is model.get_input_embeddings().weight
        encoder = _weights(model) - decoder - embedded - (0 if tied else head.weight.numel())
        one = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        keys = one * (getattr(config, "num_key_value_heads", None) or config.num_attention_heads)
        return cls(decoder, head.weight.numel(), config.num_hidden_layers, config.hidden_size, keys, encoder)

    @property
    def nbytes(self) -> int:
        """Bytes of all weights that are multiplied."""
        return BYTES * (self.decoder + self.head + self.encoder)

    def pass_over(self, tokens: float, context: float, logits: float) -> PassWork:
        """Work of a pass over `tokens` tokens after a context, with logits for `logits` of them.

        Every weight of a layer is multiplied once a token (2 FLOPs); attention takes 4 · context · width FLOPs a token
        and layer; weights are read once, and each layer's keys and values of the context once.

        >>> ModelShape(decoder=10, head=4, layers=1, width=2, keys=2, encoder=0).pass_over(3, 5, 1)
        PassWork(flops=188.0, bytes=136.0)
        """
        attention = 4.0 * tokens * context * self.width * self.layers
        flops = 2.0 * tokens * self.decoder + 2.0 * logits * self.head + attention
        return PassWork(flops, BYTES * (self.decoder + self.head + 2.0 * context * self.keys * self.layers))


def layer_widths(target: Target) -> list[tuple[int, int]]:
    """Widths [in, out] of the matrices of a target's decoder, each pair once."""
    _, language = _empty_copy(target)
    linears = (module for module in language.modules() if isinstance(module, nn.Linear))
    return list(dict.fromkeys((linear.in_features, linear.out_features) for linear in linears))


def _empty_copy(target: Target) -> tuple[Any, nn.Module]:
    """The model without memory for its weights, and its decoder."""
    with torch.device("meta"):
        model: Any = type(target.model)(target.model.config)
    return model, model.model.language_model if hasattr(model.model, "language_model") else model.model


def _weights(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
