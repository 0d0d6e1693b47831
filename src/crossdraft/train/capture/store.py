"""A capture on disk, for whoever learns from it: `index.json` and shards of whole clips; see `shard`."""

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from crossdraft.errors import CrossdraftError
from crossdraft.heads.networks.train_batch import TrainBatch
from crossdraft.train.capture.plan import Index, canonical, read_index
from crossdraft.train.capture.shard import MEND, Shard
from crossdraft.train.core.provenance import sha256


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


def batch_of(answers: Sequence[Excerpt], layers: Sequence[int], visual_layers: Sequence[int]) -> TrainBatch:
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
    return TrainBatch(
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


OPEN = 16  # shards held open at a time


class Store:
    """A capture that is read lazily; answers are numbered in the order of the clips.

    Open one with `Store.open`.
    """

    def __init__(self, folder: Path, index: Index) -> None:
        self.folder = folder
        self.index = index
        self._ends = list(accumulate(entry.answers for entry in index.shards))
        self._opened: OrderedDict[int, Shard] = OrderedDict()

    @classmethod
    def open(cls, folder: str | Path) -> "Store":
        """The capture in a folder; what can be seen of its shards from outside is checked.

        Raises:
            CrossdraftError: no capture, a damaged index, or a shard that is missing or cut off.
        """
        store = cls(Path(folder), read_index(Path(folder)))
        for entry in store.index.shards:
            path = store.folder / entry.file
            if not path.is_file():
                raise CrossdraftError(f"The shard {path} is missing; {MEND}.")
            size = path.stat().st_size
            if size != entry.bytes:
                raise CrossdraftError(f"The shard {path} has {size} bytes instead of {entry.bytes}; {MEND}.")
        return store

    def __len__(self) -> int:
        """Answers."""
        return self._ends[-1] if self._ends else 0

    def require(self, target: str) -> None:
        """Refuse to teach the answers of one target to a head of another; see `load.target_fingerprint`.

        Raises:
            CrossdraftError: the capture is another target's.
        """
        owner = self.index.owner
        if owner.sha256 != target:
            raise CrossdraftError(
                f"The capture {self.folder} belongs to another target: '{owner.source}' with weights "
                f"{owner.sha256[:12]}…, not {target[:12]}…; capture anew with this target."
            )

    def check(self) -> None:
        """Read every byte.

        Raises:
            CrossdraftError: a shard is not what was written.
        """
        for entry in self.index.shards:
            if sha256(self.folder / entry.file) != entry.sha256:
                raise CrossdraftError(
                    f"The shard {self.folder / entry.file} is damaged: its hash is not the one in the index; "
                    f"remove it, and {MEND}."
                )

    def lesson(self, indices: Sequence[int], layers: Sequence[int], visual_layers: Sequence[int] = ()) -> TrainBatch:
        """Answers side by side, padded on the right, float32.

        Args:
            indices: which answers, 0 … len - 1.
            layers, visual_layers: which features; negative ones count from the end, and the lesson has them under their
                own, positive number.

        Raises:
            CrossdraftError: a layer or an answer that has not been captured, or first pieces of different lengths.
        """
        layers, visual_layers = self.held(layers, visual_layers)
        return batch_of([_excerpt(*self._at(index)) for index in indices], layers, visual_layers)

    def top(self, indices: Sequence[int]) -> Top:
        """The target's likeliest next tokens, at the places of `lesson(indices, …)`."""
        found = (self._at(index) for index in indices)
        return top_of([(shard.start(answer), *shard.top(answer)) for shard, answer in found])

    def tokens(self) -> Iterator[Tensor]:
        """[A] ids of each answer, without its prompt: nothing else is read."""
        for index in range(len(self)):
            shard, answer = self._at(index)
            yield shard.tokens(answer)[shard.start(answer) :]

    def piece_lengths(self) -> tuple[int, ...]:
        """Length of the first piece, visual tokens and all, in front of each answer: nothing of it is read."""
        found = (self._at(index) for index in range(len(self)))
        return tuple(shard.piece_length(answer) for shard, answer in found)

    def _at(self, index: int) -> tuple[Shard, int]:
        """The shard of an answer, and its number there."""
        if not 0 <= index < len(self):
            raise CrossdraftError(f"The capture {self.folder} has answers 0 to {len(self) - 1}; there is no {index}.")
        number = bisect_right(self._ends, index)
        return self._shard(number), index - self._ends[number] + self.index.shards[number].answers

    def _shard(self, number: int) -> Shard:
        if number not in self._opened:
            self._opened[number] = Shard.open(self.folder / self.index.shards[number].file)
            if len(self._opened) > OPEN:
                self._opened.popitem(last=False)
        self._opened.move_to_end(number)
        return self._opened[number]

    def held(self, layers: Sequence[int], visual_layers: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """These layers, counted from the embeddings.

        Raises:
            CrossdraftError: one of them has not been captured.
        """
        depth, wanted = self.index.owner.depth, self.index.wanted
        text, visual = canonical(layers, depth), canonical(visual_layers, depth)
        self._refuse_missing("layers", text, wanted.layers)
        self._refuse_missing("visual-layers", visual, wanted.visual_layers)
        return text, visual

    def _refuse_missing(self, option: str, asked: tuple[int, ...], held: tuple[int, ...]) -> None:
        missing = sorted(set(asked) - set(held))
        if missing:
            raise CrossdraftError(
                f"The capture {self.folder} lacks layer {missing[0]} (it has --{option} {','.join(map(str, held))}); "
                f"capture again with --{option} {','.join(map(str, sorted({*asked, *held})))}, or let the head read "
                "layers that it has (its recipe's config)."
            )


def _excerpt(shard: Shard, answer: int) -> Excerpt:
    return Excerpt(
        shard.tokens(answer),
        shard.start(answer),
        partial(shard.hidden, answer),
        partial(shard.piece, answer),
        partial(shard.piece, answer),
    )
