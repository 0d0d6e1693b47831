"""The loss of heads on an event model (`models.heads.cross`, `models.heads.glance`).

Losses of logits (`kl`, …) teach the heads what the event model itself will say, which decides how many of their words
it keeps; losses of labels (`cross_entropy`) teach the video model's words, which decide how many of those are kept in
the end. Where the two models agree, they are one.
"""

from collections.abc import Callable

from torch import Tensor

from crossdraft.models.heads.base import Head, positions_of
from crossdraft.models.heads.lesson import Lesson
from crossdraft.models.heads.objective import Objective, score, teacher
from crossdraft.train.core.share import LossOf, whole


def cross_loss(head: Head, lesson_of: Callable[[int], Lesson], objective: Objective, rows: Tensor) -> LossOf:
    """The loss of a step, for `loop.optimise`; its figure `tau` counts the target's words, as everywhere.

    Args:
        head: what is trained.
        lesson_of: a step's features and words.
        objective: which losses, and how they weigh.
        rows: [D, H] the event model's own output rows of the draft vocabulary.
    """
    layer = head.config.num_layers
    lookup = positions_of(head.draft_ids, head.config.vocab_size)

    def loss_of(step: int) -> tuple[Tensor, dict[str, float]]:
        lesson = lesson_of(step)
        logits, labels = teacher(lesson, rows, layer, lookup)
        return score(objective, head(lesson), lesson, logits, labels)

    return whole(loss_of)
