"""Answers laid side by side: one lesson for the heads."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from crossdraft.errors import CrossdraftError
from crossdraft.models.heads.lesson import Lesson


@dataclass(frozen=True)
class Top:
    """The target's likeliest next tokens at the places of a lesson: at place t of token t + 1.

    Args:
        ids: [B, T, k]; 0 where nothing was said.
        logits: [B, T, k]; -inf there.
    """

    ids: Tensor
    logits: Tensor


@dataclass(frozen=True)
class Excerpt:
    """What a lesson takes of one answer; shapes as in `record.Told` and `record.ClipRecord`."""

    tokens: Tensor
    start: int
    hidden: Callable[[int], Tensor]
    visual_ids: Callable[[], Tensor]
    visual: Callable[[int], Tensor]


def lesson_of(answers: Sequence[Excerpt], layers: Sequence[int], visual_layers: Sequence[int]) -> Lesson:
    """B answers as float32, padded on the right with zeros.

    Raises:
        CrossdraftError: with `visual_layers`, prompts whose first pieces differ in length.
    """
    visual_ids = None
    if visual_layers:
        pieces = [answer.visual_ids() for answer in answers]
        if len({len(piece) for piece in pieces}) > 1:
            raise CrossdraftError(
                "The clips of this lesson have different numbers of visual tokens, which do not lie side by side; "
                "ask for answers about clips with equally many."
            )
        visual_ids = torch.stack(pieces)
    return Lesson(
        tokens=pad_sequence([answer.tokens for answer in answers], batch_first=True),
        hidden={layer: _features([answer.hidden(layer) for answer in answers]) for layer in layers},
        starts=torch.tensor([answer.start for answer in answers]),
        lengths=torch.tensor([len(answer.tokens) for answer in answers]),
        visual={layer: torch.stack([answer.visual(layer) for answer in answers]).float() for layer in visual_layers},
        visual_ids=visual_ids,
    )


def top_of(answers: Sequence[tuple[int, Tensor, Tensor]]) -> Top:
    """(start, ids [A, k], logits [A, k]) of each answer, at the places that say them: the first stands at start - 1."""
    longest = max(start + len(ids) for start, ids, _ in answers)
    shape = (len(answers), longest, answers[0][1].shape[1])
    top = Top(torch.zeros(shape, dtype=torch.int64), torch.full(shape, float("-inf")))
    for row, (start, ids, logits) in enumerate(answers):
        places = slice(start - 1, start - 1 + len(ids))
        top.ids[row, places], top.logits[row, places] = ids, logits
    return top


def _features(rows: Sequence[Tensor]) -> Tensor:
    """[B, T, H]: a zero at each row's last token, and behind."""
    return pad_sequence([torch.cat([row, row.new_zeros(1, row.shape[1])]) for row in rows], batch_first=True).float()
