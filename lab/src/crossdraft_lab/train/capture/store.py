"""A capture on disk, for training: `index.json` and shards of whole clips (see `shard`)."""

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

import torch
from torch import Tensor

from crossdraft.errors import CrossdraftError
from crossdraft.heads.networks.train_batch import TrainBatch
from crossdraft_lab.objective import pad_batch
from crossdraft_lab.outputs import progress_bar
from crossdraft_lab.train.capture.plan import CaptureIndex, canonical, read_index
from crossdraft_lab.train.capture.shard import MEND, CapturedAnswer, Shard
from crossdraft_lab.train.core.provenance import sha256

OPEN = 16  # shards held open at a time


class CaptureStore:
    """A capture that is read lazily; answers are numbered in the order of the clips.

    Open one with `CaptureStore.open`.
    """

    def __init__(self, folder: Path, index: CaptureIndex) -> None:
        self.folder = folder
        self.index = index
        self._ends = list(accumulate(shard.answers for shard in index.shards))
        self._opened: OrderedDict[int, Shard] = OrderedDict()
        self._finite: set[tuple[tuple[int, ...], tuple[int, ...]]] = set()  # layers that were found to be finite

    @classmethod
    def open(cls, folder: str | Path, target: str | None = None) -> "CaptureStore":
        """Open the capture in a folder; its shards are checked for presence and size.

        Args:
            folder: folder of the capture.
            target: fingerprint (`load.target_fingerprint`) that the capture's target must have; `None` = any.

        Raises:
            CrossdraftError: no capture, a damaged index, a shard that is missing or cut off, or another target's.
        """
        store = cls(Path(folder), read_index(Path(folder)))
        for shard in store.index.shards:
            path = store.folder / shard.file
            if not path.is_file():
                raise CrossdraftError(f"The shard {path} is missing; {MEND}.")
            size = path.stat().st_size
            if size != shard.bytes:
                raise CrossdraftError(f"The shard {path} has {size} bytes instead of {shard.bytes}; {MEND}.")
        owner = store.index.owner
        if target is not None and owner.sha256 != target:
            raise CrossdraftError(
                f"The capture {store.folder} belongs to another target: '{owner.source}' with weights "
                f"{owner.sha256[:12]}…, not {target[:12]}…; capture anew with this target."
            )
        return store

    def __len__(self) -> int:
        """Number of answers."""
        return self._ends[-1] if self._ends else 0

    def check(self) -> None:
        """Read every byte of the shards.

        Raises:
            CrossdraftError: a shard differs from what was written.
        """
        for shard in self.index.shards:
            if sha256(self.folder / shard.file) != shard.sha256:
                raise CrossdraftError(
                    f"The shard {self.folder / shard.file} is damaged: its hash is not the one in the index; "
                    f"remove it, and {MEND}."
                )

    def answer(self, index: int, layers: Sequence[int] = (), visual_layers: Sequence[int] = ()) -> CapturedAnswer:
        """Read an answer with these features; negative layers count from the end.

        Raises:
            CrossdraftError: the layer or the answer has not been captured.
        """
        shard, number = self._at(index)
        return shard.answer(number, *self.require_layers(layers, visual_layers))

    def batch(self, indices: Sequence[int], layers: Sequence[int], visual_layers: Sequence[int] = ()) -> TrainBatch:
        """Read answers as one batch, as `collate` pads them; negative layers are stored under their positive number.

        Raises:
            CrossdraftError: as `answer` and `collate`.
        """
        return collate([self.answer(index, layers, visual_layers) for index in indices])

    def answer_tokens(self) -> Iterator[Tensor]:
        """Yield the ids [A] of each answer, without its prompt; no features are read."""
        for index in range(len(self)):
            answer = self.answer(index)
            yield answer.tokens[answer.start :]

    def answer_lengths(self) -> tuple[int, ...]:
        """Number of tokens of each answer, without its prompt; only offsets are read."""
        found = (self._at(index) for index in range(len(self)))
        return tuple(shard.answer_length(number) for shard, number in found)

    def piece_lengths(self) -> tuple[int, ...]:
        """Number of tokens of the prompt's first piece before each answer; only offsets are read."""
        found = (self._at(index) for index in range(len(self)))
        return tuple(shard.piece_length(number) for shard, number in found)

    def require_layers(
        self, layers: Sequence[int], visual_layers: Sequence[int]
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the text and the visual layers, counted from the embeddings.

        Raises:
            CrossdraftError: one of them has not been captured.
        """
        depth, spec = self.index.owner.depth, self.index.wanted
        text, visual = canonical(layers, depth), canonical(visual_layers, depth)
        for option, wanted, held in (("layers", text, spec.layers), ("visual-layers", visual, spec.visual_layers)):
            missing = sorted(set(wanted) - set(held))
            if missing:
                raise CrossdraftError(
                    f"The capture {self.folder} lacks layer {missing[0]} (it has --{option} "
                    f"{','.join(map(str, held))}); capture again with --{option} "
                    f"{','.join(map(str, sorted({*wanted, *held})))}, or let the head read layers that it has (its "
                    "recipe's config)."
                )
        return text, visual

    def require_finite(self, layers: Sequence[int], visual_layers: Sequence[int] = ()) -> None:
        """Check that every feature of these layers is finite; all are read, a part at a time and only once per store.

        Raises:
            CrossdraftError: a feature is NaN or infinite, or a layer has not been captured.
        """
        wanted = self.require_layers(layers, visual_layers)
        if wanted in self._finite:
            return
        with progress_bar() as bar:
            task = bar.add_task(f"checking the features of {self.folder.name}", total=len(self.index.shards))
            for number, shard in enumerate(self.index.shards):
                wrong = self._shard(number).not_finite(*wanted)
                if wrong is not None:
                    raise CrossdraftError(
                        f"Answer {self._ends[number] - shard.answers + wrong} of the capture {self.folder} has a "
                        "feature that is not finite (NaN or infinity); capture anew."
                    )
                bar.advance(task)
        self._finite.add(wanted)

    def _at(self, index: int) -> tuple[Shard, int]:
        """Return the shard of an answer, and the answer's number in it."""
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


def collate(answers: Sequence[CapturedAnswer]) -> TrainBatch:
    """Join B answers with the same layers into a batch in float32, padded on the right with zeros.

    Raises:
        CrossdraftError: with visual features, first pieces that differ in length.
    """
    visual_ids = None
    if answers[0].visual:
        if len({len(answer.visual_ids) for answer in answers}) > 1:
            raise CrossdraftError(
                "The clips of this batch have different numbers of visual tokens, which do not lie side by side; "
                "ask for answers about clips with equally many."
            )
        visual_ids = torch.stack([answer.visual_ids for answer in answers])
    layers, visual_layers = answers[0].hidden, answers[0].visual
    hidden = {layer: [answer.hidden[layer].float() for answer in answers] for layer in layers}
    visual = {layer: torch.stack([answer.visual[layer] for answer in answers]).float() for layer in visual_layers}
    batch = pad_batch([answer.tokens for answer in answers], [answer.start for answer in answers], hidden)
    return replace(batch, visual=visual, visual_ids=visual_ids)
