"""Features that an adapter predicts beside the target's own: cosines, and whether the target's head says the same."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from crossdraft.bench.statistics import Interval, ratio

THRESHOLDS = (0.80, 0.90)


@dataclass(frozen=True, slots=True)
class FeatureFigures:
    """Predictions of an adapter along the target's own answers; pooled over positions, intervals drawn over answers.

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


def figures_of(
    found: Sequence[tuple[Tensor, Tensor]], lm_head: Tensor, answers: Sequence[Sequence[int]]
) -> FeatureFigures:
    """Figures of predictions [A, H] beside the target's features [A, H], answer by answer."""
    cosines, same, shifted, rows = list[Tensor](), list[Tensor](), list[Tensor](), list[int]()
    for (predicted, own), tokens in zip(found, answers, strict=True):
        cosine = F.cosine_similarity(predicted, own, dim=-1)
        likeliest, wanted = (predicted @ lm_head.T).argmax(-1), torch.tensor(tokens)
        cosines.append(cosine)
        same.append(likeliest == wanted)
        shifted.append(likeliest[:-1] == wanted[1:])
        rows.append(int((cosine > THRESHOLDS[-1]).long().cumprod(0).sum()))
    return FeatureFigures(
        _pooled(cosines),
        tuple(_pooled([cosine > threshold for cosine in cosines]) for threshold in THRESHOLDS),
        ratio(rows, [1] * len(rows)),
        _pooled(same),
        _pooled(shifted),
    )


def _pooled(answers: Sequence[Tensor]) -> Interval:
    """Mean over the positions of all answers."""
    return ratio([float(one.float().sum()) for one in answers], [len(one) for one in answers])
