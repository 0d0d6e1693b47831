"""Features that an adapter predicts beside the target's own: cosines, and whether the target's head says the same."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from crossdraft.bench.figure import Figure
from crossdraft.bench.statistics import Interval

THRESHOLDS = (0.80, 0.90)


@dataclass(frozen=True, slots=True)
class FeatureFigures:
    """Predictions of an adapter along the target's own answers; pooled over positions, intervals drawn over clips.

    Args:
        cosine: mean with the target's feature.
        above: share of positions whose cosine is above each of `THRESHOLDS`.
        consecutive: mean number of positions in a row from the first on whose cosine is above the last of these.
        same, shifted: share whose likeliest token, by the target's head, is the target's at that position, and at the
            next, which nothing predicts that draws on this one alone.
    """

    cosine: Interval
    above: tuple[Interval, ...]
    consecutive: Interval
    same: Interval
    shifted: Interval

    def to_json(self) -> dict[str, object]:
        """Plain values."""
        found = {f"acceptance@{one:.2f}": share for one, share in zip(THRESHOLDS, self.above, strict=True)}
        found |= {"cosine": self.cosine, "consecutive@0.90": self.consecutive}
        found |= {"same_position": self.same, "shifted": self.shifted}
        return {name: figure.to_json() for name, figure in found.items()}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> "FeatureFigures":
        """As `to_json` wrote it."""
        known = {name: Interval.from_json(figure) for name, figure in found.items()}
        above = tuple(known[f"acceptance@{one:.2f}"] for one in THRESHOLDS)
        return cls(known["cosine"], above, known["consecutive@0.90"], known["same_position"], known["shifted"])


def figures_of(
    found: Sequence[tuple[Tensor, Tensor]], lm_head: Tensor, answers: Sequence[Sequence[int]], clips: Sequence[Hashable]
) -> FeatureFigures:
    """Figures of predictions [A, H] beside the target's features [A, H], answer by answer.

    Args:
        found: both, of each answer.
        lm_head: [V, H] of the target.
        answers: their tokens.
        clips: what each is about.
    """
    cosines, same, shifted, rows = list[Tensor](), list[Tensor](), list[Tensor](), list[int]()
    for (predicted, own), tokens in zip(found, answers, strict=True):
        cosine = F.cosine_similarity(predicted, own, dim=-1)
        likeliest, wanted = (predicted @ lm_head.T).argmax(-1), torch.tensor(tokens)
        cosines.append(cosine)
        same.append(likeliest == wanted)
        shifted.append(likeliest[:-1] == wanted[1:])
        rows.append(int((cosine > THRESHOLDS[-1]).long().cumprod(0).sum()))
    return FeatureFigures(
        _pooled("cosine", cosines, clips),
        tuple(_pooled(f"> {one:.2f}", [cosine > one for cosine in cosines], clips) for one in THRESHOLDS),
        Figure.mean("in a row", rows, clips).interval,
        _pooled("same token", same, clips),
        _pooled("shifted", shifted, clips),
    )


def _pooled(name: str, answers: Sequence[Tensor], clips: Sequence[Hashable]) -> Interval:
    """Mean over the positions of all answers."""
    sums = [float(one.float().sum()) for one in answers]
    return Figure.ratio(name, sums, [len(one) for one in answers], clips).interval
