"""Answers that a head may learn from: the newest ones, as many as there is room for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from crossdraft.errors import CrossdraftError
from crossdraft.heads.networks.train_batch import TrainBatch

HELD_BACK = 4  # every so many-th answer is judged by instead of learned from
FEWEST = 2 * HELD_BACK


@dataclass(frozen=True, eq=False)
class Sample:
    """One answer of the target, text as in `TrainBatch`.

    Args:
        tokens: [T] ids of the text behind the visual part and of the answer.
        start: place of the answer's first token.
        hidden: layer -> [T - 1, H] features at all places but the last.
    """

    tokens: tuple[int, ...]
    start: int
    hidden: Mapping[int, Tensor]

    @property
    def bytes(self) -> int:
        """Memory that the features take."""
        return sum(features.numel() * features.element_size() for features in self.hidden.values())


class ReplayBuffer:
    """The newest answers, of which each fourth is held back: no weights are changed because of it, it judges them.

    Where the same text comes again, it takes the place of what there was, on the same side. So no text is ever on both.

    Args:
        keep: most answers.
        room: most bytes; an answer that is larger by itself is not taken.

    Raises:
        CrossdraftError: too few answers to hold some back.
    """

    def __init__(self, keep: int, room: int) -> None:
        if keep < FEWEST:
            raise CrossdraftError(f"keep is {keep}; a head that learns needs {FEWEST} answers or more.")
        self.keep, self.room = keep, room
        self._sides: dict[Sample, bool] = {}  # whether it is held back; the oldest first
        self._seen = 0

    def __len__(self) -> int:
        return len(self._sides)

    @property
    def bytes(self) -> int:
        """Memory that is held."""
        return sum(told.bytes for told in self._sides)

    def add(self, told: Sample) -> None:
        """Keep an answer; older ones make room."""
        if told.bytes > self.room:
            return
        before = next((old for old in self._sides if old.tokens == told.tokens), None)
        if before is None:
            held_back = self._seen % HELD_BACK == 1
            self._seen += 1
        else:
            held_back = self._sides.pop(before)
        self._sides[told] = held_back
        while len(self) > self.keep or self.bytes > self.room:
            del self._sides[next(iter(self._sides))]

    def side(self, *, held_back: bool) -> list[Sample]:
        """The answers to judge by, or the others; the oldest first."""
        return [told for told, side in self._sides.items() if side is held_back]


def batch_of(answers: Sequence[Sample], device: torch.device, dtype: torch.dtype) -> TrainBatch:
    """Answers side by side, padded on the right."""

    def features(layer: int) -> Tensor:
        rows = [told.hidden[layer] for told in answers]
        padded = [torch.cat((row, row.new_zeros(1, row.shape[1]))) for row in rows]
        return cast("Tensor", pad_sequence(padded, batch_first=True)).to(device, dtype)

    tokens = pad_sequence([torch.tensor(told.tokens) for told in answers], batch_first=True)
    return TrainBatch(
        tokens.to(device),
        {layer: features(layer) for layer in answers[0].hidden},
        torch.tensor([told.start for told in answers], device=device),
        torch.tensor([len(told.tokens) for told in answers], device=device),
    )
