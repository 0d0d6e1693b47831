"""A drafter's LM head cut down to the ids that answers are made of.

A small drafter spends much of a step on its LM head: thousands of rows, of which answers use a few hundred. The target
still says tokens that the drafter cannot draft. Only the drafter's distribution changes, and acceptance is exact for
any distribution (FR-Spec: Zhao et al. 2025).
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from crossdraft.errors import CrossdraftError
from crossdraft.files import parse_json

FILE = "draft_ids.json"


class ShortHead(nn.Module):
    """Hidden states [..., h] -> logits [..., V]: the head's own at `ids`, -inf elsewhere.

    Raises:
        CrossdraftError: there are no ids, or the head lacks one.
    """

    rows: Tensor

    def __init__(self, head: nn.Linear, ids: Sequence[int]) -> None:
        super().__init__()
        rows = sorted(set(ids))
        if not rows or rows[0] < 0 or rows[-1] >= head.out_features:
            raise CrossdraftError(
                f"A short head needs ids from 0 to {head.out_features - 1}; remove or correct {FILE}."
            )
        self.size = head.out_features
        self.register_buffer("rows", torch.tensor(rows, device=head.weight.device))
        self.inner = nn.Linear(head.in_features, len(rows), bias=head.bias is not None, device="meta")
        self.inner.weight = nn.Parameter(head.weight.detach()[self.rows], requires_grad=False)
        if head.bias is not None:
            self.inner.bias = nn.Parameter(head.bias.detach()[self.rows], requires_grad=False)

    def forward(self, states: Tensor) -> Tensor:
        few: Tensor = self.inner(states)
        every = few.new_full((*few.shape[:-1], self.size), float("-inf"))
        return every.index_copy_(-1, self.rows, few)


def shorten_head(model: Any, fill: Callable[[Any], object], ids: Sequence[int]) -> None:
    """Cut a model's LM head down to `ids`; `fill` loads the weights of a layer."""
    fill(model.lm_head)
    model.lm_head = ShortHead(model.lm_head, ids)


def read_ids(folder: Path) -> list[int] | None:
    """The ids beside a drafter's weights; `None` if there is no such file.

    Raises:
        CrossdraftError: the file is not a JSON list of whole numbers.
    """
    path = folder / FILE
    if not path.is_file():
        return None
    try:
        ids = parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CrossdraftError(f"{path} cannot be read as token ids: {error}.") from error
    if not isinstance(ids, list) or not all(type(i) is int for i in ids):
        raise CrossdraftError(f"{path} must be a list of token ids.")
    return ids
