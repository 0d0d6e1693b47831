"""Weight-only quantised linear layers on a CPU: weights in 8 or 4 bits, activations in bfloat16.

The kernels are PyTorch's own: the fastest of those tried here, without a further package; torchao's and bitsandbytes'
layers unpack the whole weight at each call on a CPU. PyTorch's also give a row the same bits whatever the other rows
are, so that a target's logits do not depend on how many tokens are verified together. Only `int8` has a second way, for
pieces of a prompt that are wider than any draft tree: there the weight is unpacked, as the kernel for few rows would
take two to three times as long. That way rounds otherwise, so a prompt's keys depend on the pieces it is read in.

`int8` has one scale for each row of the weight (absolute maximum), `int4` a scale and a zero for each group of 32
(minimum and maximum). A quantised target is another target: "lossless" is relative to the quantised one.
"""

from collections.abc import Callable
from typing import Any, Protocol, TypeGuard, cast

import torch
from torch import Tensor, nn

from crossdraft.engine.fast.heap import HeapTrimmer
from crossdraft.errors import CrossdraftError

QUANTIZATIONS = ("int8", "int4")
DTYPE = torch.bfloat16  # of the activations; in float32 the kernels are slower than plain products
GROUP = 32
WIDE = 256  # rows from which on int8 unpacks the weight
OF_A_DRAFTER = " (of a drafter: draft_quantize=none)"
# The kernels' own steps; on other sizes some crash instead of complaining.
ROW_STEP, COLUMN_STEP = 16, GROUP
_int8_product, _int4_product, _int4_pack = (  # private: another PyTorch may lack them
    cast("Any", getattr(torch, name, None))
    for name in ("_weight_int8pack_mm", "_weight_int4pack_mm_for_cpu", "_convert_weight_to_int4pack_for_cpu")
)


class QuantizedLinear(nn.Module):
    """`nn.Linear` without a copy of its plain weight; `weight` makes one on demand.

    Args:
        linear: the plain layer, on the CPU, in bfloat16.
        bits: 8 or 4.
    """

    quantized: Tensor
    scales: Tensor
    bias: Tensor | None

    def __init__(self, linear: nn.Linear, bits: int) -> None:
        super().__init__()
        self.in_features, self.out_features, self.bits = linear.in_features, linear.out_features, bits
        quantized, scales = (to_int8 if bits == 8 else to_int4)(linear.weight.detach())
        self.register_buffer("quantized", quantized)
        self.register_buffer("scales", scales)
        self.register_buffer("bias", None if linear.bias is None else linear.bias.detach())

    @property
    def nbytes(self) -> int:
        """Bytes of the weight."""
        return self.quantized.nbytes + self.scales.nbytes

    @property
    def weight(self) -> Tensor:
        """[out, in] as the products see it, a copy."""
        return self._product(torch.eye(self.in_features, dtype=DTYPE)).T.contiguous()

    def forward(self, rows: Tensor) -> Tensor:
        """[..., in] -> [..., out]."""
        out = self._product(rows.reshape(-1, self.in_features))
        out = out if self.bias is None else out + self.bias
        return out.view(*rows.shape[:-1], self.out_features)

    def _product(self, flat: Tensor) -> Tensor:
        """[rows, in] -> [rows, out], without the bias."""
        if flat.shape[0] == 0:
            return flat.new_empty(0, self.out_features)
        if self.bits == 4:
            return _int4_product(flat, self.quantized, GROUP, self.scales)
        if flat.shape[0] <= WIDE:
            return _int8_product(flat, self.quantized, self.scales)
        # Whole numbers up to 127 are exact in bfloat16.
        return nn.functional.linear(flat, self.quantized.to(flat.dtype)) * self.scales

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bits={self.bits}"

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "QuantizedLinear":
        after = fn(torch.empty(0, dtype=DTYPE))
        if after.dtype != DTYPE or after.device.type != "cpu":
            raise CrossdraftError(
                f"A quantised layer cannot be moved to {after.device} or cast to {after.dtype}; load without quantize."
            )
        return super()._apply(fn, recurse)


def to_int8(weight: Tensor) -> tuple[Tensor, Tensor]:
    """[out, in] -> whole numbers from -127 to 127, and a scale [out] for each row.

    >>> quantized, scales = to_int8(torch.tensor([[1.0, -127.0], [0.0, 0.0]]))
    >>> quantized.tolist(), scales.tolist()
    ([[1, -127], [0, 0]], [1.0, 1.0])
    """
    plain = weight.float()
    scales = (plain.abs().amax(1) / 127).to(DTYPE)
    scales = torch.where(scales > 0, scales, 1)
    whole = (plain / scales.float()[:, None]).round_().clamp_(-127, 127)  # rounded scales may be a little too small
    return whole.to(torch.int8), scales


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

    The embedding, the head, vision encoders and layers of sizes that the kernels do not take are not changed.
    Plain weights are given up layer by layer.

    Args:
        model: on the CPU, in bfloat16.
        name: one of `QUANTIZATIONS`.
        fill: called with each layer before it is quantised; reads its weights if they are still in their file.

    Raises:
        CrossdraftError: the language model has no layer that can be quantised.
    """
    bits = 8 if name == "int8" else 4
    count = replace_layers(model, lambda linear: QuantizedLinear(linear, bits), fill)
    if count == 0:
        raise CrossdraftError(
            f"A {type(model).__name__} of these sizes has no layer for quantize={name} (multiples of {COLUMN_STEP} in, "
            f"of {ROW_STEP} out); leave it out."
        )
    return count


class _Smaller(Protocol):
    """A layer in fewer bits."""

    @property
    def nbytes(self) -> int:
        """Bytes of the weight."""
        ...


def replace_layers(
    model: Any, smaller: Callable[[nn.Linear], "_Smaller"], fill: Callable[[nn.Module], None] = lambda linear: None
) -> int:
    """Put smaller layers in the place of a language model's linear ones, one by one; returns how many there were.

    Args:
        model: as `quantize_layers`.
        smaller: makes the smaller layer from a linear layer of a size that the kernels take.
        fill: as `quantize_layers`.
    """
    count, heap = 0, HeapTrimmer()
    for parent in [module for module in _decoder(model).modules() if type(module) is not nn.Linear]:
        for child in [key for key, module in parent.named_children() if _quantizable(module)]:
            linear = cast("nn.Linear", getattr(parent, child))
            fill(linear)
            made = smaller(linear)
            setattr(parent, child, made)
            heap.replaced(made.nbytes)
            count += 1
    heap.trim()
    return count


def bytes_saved(model: Any, name: str | None) -> int:
    """Bytes by which a model shrinks from bfloat16 when it is quantised; the model may be on `meta`. 0 for None."""
    if name is None:
        return 0
    bits = 8 if name == "int8" else 4 + 32 / GROUP
    numbers = sum(module.weight.numel() for module in _decoder(model).modules() if _quantizable(module))
    return int(numbers * (DTYPE.itemsize - bits / 8))


def _decoder(model: Any) -> nn.Module:
    """The language model without its head."""
    return getattr(model.base_model, "language_model", model.base_model)


def _quantizable(module: nn.Module) -> TypeGuard[nn.Linear]:
    return type(module) is nn.Linear and not (module.in_features % COLUMN_STEP or module.out_features % ROW_STEP)
