"""Quantised linear layers on a CPU: weights in 8 or 4 bits.

The kernels are PyTorch's own: the fastest of those tried here, without a further package; torchao's and bitsandbytes'
layers unpack the whole weight at each call on a CPU. A row gets the same bits whatever the other rows are, so that a
target's logits do not depend on how many tokens are verified together.

`int8` has one scale for each row of the weight (absolute maximum). Where the processor multiplies 8-bit numbers (VNNI),
the rows are quantised as well, each by its own absolute maximum: oneDNN then sums whole numbers, exactly, so that a
prompt's keys do not depend on the pieces it is read in either. A gated MLP's inner values have a few that are hundreds
of times as large as the others; the layer behind it reads them in 16 bits, as two rows of 8, and so does the head. On
other processors the rows stay in bfloat16, and the head's weight too. `int4` has a scale and a zero for each group of
32 (minimum and maximum), and rows in bfloat16; its head is that of `int8`.

A quantised target is another target: "lossless" is relative to the quantised one.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeGuard, cast

import torch
from torch import Tensor, nn

from crossdraft.engine.fast.elastic import poll
from crossdraft.engine.fast.packed_linear import (
    FEW,
    PrepackedLinear,
    Product,
    bound_kernels,
    parents_of,
    replace_groups,
)
from crossdraft.errors import CrossdraftError

QUANTIZATIONS = ("int8", "int4")
DTYPE = torch.bfloat16  # of the activations; in float32 the kernels are slower than plain products
GROUP = 32
WIDE = 256  # rows from which on int8 unpacks the weight, where rows stay in bfloat16
FINE = 254  # steps of the second row of 8 bits in one of the first
AT_ONCE = 4096  # rows of a weight that are quantised at once, as that takes four times their memory
CACHED = 1 << 20  # bytes of a weight that stays in CPU caches from pass to pass
ZERO = 128  # what stands for 0 in a quantised row: kernels for VNNI take rows without a sign
OF_A_DRAFTER = " (of a drafter: draft_quantize=none)"
# The kernels' own steps; on other sizes some crash instead of complaining.
ROW_STEP, COLUMN_STEP = 16, GROUP
_int8_product, _int4_product, _int4_pack, _has_vnni = (  # private: another PyTorch may lack them
    cast("Any", getattr(module, name, None))
    for module, name in (
        (torch, "_weight_int8pack_mm"),
        (torch, "_weight_int4pack_mm_for_cpu"),
        (torch, "_convert_weight_to_int4pack_for_cpu"),
        (torch.cpu, "_is_vnni_supported"),
    )
)
_vnni_pack, _vnni_product = (
    cast("Any", getattr(getattr(torch.ops.onednn, name, None), "default", None))
    for name in ("qlinear_prepack", "qlinear_pointwise")
)
_library = torch.library.Library("crossdraft", "FRAGMENT")
_library.define("int4_linear(Tensor rows, Tensor weight, Tensor scales) -> Tensor")
_library.define("uint8_sums(Tensor rows, Tensor weight, Tensor scales, Tensor zeros) -> Tensor")


class _QuantizedProduct(Product):
    """Several linear layers in fewer bits. A subclass says how they are held and multiplied."""

    scales: Tensor
    bits, fine = 8, True  # of the weights; whether rows have 16 bits
    padded = False

    def product(self, flat: Tensor) -> Tensor:
        """[n, in] -> [n, out], without the bias."""
        raise NotImplementedError

    def multiply(self, rows: Tensor) -> Tensor:
        """[..., in] -> [..., out]."""
        if rows.numel() == 0:
            return rows.new_empty(*rows.shape[:-1], sum(self.sizes))
        out = self.product(rows.reshape(-1, self.in_features))
        return (out if self.bias is None else out.add_(self.bias)).view(*rows.shape[:-1], -1)

    multiply_traced = multiply

    def dense(self) -> Tensor:
        """[out, in] as the products see it, a copy."""
        return self.product(torch.eye(self.in_features, dtype=DTYPE)).T.contiguous()

    @property
    def nbytes(self) -> int:
        """Bytes of the weights."""
        return self.in_features * sum(self.sizes) * self.bits // 8 + self.scales.nbytes


class Int8Product(_QuantizedProduct):
    """Weights in 8 bits, rows in bfloat16."""

    def hold(self, weights: Tensor) -> None:
        """See `to_int8`."""
        self.packed, self.scales = to_int8(weights)

    def product(self, flat: Tensor) -> Tensor:
        """[n, in] -> [n, out]; more rows than any draft tree has read an unpacked weight, which rounds otherwise."""
        if flat.shape[0] <= WIDE:
            return _int8_product(flat, self.packed, self.scales)
        # Whole numbers up to 127 are exact in bfloat16.
        return nn.functional.linear(flat, self.packed.to(flat.dtype)) * self.scales


class VnniProduct(_QuantizedProduct):
    """Weights and rows in 8 bits; rows of 16 bits for layers with more inputs than outputs, which end an MLP."""

    padded = True  # oneDNN makes a primitive for each number of rows

    def hold(self, weights: Tensor) -> None:
        """See `to_int8`."""
        bound_kernels()
        whole, scales = to_int8(weights)
        self.packed, self.scales = _vnni_pack(whole, None), scales.float()
        self.zeros, self.fine = torch.zeros_like(scales, dtype=torch.int32), self.in_features > sum(self.sizes)

    def product(self, flat: Tensor) -> Tensor:
        """[n, in] -> [n, out], without the bias."""
        whole, own = to_uint8(flat, fine=self.fine)
        sums = torch.ops.crossdraft.uint8_sums if torch.compiler.is_compiling() else _uint8_sums
        out = sums(whole, self.packed, self.scales, self.zeros)
        if self.fine:
            out = torch.add(*out.chunk(2), alpha=1 / FINE)
        return out.mul_(own).to(flat.dtype)


class Int4Product(_QuantizedProduct):
    """Weights in 4 bits, rows in bfloat16."""

    bits = 4

    def hold(self, weights: Tensor) -> None:
        """See `to_int4`."""
        self.packed, self.scales = to_int4(weights)

    def product(self, flat: Tensor) -> Tensor:
        """[n, in] -> [n, out], without the bias."""
        if torch.compiler.is_compiling():  # inductor's own form of the operator fails in a nested region
            return torch.ops.crossdraft.int4_linear(flat, self.packed, self.scales)
        return _int4_product(flat, self.packed, GROUP, self.scales)


class QuantizedLinear(PrepackedLinear):
    """`nn.Linear` without a copy of its plain weight; `weight` makes one on demand."""

    kept = "quantised", "without quantize"


def quantized_layers(linears: Sequence[nn.Linear], bits: int, *, fine: bool = False) -> list[QuantizedLinear]:
    """Quantise layers that read the same input, as one product.

    Args:
        linears: plain layers, on the CPU, in bfloat16.
        bits: 8 or 4.
        fine: never read rows of less than 16 bits.
    """
    eight = VnniProduct if has_vnni() else Int8Product
    made = (eight if bits == 8 else Int4Product)(linears)
    made.fine |= fine
    if made.padded and made.nbytes > CACHED:  # six rows of whole numbers are read as fast as one or two
        made.least = FEW // (1 + made.fine)
    return [QuantizedLinear(made, index) for index in range(len(linears))]


def has_vnni() -> bool:
    """True if this processor multiplies vectors of 8-bit numbers itself, and PyTorch has the operators for it."""
    return None not in (_has_vnni, _vnni_pack, _vnni_product) and bool(_has_vnni())


def to_uint8(rows: Tensor, *, fine: bool) -> tuple[Tensor, Tensor]:
    """[n, in] -> whole numbers from 1 to 255 that stand for -127 to 127, and a scale [n, 1] for each row.

    Args:
        rows: rows.
        fine: give [2 n, in]; the second n are what the first n leave, in steps of 1 / `FINE`.

    >>> whole, scales = to_uint8(torch.tensor([[127.0, -2.25]]), fine=True)
    >>> whole.tolist(), scales.tolist()
    ([[255, 126], [128, 65]], [[1.0]])
    """
    wide = rows.to(torch.float32, copy=True)
    scales = wide.abs().amax(-1, keepdim=True).div_(127).clamp_min_(torch.finfo(torch.float32).tiny)
    wide = wide.div_(scales)
    if fine:
        first = wide.round()
        wide = torch.cat((first, wide.sub_(first).mul_(FINE)))
    return wide.add_(ZERO + 0.5).to(torch.uint8), scales


def _uint8_sums(whole: Tensor, packed: Tensor, scales: Tensor, zeros: Tensor) -> Tensor:
    """[n, in] whole numbers, as `to_uint8` makes them -> float32 [n, out]."""
    return _vnni_product(whole, 1.0, ZERO, packed, scales, zeros, None, 1.0, 0, torch.float32, "none", [], "")


@torch.library.register_fake("crossdraft::uint8_sums", lib=_library)  # pyright: ignore[reportUntypedFunctionDecorator]
def _uint8_shape(whole: Tensor, packed: Tensor, scales: Tensor, zeros: Tensor) -> Tensor:
    return whole.new_empty(whole.shape[0], scales.shape[0], dtype=torch.float32)


def _compiled_sums(whole: Tensor, packed: Tensor, scales: Tensor, zeros: Tensor) -> Tensor:
    poll()  # a compiled pass borrows cores, and gives them back, between its products
    return _uint8_sums(whole, packed, scales, zeros)


@torch.library.register_fake("crossdraft::int4_linear", lib=_library)  # pyright: ignore[reportUntypedFunctionDecorator]
def _int4_shape(rows: Tensor, packed: Tensor, scales: Tensor) -> Tensor:
    return rows.new_empty(rows.shape[0], scales.shape[1])


def _compiled_int4(rows: Tensor, packed: Tensor, scales: Tensor) -> Tensor:
    poll()
    return _int4_product(rows, packed, GROUP, scales)


_library.impl("uint8_sums", _compiled_sums, "CompositeExplicitAutograd")
_library.impl("int4_linear", _compiled_int4, "CompositeExplicitAutograd")


def to_int8(weight: Tensor) -> tuple[Tensor, Tensor]:
    """[out, in] -> whole numbers from -127 to 127, and a scale [out] for each row.

    >>> quantized, scales = to_int8(torch.tensor([[1.0, -127.0], [0.0, 0.0]]))
    >>> quantized.tolist(), scales.tolist()
    ([[1, -127], [0, 0]], [1.0, 1.0])
    """
    scales = (torch.linalg.vector_norm(weight, math.inf, 1) / 127).to(DTYPE)
    scales = torch.where(scales > 0, scales, 1)
    whole = torch.empty_like(weight, dtype=torch.int8)
    for part, plain, own in zip(*(one.split(AT_ONCE) for one in (whole, weight, scales)), strict=True):
        # Rounded scales may be a little too small.
        part.copy_((plain / own.float()[:, None]).round_().clamp_(-127, 127))
    return whole, scales


def to_int4(weight: Tensor) -> tuple[Tensor, Tensor]:
    """[out, in] -> the kernel's packed form, and [in / 32, out, 2] scales and zeros: w = (q - 8) * scale + zero."""
    whole, scales, zeros = int4_groups(weight)
    packed: Tensor = _int4_pack(whole.flatten(1).to(torch.int32), 1)
    return packed, torch.stack([scales, zeros], -1).transpose(0, 1).contiguous()


