"""The loss of heads on an event model (`models.heads.cross`).

Losses of logits (`kl`, …) teach the heads what the event model itself will say, which decides how many of their words
it keeps; losses of labels (`cross_entropy`) teach the video model's words, which decide how many of those are kept in
the end. Where the two models agree, they are one.
"""

from torch import Tensor

from crossdraft.models.heads.base import positions_of
from crossdraft.models.heads.cross import Cross
from crossdraft.models.heads.objective import Objective, score, teacher
from crossdraft.train.heads.events import EventAnswers
from crossdraft.train.share import LossOf, whole


def cross_loss(head: Cross, answers: EventAnswers, objective: Objective, rows: Tensor) -> LossOf:
    """The loss of a step, for `loop.optimise`; its figure `tau` counts the target's words, as everywhere.

    Args:
        head: what is trained.
        answers: where features and words come from.
        objective: which losses, and how they weigh.
        rows: [D, H] the event model's own output rows of the draft vocabulary.
    """
    layer = head.config.num_layers
    lookup = positions_of(head.draft_ids, head.config.vocab_size)

    def loss_of(step: int) -> tuple[Tensor, dict[str, float]]:
        lesson = answers.lesson(step)
        logits, labels = teacher(lesson, rows, layer, lookup)
        return score(objective, head(lesson), lesson, logits, labels)

    return whole(loss_of)
