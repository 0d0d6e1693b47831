r"""What is captured of a clip, and the file that holds it.

A clip's record is the piece of the prompt that shows it, and every answer about it:

    place        0     1    …   s-1     s      s+1   …   T-1
    tokens       \n   What  …   :       A      red   …   </s>        s = `start`
    hidden       f0    f1   …   f(s-1)  f(s)   …        (none)
    top                         t(s)    t(s+1) …                      what the answer's tokens were chosen from

The last token was never fed to the target, so there is no feature at it.

A shard holds whole clips, laid end to end in flat tensors, with offsets that say where each begins:

    piece.ids [ΣN] int32        piece.at [P + 1]      P first pieces (one a clip, as a rule)
    piece.<layer> [ΣN, H]
    tokens [ΣT] int32           tokens.at [Q + 1]     Q answers
    starts [Q]                  piece.of [Q]          where each answer begins, and behind whose first piece
    hidden.<layer> [Σ(T-1), H]                        begins at tokens.at[i] - i: an answer has one feature less
    top.ids, top.logits [ΣA, k] top.at [Q + 1]

Features are bfloat16, logits float32.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from crossdraft.errors import CrossdraftError

ID_BYTES, FEATURE_BYTES = 4, 2  # int32; bfloat16
OFFSET_BYTES = 8


@dataclass(frozen=True)
class Wanted:
    """What is kept of each answer.

    Args:
        layers: of the text behind the first piece; see `capture.layers`.
        visual_layers: of the first piece, which ends with the last visual token.
        top_k: how many of the target's likeliest tokens at every place of an answer.
        max_new_tokens: the longest answer.
    """

    layers: tuple[int, ...]
    visual_layers: tuple[int, ...] = ()
    top_k: int = 8
    max_new_tokens: int = 96

    def __post_init__(self) -> None:
        for name, value in (
            ("layers", len(self.layers)),
            ("top-k", self.top_k),
            ("max-new-tokens", self.max_new_tokens),
        ):
            if value < 1:
                raise CrossdraftError(f"--{name} asks for {value}; a capture needs at least 1.")


@dataclass(frozen=True)
class Told:
    """One answer.

    Args:
        tokens: [T] ids of the prompt's last piece, then of the answer.
        start: place of the answer's first token.
        hidden: layer -> [T - 1, H] bfloat16.
        top_ids, top_logits: [A, k], A = T - start: what each token of the answer was chosen from, likeliest first.
    """

    tokens: Tensor
    start: int
    hidden: Mapping[int, Tensor]
    top_ids: Tensor
    top_logits: Tensor


@dataclass(frozen=True)
class ClipRecord:
    """A prompt's first piece, and all that was told behind it.

    Args:
        visual_ids: [N] ids; N = 0 where the prompt has nothing visual.
        visual: layer -> [N, H] bfloat16.
    """

    visual_ids: Tensor
    told: tuple[Told, ...]
    visual: Mapping[int, Tensor] = field(default_factory=dict)


def piece_bytes(tokens: int, hidden_size: int, wanted: Wanted) -> int:
    """What a first piece takes on disk."""
    return OFFSET_BYTES + tokens * (ID_BYTES + FEATURE_BYTES * hidden_size * len(wanted.visual_layers))


def answer_bytes(text: int, answer: int, hidden_size: int, wanted: Wanted) -> int:
    """What an answer of `answer` tokens behind `text` tokens of the prompt takes on disk."""
    tokens = text + answer
    features = (tokens - 1) * FEATURE_BYTES * hidden_size * len(wanted.layers)
    return 2 * OFFSET_BYTES + 2 * ID_BYTES + tokens * ID_BYTES + features + answer * wanted.top_k * 2 * ID_BYTES


def merged(records: Iterable[ClipRecord]) -> list[ClipRecord]:
    """The records of one clip in order, neighbours with the same first piece as one."""
    found: list[ClipRecord] = []
    for record in records:
        if found and torch.equal(found[-1].visual_ids, record.visual_ids):
            found[-1] = replace(found[-1], told=found[-1].told + record.told)
        else:
            found.append(record)
    return found


def write_shard(path: Path, records: Sequence[ClipRecord], wanted: Wanted) -> None:
    """Write records to a file."""
    told = [answer for record in records for answer in record.told]
    owners = [piece for piece, record in enumerate(records) for _ in record.told]
    tensors = {
        "piece.ids": _joined([record.visual_ids for record in records], torch.int32),
        "piece.at": _offsets([len(record.visual_ids) for record in records]),
        "piece.of": torch.tensor(owners, dtype=torch.int64),
        "tokens": _joined([answer.tokens for answer in told], torch.int32),
        "tokens.at": _offsets([len(answer.tokens) for answer in told]),
        "starts": torch.tensor([answer.start for answer in told], dtype=torch.int64),
        "top.ids": _joined([answer.top_ids for answer in told], torch.int32),
        "top.logits": _joined([answer.top_logits for answer in told], torch.float32),
        "top.at": _offsets([len(answer.top_ids) for answer in told]),
    }
    for layer in wanted.visual_layers:
        tensors[f"piece.{layer}"] = _joined([record.visual[layer] for record in records], torch.bfloat16)
    for layer in wanted.layers:
        tensors[f"hidden.{layer}"] = _joined([answer.hidden[layer] for answer in told], torch.bfloat16)
    save_file(tensors, path)


@dataclass(frozen=True)
class Shard:
    """An opened file; tensors are read as they are asked for, and only the rows that are."""

    path: Path
    file: Any

    @classmethod
    def open(cls, path: Path) -> "Shard":
        """The shard in a file, nothing of it read but its table of contents.

        Raises:
            CrossdraftError: it is no safetensors file.
        """
        try:
            return cls(path, safe_open(path, framework="pt"))
        except (OSError, SafetensorError) as error:
            raise CrossdraftError(f"The shard {path} cannot be read ({error}); {MEND}.") from error

    def tokens(self, answer: int) -> Tensor:
        """[T] ids."""
        return self.rows("tokens", *self._token_span(answer)).long()

    def start(self, answer: int) -> int:
        """Place of the answer's first token."""
        return self._starts[answer]

    def hidden(self, answer: int, layer: int) -> Tensor:
        """[T - 1, H]."""
        first, last = self._token_span(answer)
        return self.rows(f"hidden.{layer}", first - answer, last - answer - 1)

    def top(self, answer: int) -> tuple[Tensor, Tensor]:
        """Ids and logits, [A, k]."""
        first, last = self._top_at[answer : answer + 2]
        return self.rows("top.ids", first, last).long(), self.rows("top.logits", first, last)

    def piece(self, answer: int, layer: int | None = None) -> Tensor:
        """What stands in front of an answer: ids [N], or features [N, H] of a layer."""
        first, last = self._piece_span(answer)
        return self.rows("piece.ids", first, last).long() if layer is None else self.rows(f"piece.{layer}", first, last)

    def piece_length(self, answer: int) -> int:
        """N of `piece`."""
        first, last = self._piece_span(answer)
        return last - first

    def rows(self, name: str, first: int, last: int) -> Tensor:
        """Rows of a tensor; nothing else of it is read."""
        return self.file.get_slice(name)[first:last]

    def _token_span(self, answer: int) -> tuple[int, int]:
        return self._tokens_at[answer], self._tokens_at[answer + 1]

    def _piece_span(self, answer: int) -> tuple[int, int]:
        owner = self._piece_of[answer]
        return self._piece_at[owner], self._piece_at[owner + 1]

    @cached_property
    def _tokens_at(self) -> list[int]:
        return self.file.get_tensor("tokens.at").tolist()

    @cached_property
    def _starts(self) -> list[int]:
        return self.file.get_tensor("starts").tolist()

    @cached_property
    def _top_at(self) -> list[int]:
        return self.file.get_tensor("top.at").tolist()

    @cached_property
    def _piece_at(self) -> list[int]:
        return self.file.get_tensor("piece.at").tolist()

    @cached_property
    def _piece_of(self) -> list[int]:
        return self.file.get_tensor("piece.of").tolist()


MEND = "run the same `crossdraft capture` again, which captures it and what follows anew"


def _joined(parts: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    return torch.cat([part.to(dtype) for part in parts]).contiguous()


def _offsets(lengths: Sequence[int]) -> Tensor:
    return torch.tensor([0, *lengths], dtype=torch.int64).cumsum(0)
