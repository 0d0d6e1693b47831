"""Attribute heads: what a scene *is*, read from features. They make the rest converge and are thrown away.

Next-token loss alone leaves a small VLM on a long plateau, in which it writes likely answers without looking.
Classifying the scene's categorical ground truth gives tower and prefix something to say from the first minute.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class SightHead(nn.Module):
    """One learned query an attribute, cross-attending over every patch of every frame; linear read-out."""

    def __init__(self, dim: int, frames: int, vocabulary: Mapping[str, Sequence[str]], heads: int = 4) -> None:
        """`vocabulary`: attribute -> its values, in the order of the labels' columns."""
        super().__init__()
        self.frame = nn.Parameter(torch.randn(frames, dim) * 0.02)
        self.queries = nn.Parameter(torch.randn(len(vocabulary), dim) * 0.02)
        self.norm = nn.LayerNorm(dim)
        self.first = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.between = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))
        self.second = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.out = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, len(values)))
            for values in vocabulary.values()
        )

    def forward(self, patches: Tensor) -> list[Tensor]:
        """[clips, frames, n, d] -> per attribute [clips, values]."""
        memory = self.norm(patches + self.frame[:, None]).flatten(1, 2)
        query = self.queries.expand(patches.shape[0], -1, -1)
        query = query + self.first(query, memory, memory, need_weights=False)[0]
        query = query + self.between(query)
        query = query + self.second(query, memory, memory, need_weights=False)[0]
        return [head(query[:, i]) for i, head in enumerate(self.out)]


class PrefixHead(nn.Module):
    """A linear read-out of the language model's own stream over the last visual tokens.

    It sits where the branches look: whatever it can read, a question token can attend to.
    """

    def __init__(self, dim: int, vocabulary: Mapping[str, Sequence[str]], last: int) -> None:
        """Read the mean of the `last` prefix positions."""
        super().__init__()
        self.last = last
        self.norm = nn.LayerNorm(dim)
        self.out = nn.ModuleList(nn.Linear(dim, len(values)) for values in vocabulary.values())

    def forward(self, hidden: Tensor) -> list[Tensor]:
        """[clips, P, d] -> per attribute [clips, values]."""
        pooled = self.norm(hidden[:, -self.last :].mean(1))
        return [head(pooled) for head in self.out]


def attribute_loss(logits: Sequence[Tensor], labels: Tensor) -> Tensor:
    """Mean cross-entropy; labels int64 [clips, attributes]."""
    losses = [F.cross_entropy(row.float(), labels[:, i]) for i, row in enumerate(logits)]
    return torch.stack(losses).mean()


def attribute_accuracy(logits: Sequence[Tensor], labels: Tensor) -> list[float]:
    """Share of clips right, per attribute."""
    return [float((row.argmax(-1) == labels[:, i]).float().mean()) for i, row in enumerate(logits)]


def label_row(values: Mapping[str, str], vocabulary: Mapping[str, Sequence[str]]) -> list[int]:
    """The attribute values of one scene as class indices."""
    return [list(choices).index(values[name]) for name, choices in vocabulary.items()]
