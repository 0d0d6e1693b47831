"""Linear layers in oneDNN's own weight layout, for inference on a CPU.

PyTorch's plain `linear` hands few rows to a BLAS that rearranges the whole weight at every call: a verify pass over
2 to 64 rows pays that for every layer. Rearranged once, at loading, the same products take about half the time. The
packed kernels also give a row the same bits whatever rows stand beside it: of what makes a token's logits depend on how
many are verified with it, only attention is left. (Inductor's "freezing" packs weights by the same operators.)

A packed model is for inference where it stands. It can be saved, but not moved, cast or loaded into.
"""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn

from crossdraft.errors import CrossdraftError

ROWS_HINT = 16  # the number of rows that the layout is chosen for; it serves one row, and a thousand, as well
DTYPES = (torch.float32, torch.bfloat16)
_reorder, _linear, _has_bf16 = (  # private: another PyTorch may lack them
    cast("Any", getattr(torch.ops.mkldnn, name, None))
    for name in ("_reorder_linear_weight", "_linear_pointwise", "_is_mkldnn_bf16_supported")
)


class PrepackedLinear(nn.Module):
    """`nn.Linear` whose weight only the CPU's matrix kernels can read; `weight` makes a plain copy on demand."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.bias = None if linear.bias is None else nn.Parameter(linear.bias.detach(), requires_grad=False)
        # Not a buffer: an opaque tensor can be neither moved nor written to a file.
        self._packed: Tensor = _reorder(linear.weight.detach(), ROWS_HINT)

    @property
    def weight(self) -> Tensor:
        """[out, in], a copy."""
        return self._packed.to_dense()

    def forward(self, rows: Tensor) -> Tensor:
        """[..., in] -> [..., out]."""
        return _linear(rows, self._packed, self.bias, "none", [], "")

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "PrepackedLinear":
        before = torch.empty(0, dtype=self._packed.dtype)
        after = fn(before)
        if after.dtype != before.dtype or after.device != before.device:
            raise CrossdraftError(
                f"A packed layer cannot be moved to {after.device} or cast to {after.dtype}; load with packed=False."
            )
        return super()._apply(fn, recurse)

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"
        )

    def _save_to_state_dict(self, destination: dict[str, Tensor], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[f"{prefix}weight"] = self.weight


def prepack(model: nn.Module) -> int:
    """Replace every plain linear layer on the CPU by its packed form, in place; returns how many there were.

    The plain weights are given up, so memory stays what it was; a head that shares its weights with the embedding gets
    a copy. Where this build of PyTorch lacks the operators, or the processor the kernels, nothing changes.
    """
    if not torch.backends.mkldnn.is_available() or None in (_reorder, _linear, _has_bf16):
        return 0
    count = 0
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear and _packable(child):
                setattr(parent, name, PrepackedLinear(child))
                count += 1
    return count


def _packable(linear: nn.Linear) -> bool:
    weight = linear.weight
    if weight.device.type != "cpu" or weight.dtype not in DTYPES:
        return False
    return weight.dtype is torch.float32 or _has_bf16()
