"""Low-rank additions beside frozen layers (LoRA: Hu et al. 2022), also layers in 4 bits (QLoRA: Dettmers et al. 2023).

In `train.heads.joint` an addition is part of the weight; here it stands beside the layer, for nothing can be added to a
weight in 4 bits.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from crossdraft.engine.fast.quantized_linear import DTYPE, GROUP, int4_groups, replace_layers
from crossdraft.errors import CrossdraftError
from crossdraft_lab.train.core.dist import full_tensors
from crossdraft_lab.train.heads.joint import ADAPTED

HALF = GROUP // 2


class LowRankLinear(nn.Module):
    """x -> base(x) + scale · B A x; B is zero at first, so that the addition is zero. B and A are float32.

    Args:
        base: a linear layer; the caller freezes it.
        rank, scale: rank and factor of the addition.
    """

    def __init__(self, base: nn.Module, rank: int, scale: float) -> None:
        super().__init__()
        layer = cast("Any", base)
        self.base, self.scale = base, scale
        wide = torch.promote_types(next(iter(base.parameters()), torch.empty(0)).dtype, torch.float32)
        device = next(iter((*base.parameters(), *base.buffers()))).device
        down = torch.randn(rank, layer.in_features).to(device, wide) * layer.in_features**-0.5
        up = torch.zeros(layer.out_features, rank, dtype=wide, device=device)
        self.low_rank = nn.ParameterList((down, up))

    @property
    def down(self) -> Tensor:
        """Matrix A [rank, in] of the addition."""
        return self.low_rank[0]

    @property
    def up(self) -> Tensor:
        """Matrix B [out, rank] of the addition."""
        return self.low_rank[1]

    def forward(self, rows: Tensor) -> Tensor:
        """[..., in] -> [..., out]."""
        added = F.linear(F.linear(rows, self.down.to(rows.dtype)), self.up.to(rows.dtype))
        return self.base(rows) + self.scale * added

    def addition(self) -> Tensor:
        """Addition to the base's weight, [out, in]; where ranks share the weights, all ranks must call this."""
        down, up = full_tensors([self.down.detach(), self.up.detach()])
        return self.scale * up @ down


def attach_low_rank(decoder: nn.Module, rank: int, scale: float) -> dict[str, LowRankLinear]:
    """Put additions beside a decoder's attention projections; return them by the layers' names in the decoder.

    Raises:
        CrossdraftError: the decoder has no such layers under their usual names.
    """
    found = [(parent, key) for parent in decoder.modules() for key, _ in parent.named_children() if key in ADAPTED]
    if not found:
        raise CrossdraftError(
            f"{type(decoder).__name__} has no {', '.join(ADAPTED)} that could learn; tune it as a whole, with rank=0."
        )
    for parent, key in found:
        setattr(parent, key, LowRankLinear(getattr(parent, key), rank, scale))
    return {name: layer for name, layer in decoder.named_modules() if isinstance(layer, LowRankLinear)}


class Scratch:
    """Buffer into which every layer unpacks its weight for one product: filling new memory takes twice as long."""

    def __init__(self) -> None:
        self._held = torch.empty(0)

    def take(self, shape: Sequence[int], device: torch.device) -> Tensor:
        """Return the buffer as [*shape] bfloat16, not initialised; its earlier content is lost."""
        numbers = math.prod(shape)
        if self._held.numel() < numbers or self._held.device != device:
            self._held = torch.empty(numbers, dtype=DTYPE, device=device)
        return self._held[:numbers].view(*shape)


class Int4Linear(nn.Module):
    """`nn.Linear` with a frozen weight in 4 bits; gradients pass to its input.

    The weight has the values that `--quantize int4` gives it, in a layout that is quick to unpack: the kernel's own
    has no backward pass. It takes 5 bits a weight with scales and zeros; each product unpacks it anew, into bfloat16,
    and reads its input's columns in the packed weight's order: all groups' first, all groups' second and so on. In this
    order scales and zeros lie beside their factors (in the input's own order a product takes six times as long).

    Args:
        linear: layer whose sizes are multiples of the group.
        scratch: buffer for unpacked weights; layers that share it must not be used by two threads.
    """

    def __init__(self, linear: nn.Linear, scratch: Scratch) -> None:
        super().__init__()
        self.in_features, self.out_features, self._scratch = linear.in_features, linear.out_features, scratch
        whole, scales, zeros = int4_groups(linear.weight.detach())
        whole = whole.to(torch.uint8).transpose(1, 2).contiguous()  # [out, 32, groups]; other layouts unpack slowly
        # They are parameters because FSDP does not shard buffers.
        self.packed = nn.Parameter(whole[:, :HALF] | (whole[:, HALF:] << 4), requires_grad=False)
        self.scales = nn.Parameter(scales, requires_grad=False)
        self.zeros = nn.Parameter(zeros - 8 * scales, requires_grad=False)
        self.bias = None if linear.bias is None else nn.Parameter(linear.bias.detach(), requires_grad=False)

    @property
    def nbytes(self) -> int:
        """Bytes of the weight."""
        return self.packed.nbytes + self.scales.nbytes + self.zeros.nbytes

    @property
    def weight(self) -> Tensor:
        """The weight unpacked, [out, in] bfloat16, as a copy."""
        return self.grouped(self.unpacked(), GROUP).clone()

    def forward(self, rows: Tensor) -> Tensor:
        """[..., in] -> [..., out] bfloat16."""
        out = cast("Tensor", _FrozenProduct.apply(rows, self))
        return out if self.bias is None else out + self.bias

    def unpacked(self) -> Tensor:
        """Unpack the weight, [out, in] bfloat16 with columns in packed order; valid until a layer is unpacked again."""
        whole = self._scratch.take((self.out_features, GROUP, self.in_features // GROUP), self.packed.device)
        whole[:, :HALF] = self.packed & 15
        whole[:, HALF:] = self.packed >> 4
        return torch.addcmul(self.zeros[:, None], whole, self.scales[:, None], out=whole).flatten(1)

    def grouped(self, columns: Tensor, of: int) -> Tensor:
        """Order columns [..., in]: `of` = number of groups gives packed order, `of` = their size gives plain order."""
        return columns.unflatten(-1, (of, -1)).transpose(-1, -2).flatten(-2)

    @property
    def groups(self) -> int:
        """Number of groups of the input's columns."""
        return self.in_features // GROUP


class _FrozenProduct(torch.autograd.Function):
    """rows · Wᵀ with a gradient for the rows alone; the weight is not kept but unpacked again for the backward pass."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, layer: Int4Linear) -> Tensor:
        ctx.layer, ctx.dtype = layer, rows.dtype
        with torch.autocast(rows.device.type, enabled=False):
            return F.linear(layer.grouped(rows.to(DTYPE), layer.groups), layer.unpacked())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        layer: Int4Linear = ctx.layer
        return layer.grouped(grads[0].to(DTYPE) @ layer.unpacked(), GROUP).to(ctx.dtype), None


def to_int4_base(model: Any, fill: Callable[[nn.Module], None]) -> None:
    """Convert the linear layers of a model's language model to 4 bits, one after the other as each is read.

    Args:
        model: a model in bfloat16.
        fill: reads a layer's weights, which may still be in their file.
    """
    scratch = Scratch()
    replace_layers(model, lambda linears: [Int4Linear(linear, scratch) for linear in linears], fill)
