"""Hidden states of several layers side by side, and why they may need scales.

A residual stream is many times larger than what leaves a norm, the more so the deeper: 16 to 27 against 1 in the
reference target. Side by side in front of one matrix the large ones drown the others, and in EAGLE-3, where the result
is the residual and the token enters through the attention alone, the token too. So each layer may be multiplied by a
number of its own, about one over its root mean square. Files hold the matrix with these numbers in it, as other
programs want it.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from crossdraft.errors import CrossdraftError


def concat_layers(hidden: Mapping[int, Tensor], layers: Sequence[int], scales: Sequence[float]) -> Tensor:
    """[..., H] of each layer -> [..., H · layers], scaled."""
    return torch.cat([hidden[layer] * scale for layer, scale in zip(layers, scales, strict=True)], -1)


def columns(matrix: Tensor, scales: Sequence[float]) -> Tensor:
    """[in] the scale of each column of a matrix [out, in] behind `concat_layers`."""
    return matrix.new_tensor(scales).repeat_interleave(matrix.shape[1] // len(scales))


def check_scales(scales: Sequence[float], count: int) -> None:
    """Refuse what are not `count` positive numbers.

    Raises:
        CrossdraftError: see above.
    """
    if len(scales) != count or min(scales) <= 0:
        raise CrossdraftError(f"level_scales are {count} positive numbers, one a layer, not {tuple(scales)}.")
