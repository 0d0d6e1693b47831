r"""Several questions about one clip in one pass: the prefix is read once, each branch sees it and itself only.

Example, two questions about a clip whose prefix has P tokens:

    positions   0 … P-1 | P  P+1  P+2  P+3      <- branch 0: \n  q  a  </s>
                        | P  P+1  P+2           <- branch 1: \\n  q  </s>    (padded on the right)
    targets             | -  a  </s>  -         the token after each position, answers only
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

IGNORE = -100


@dataclass(frozen=True, slots=True)
class Branches:
    """Question–answer rows, clip-major: row `r` belongs to clip `r // questions`."""

    tokens: Tensor
    """int64 [rows, length], padded on the right."""
    targets: Tensor
    """int64 [rows, length], the next token where it belongs to the answer, else `IGNORE`."""
    answer_start: Tensor
    """int64 [rows], column of the last question token: its logits give the first answer token."""


def pack(pairs: Sequence[tuple[Sequence[int], Sequence[int]]], pad_id: int, multiple: int = 8) -> Branches:
    """Lay (question ids, answer ids) pairs out as rows; the length is rounded up to `multiple`.

    Padding needs no mask: it stands behind every real token of its row, where causality hides it.
    """
    longest = max(len(question) + len(answer) for question, answer in pairs)
    length = -(-longest // multiple) * multiple
    tokens = torch.full((len(pairs), length), pad_id)
    targets = torch.full((len(pairs), length), IGNORE)
    for row, (question, answer) in enumerate(pairs):
        ids = torch.tensor([*question, *answer])
        tokens[row, : len(ids)] = ids
        targets[row, len(question) - 1 : len(ids) - 1] = ids[len(question) :]
    starts = torch.tensor([len(question) - 1 for question, _ in pairs])
    return Branches(tokens, targets, starts)
