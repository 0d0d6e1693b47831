r"""A captured answer, and the file that holds many of them.

An answer is text after the prompt's first piece, which ends with the last visual token:

    position     0     1    …   s-1     s      s+1   …   T-1
    tokens       \n   What  …   :       A      red   …   </s>        s = `start`
    hidden       f0    f1   …   f(s-1)  f(s)   …        (none)

The last token was never fed to the target, so there is no feature at it.

A shard is a safetensors file of whole clips, laid end to end in flat tensors, with offsets that say where each begins:

    piece.ids [ΣN] int32        piece.at [P + 1]      P first pieces (one a clip, as a rule)
    piece.<layer> [ΣN, H]
    tokens [ΣT] int32           tokens.at [Q + 1]     Q answers
    starts [Q]                  piece.of [Q]          start of each answer, and number of its first piece
    hidden.<layer> [Σ(T-1), H]                        begins at tokens.at[i] - i: an answer has one feature less

Features are bfloat16. Shards of earlier versions also hold `top.ids`, `top.logits` and `top.at`, which nothing reads.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from crossdraft.errors import CrossdraftError

ID_BYTES, FEATURE_BYTES, OFFSET_BYTES = 4, 2, 8  # int32; bfloat16; int64
READ_VALUES = 2**24  # values of a tensor that are in memory at a time while it is searched
MEND = "run the same `crossdraft capture` again, which captures it and what follows anew"


@dataclass(frozen=True)
class CaptureSpec:
    """Features that are captured of each answer.

    Args:
        layers: layers whose hidden states of the text after the first piece are kept, counted as in `plan`.
        visual_layers: layers whose hidden states of the first piece are kept.
        max_new_tokens: largest number of tokens of an answer.
    """

    layers: tuple[int, ...]
    visual_layers: tuple[int, ...] = ()
    max_new_tokens: int = 96

    def __post_init__(self) -> None:
        for name, value in (("layers", len(self.layers)), ("max-new-tokens", self.max_new_tokens)):
            if value < 1:
                raise CrossdraftError(f"--{name} asks for {value}; a capture needs at least 1.")

    def piece_bytes(self, tokens: int, hidden_size: int) -> int:
        """Size of a first piece on disk."""
        return OFFSET_BYTES + tokens * (ID_BYTES + FEATURE_BYTES * hidden_size * len(self.visual_layers))

    def answer_bytes(self, text: int, answer: int, hidden_size: int) -> int:
        """Size on disk of an answer of `answer` tokens after `text` tokens of the prompt."""
        features = (text + answer - 1) * FEATURE_BYTES * hidden_size * len(self.layers)
        return 3 * OFFSET_BYTES + (text + answer) * ID_BYTES + features


@dataclass(frozen=True, eq=False)
class CapturedAnswer:
    """One answer of the target, with its captured features.

    Args:
        tokens: [T] ids of the prompt's last piece, then of the answer.
        start: position of the answer's first token.
        hidden: layer -> [T - 1, H] bfloat16.
        visual_ids: [N] ids of the prompt's first piece; N = 0 if the prompt has no visual tokens.
        visual: layer -> [N, H] bfloat16.
    """

    tokens: Tensor
    start: int
    hidden: Mapping[int, Tensor]
    visual_ids: Tensor
    visual: Mapping[int, Tensor] = field(default_factory=dict)

    def same_piece(self, other: "CapturedAnswer") -> bool:
        """True if two answers follow the same first piece, with equal ids and features."""
        if not torch.equal(self.visual_ids, other.visual_ids):
            return False
        return all(torch.equal(features, other.visual[layer]) for layer, features in self.visual.items())


def write_shard(path: Path, answers: Sequence[CapturedAnswer], spec: CaptureSpec) -> None:
    """Write answers to a file; a first piece that neighbouring answers share is written once."""
    pieces: list[CapturedAnswer] = []
    owners: list[int] = []
    for answer in answers:
        if not pieces or not answer.same_piece(pieces[-1]):
            pieces.append(answer)
        owners.append(len(pieces) - 1)
    tensors = {
        "piece.ids": _joined([piece.visual_ids for piece in pieces], torch.int32),
        "piece.at": _offsets([len(piece.visual_ids) for piece in pieces]),
        "piece.of": torch.tensor(owners, dtype=torch.int64),
        "tokens": _joined([answer.tokens for answer in answers], torch.int32),
        "tokens.at": _offsets([len(answer.tokens) for answer in answers]),
        "starts": torch.tensor([answer.start for answer in answers], dtype=torch.int64),
    }
    for layer in spec.visual_layers:
        tensors[f"piece.{layer}"] = _joined([piece.visual[layer] for piece in pieces], torch.bfloat16)
    for layer in spec.layers:
        tensors[f"hidden.{layer}"] = _joined([answer.hidden[layer] for answer in answers], torch.bfloat16)
    save_file(tensors, path)


@dataclass(frozen=True)
class Shard:
    """An opened shard; tensors are read lazily, and only the rows that are needed."""

    path: Path
    file: Any

    @classmethod
    def open(cls, path: Path) -> "Shard":
        """Open the shard in a file; only its table of contents is read.

        Raises:
            CrossdraftError: the file is no safetensors file.
        """
        try:
            return cls(path, safe_open(path, framework="pt"))
        except (OSError, SafetensorError) as error:
            raise CrossdraftError(f"The shard {path} cannot be read ({error}); {MEND}.") from error

    def answer(self, number: int, layers: Sequence[int], visual_layers: Sequence[int]) -> CapturedAnswer:
        """Read an answer with these features; without visual layers `visual_ids` is not read either, and is empty."""
        first, last = self._tokens_at[number : number + 2]
        begin, end = self._piece_span(number) if visual_layers else (0, 0)
        return CapturedAnswer(
            self._rows("tokens", first, last).long(),
            self._starts[number],
            {layer: self._rows(f"hidden.{layer}", first - number, last - number - 1) for layer in layers},
            self._rows("piece.ids", begin, end).long(),
            {layer: self._rows(f"piece.{layer}", begin, end) for layer in visual_layers},
        )

    def answer_length(self, number: int) -> int:
        """Number of tokens of an answer without its prompt."""
        return self._tokens_at[number + 1] - self._tokens_at[number] - self._starts[number]

    def piece_length(self, number: int) -> int:
        """Number of tokens of the first piece before an answer."""
        first, last = self._piece_span(number)
        return last - first

    def not_finite(self, layers: Sequence[int], visual_layers: Sequence[int]) -> int | None:
        """Number of the first answer with a feature in these layers that is NaN or infinite; `None` if there is none.

        The layers are read completely, a part at a time.
        """
        begins = [first - number for number, first in enumerate(self._tokens_at[:-1])]
        rows = (self._bad_row(f"hidden.{layer}") for layer in layers)
        found = [bisect_right(begins, row) - 1 for row in rows if row is not None]
        rows = (self._bad_row(f"piece.{layer}") for layer in visual_layers)
        pieces = (bisect_right(self._piece_at[:-1], row) - 1 for row in rows if row is not None)
        return min([*found, *map(self._piece_of.index, pieces)], default=None)

    def _bad_row(self, name: str) -> int | None:
        """Number of the first row of a tensor that is not finite."""
        rows, width = self.file.get_slice(name).get_shape()
        step = max(1, READ_VALUES // width)
        for first in range(0, rows, step):
            wrong = ~torch.isfinite(self._rows(name, first, min(first + step, rows))).all(1)
            if wrong.any():
                return first + int(wrong.nonzero()[0])
        return None

    def _rows(self, name: str, first: int, last: int) -> Tensor:
        """Read rows of a tensor; no other rows are read."""
        return self.file.get_slice(name)[first:last]

    def _piece_span(self, number: int) -> tuple[int, int]:
        owner = self._piece_of[number]
        return self._piece_at[owner], self._piece_at[owner + 1]

    @cached_property
    def _tokens_at(self) -> list[int]:
        return self.file.get_tensor("tokens.at").tolist()

    @cached_property
    def _starts(self) -> list[int]:
        return self.file.get_tensor("starts").tolist()

    @cached_property
    def _piece_at(self) -> list[int]:
        return self.file.get_tensor("piece.at").tolist()

    @cached_property
    def _piece_of(self) -> list[int]:
        return self.file.get_tensor("piece.of").tolist()


def _joined(parts: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    return torch.cat([part.to(dtype) for part in parts]).contiguous()


def _offsets(lengths: Sequence[int]) -> Tensor:
    return torch.tensor([0, *lengths], dtype=torch.int64).cumsum(0)