def int4_groups(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """[out, in] -> float32 whole numbers 0 to 15 [out, in / 32, 32], and bfloat16 scales and zeros [out, in / 32].

    They stand for (whole - 8) * scale + zero.
    """
    groups = weight.float().unflatten(1, (-1, GROUP))
    low, high = groups.amin(-1), groups.amax(-1)
    scales = ((high - low) / 15).to(DTYPE)
    scales = torch.where(scales > 0, scales, 1)
    zeros = (low + 8 * scales.float()).to(DTYPE)
    whole = ((groups - zeros.float()[..., None]) / scales.float()[..., None]).round_().add_(8).clamp_(0, 15)
    return whole, scales, zeros


def check_quantization(name: str, device: torch.device, dtype: torch.dtype) -> None:
    """Raise CrossdraftError unless a model can be quantised in this way on its device.

    Args:
        name: one of `QUANTIZATIONS`.
        device, dtype: of the model.
    """
    if device.type != "cpu":
        raise CrossdraftError(
            f"quantize={name} runs on a CPU, and the device is {device}; leave it out{OF_A_DRAFTER}, or choose the "
            "device cpu."
        )
    if dtype != DTYPE:
        plain = str(dtype).removeprefix("torch.")
        raise CrossdraftError(
            f"quantize={name} computes in bfloat16, and the dtype is {plain}; leave the dtype out, or "
            f"quantize{OF_A_DRAFTER}."
        )
    if None in (_int8_product, _int4_product, _int4_pack):
        raise CrossdraftError(
            f"This PyTorch ({torch.__version__}) has no kernels for quantize={name}; install 2.11 or later."
        )


def quantize_layers(model: Any, name: str, fill: Callable[[nn.Module], None] = lambda linear: None) -> int:
    """Quantise the linear layers of a model's language model, in place; returns how many there were.

    The head is held in 8 bits where the processor multiplies them; it is not counted. The embedding, vision encoders
    and layers of sizes that the kernels do not take are not changed. Plain weights are given up layer by layer.

    Args:
        model: on the CPU, in bfloat16.
        name: one of `QUANTIZATIONS`.
        fill: called with each layer before it is quantised; reads its weights if they are still in their file.

    Raises:
        CrossdraftError: the language model has no layer that can be quantised.
    """
    count = replace_layers(model, partial(quantized_layers, bits=8 if name == "int8" else 4), fill)
    if count == 0:
        raise CrossdraftError(
            f"A {type(model).__name__} of these sizes has no layer for quantize={name} (multiples of {COLUMN_STEP} in, "
            f"of {ROW_STEP} out); leave it out."
        )
    if has_vnni():
        head = model.get_output_embeddings()
        made = partial(quantized_layers, bits=8, fine=True)
        replace_groups(parents_of(model), lambda one: one is head and _quantizable(one), made, fill)
    return count


def replace_layers(
    model: Any,
    smaller: Callable[[Sequence[nn.Linear]], Sequence[Any]],
    fill: Callable[[nn.Module], None] = lambda linear: None,
) -> int:
    """Put smaller layers in the place of a language model's linear ones; returns how many there were.

    Args:
        model, fill: as `quantize_layers`.
        smaller: makes smaller layers from those of one input, of sizes that the kernels take; see `replace_groups`.
    """
    head = model.get_output_embeddings()  # some models' language model includes it
    return replace_groups(parents_of(_decoder(model)), lambda one: one is not head and _quantizable(one), smaller, fill)


def bytes_saved(model: Any, name: str | None) -> int:
    """Bytes by which a model shrinks from bfloat16 when it is quantised; the model may be on `meta`. 0 for None."""
    if name is None:
        return 0
    bits = 8 if name == "int8" else 4 + 32 / GROUP
    layers, head = _decoder(model).modules(), model.get_output_embeddings()
    numbers = sum(layer.weight.numel() for layer in layers if layer is not head and _quantizable(layer))
    return int(numbers * (DTYPE.itemsize - bits / 8))


def _decoder(model: Any) -> nn.Module:
    """The language model, in some models with its head."""
    return getattr(model.base_model, "language_model", model.base_model)


def _quantizable(module: nn.Module) -> TypeGuard[nn.Linear]:
    return type(module) is nn.Linear and not (module.in_features % COLUMN_STEP or module.out_features % ROW_STEP)
