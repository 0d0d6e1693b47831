"""The seam of structured answers: a source of masks for a request, which says at every node what may come next.

The target's logits are masked before any other warping of the last step, as a logits processor of `generate` would do;
nodes of a draft that a mask forbids are not verified, and what the structure forces is drafted without a model.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from crossdraft.engine.detokenize import TokenText
from crossdraft.engine.tree import DraftTree


class Masks(Protocol):
    """The masks of one answer, whose committed tokens it knows."""

    def allowed(self, tree: DraftTree) -> list[int]:
        """The nodes that may come after their parents and all that is committed, in their order."""
        ...

    def allows(self, path: Sequence[int], token: int) -> bool:
        """True if `token` may come there, in a fraction of the time of `mask`; if false, `mask` decides."""
        ...

    def mask(self, path: Sequence[int] = ()) -> Tensor:
        """[V] bool, on the CPU: tokens that may come after all that is committed and `path`; none if that may not."""
        ...

    def forced(self, nodes: int) -> DraftTree:
        """At most this many nodes that must come, or nearly so; empty where anything may."""
        ...

    def commit(self, tokens: Sequence[int]) -> None:
        """Note tokens that joined the answer."""
        ...


class MaskSource(Protocol):
    """A constraint on an answer; see `crossdraft.Structure`."""

    def begin(self, text: TokenText, vocabulary: int, ends: Sequence[int]) -> Masks:
        """Make the masks of an answer.

        Args:
            text: the target's tokenizer.
            vocabulary: number of the target's logits.
            ends: ids that end an answer.

        Raises:
            CrossdraftError: the constraint cannot be read, or the tokenizer cannot write what it asks for.
        """
        ...


def masked(logits: Tensor, masks: Tensor) -> Tensor:
    """Logits [1 + n, V] with minus infinity where `masks` [1 + n, V] is false."""
    return torch.where(masks, logits, -torch.inf)
