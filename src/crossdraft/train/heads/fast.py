"""The loss of the fast draft head (`models.heads.fast`): cross-entropy over the first words of the target's answers."""

import torch
from torch import Tensor
from torch.nn import functional as F

from crossdraft.models.heads.base import positions_of
from crossdraft.models.heads.fast import Fast
from crossdraft.models.heads.objective import OUTSIDE
from crossdraft.train.core.share import LossOf, whole
from crossdraft.train.heads.events import EventAnswers, Heard


def fast_loss(head: Fast, answers: EventAnswers) -> LossOf:
    """The loss of a step, for `loop.optimise`.

    Figures: `right`, the share of the places whose likeliest word is the target's; `tau`, tokens of a first pass with
    the chain of these: 1 + those right in a row from the answer's beginning.
    """
    lookup = positions_of(head.draft_ids, head.config.vocab_size)

    def loss_of(step: int) -> tuple[Tensor, dict[str, float]]:
        heard = answers.heard(step)
        logits = said(head, heard)
        labels, there = first_words(heard, head.config.steps)
        known = torch.where(there, lookup[labels], OUTSIDE)
        loss = F.cross_entropy(logits.flatten(0, 1), known.flatten(), ignore_index=OUTSIDE)
        return loss, accepted(logits, known, there)

    return whole(loss_of)


def said(head: Fast, heard: Heard) -> Tensor:
    """[rows, N, D] what the head says of each answer."""
    pairs = zip(heard.rows.tokens, heard.starts.tolist(), strict=True)
    questions = torch.stack([head.asked(tokens[:start]) for tokens, start in pairs])
    if not head.config.sees:
        return head.marginals(None, questions)
    each = len(questions) // len(heard.visual)
    return head.marginals(heard.visual.repeat_interleave(each, 0), questions)


def first_words(heard: Heard, count: int) -> tuple[Tensor, Tensor]:
    """[rows, count] ids that each answer begins with, and where there are any."""
    places = heard.starts[:, None] + torch.arange(count)
    there = places < heard.lengths[:, None]
    return heard.rows.tokens.gather(1, places.clamp(max=heard.rows.tokens.shape[1] - 1)), there


@torch.no_grad()
def accepted(logits: Tensor, known: Tensor, there: Tensor) -> dict[str, float]:
    """See `fast_loss`."""
    right = (logits.argmax(-1) == known) & there
    row = right.long().cumprod(1).sum(1)
    return {"right": float(right.sum() / there.sum().clamp(min=1)), "tau": 1 + float(row.float().mean())}
