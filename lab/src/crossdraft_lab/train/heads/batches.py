"""Training batches: a pure function of the step, whatever the source of the answers."""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
import torch

from crossdraft.engine.target import Target
from crossdraft.errors import CrossdraftError
from crossdraft.heads.networks.train_batch import TrainBatch
from crossdraft_lab.train.capture.plan import canonical
from crossdraft_lab.train.capture.recorder import FeatureRecorder
from crossdraft_lab.train.capture.shard import CapturedAnswer, CaptureSpec
from crossdraft_lab.train.capture.sources import ClipSource
from crossdraft_lab.train.capture.store import CaptureStore, collate
from crossdraft_lab.train.core.dist import MicroBatch

CLIPS, ANSWERS = 8, 8  # clips kept in memory; answers decoded in one batch
FULL = MicroBatch()
POOL = 16  # batches whose answers are sorted by length together, so that there is little padding


class EpochSampler:
    """Numbers 0 … pool - 1 in an order that is drawn anew for each epoch from the seed."""

    def __init__(self, pool: int, seed: int) -> None:
        self.pool, self.seed = pool, seed

    def numbers(self, step: int, count: int) -> list[int]:
        """Return a step's numbers: `count` of them, or all if there are fewer."""
        count = min(count, self.pool)
        epoch, index = divmod(step, self.pool // count)
        drawn = np.random.default_rng([self.seed, epoch]).permutation(self.pool)
        return drawn[index * count : (index + 1) * count].tolist()


class StoredBatches:
    """Batches from a capture, in an order that is drawn anew for each epoch from the seed.

    With visual features, which are stacked, a batch is about clips that all have the same number of them.

    Args:
        store: the capture.
        layers, visual_layers: layers whose features are read.
        seed: seed of the order.
    """

    def __init__(
        self, store: CaptureStore, layers: Sequence[int], visual_layers: Sequence[int] = (), seed: int = 0
    ) -> None:
        self.store, self.seed = store, seed
        self.layers, self.visual_layers = tuple(layers), tuple(visual_layers)
        self._lengths = store.answer_lengths()
        self._sizes = store.piece_lengths() if self.visual_layers else (0,) * len(self._lengths)

    def batch(self, step: int, count: int, share: MicroBatch) -> TrainBatch:
        """The share's part of the step's `count` answers.

        Raises:
            CrossdraftError: there are fewer answers than shares.
        """
        indices = self.indices(step, count)
        if len(indices) < share.of:
            raise CrossdraftError(
                f"A step has {len(indices)} of optim.clips={count} answers, as the capture holds no more that can be "
                f"one batch, and they cannot be shared out among {share.of} passes; lower optim.accumulate or the "
                "number of processes, or capture more."
            )
        return self.store.batch(share.take(indices), self.layers, self.visual_layers)

    def describe(self, step: int, count: int) -> str:
        """Describe the data of a step in words."""
        return describe_answers(self.indices(step, count), self.store)

    def indices(self, step: int, count: int) -> list[int]:
        """Numbers of a step's answers."""
        batches = len(_order(self.seed, 0, count, self._lengths, self._sizes))
        epoch, index = divmod(step, batches)
        return _order(self.seed, epoch, count, self._lengths, self._sizes)[index]


@lru_cache(maxsize=4)
def _order(seed: int, epoch: int, count: int, lengths: tuple[int, ...], sizes: tuple[int, ...]) -> list[list[int]]:
    """Batches of an epoch: answers about clips of equal size and of similar length, otherwise in random order."""
    rng = np.random.default_rng([seed, epoch])
    drawn = rng.permutation(len(lengths)).tolist()
    batches: list[list[int]] = []
    for size in dict.fromkeys(sizes):
        alike = [index for index in drawn if sizes[index] == size]
        for start in range(0, len(alike), count * POOL):
            pool = sorted(alike[start : start + count * POOL], key=lengths.__getitem__)
            batches += [pool[i : i + count] for i in range(0, len(pool), count)]
    most = max(map(len, batches), default=0)  # less than `count` where no batch is whole
    whole = [batch for batch in batches if len(batch) == most]
    return [whole[i] for i in rng.permutation(len(whole))]


class OnlineBatches:
    """Batches without a capture: the target answers an endless cycle through a source while the head learns.

    The batch of a step depends on the step alone, bit for bit: the answers about a clip are generated together, without
    memory of other answers.

    Args:
        layers, visual_layers: layers whose features are read; negative ones count from the end.
        max_new_tokens: largest number of tokens of an answer.
        batch: number of answers decoded in one batch.
        keep: largest number of clips whose answers are held in memory.
    """

    def __init__(
        self,
        target: Target,
        source: ClipSource,
        layers: Sequence[int],
        visual_layers: Sequence[int] = (),
        *,
        max_new_tokens: int = 96,
        batch: int = ANSWERS,
        keep: int = CLIPS,
    ) -> None:
        depth = target.text_config.num_hidden_layers
        spec = CaptureSpec(canonical(layers, depth), canonical(visual_layers, depth), max_new_tokens)
        self.source = source
        self.recorder = FeatureRecorder(target, spec, batch, learns=False)
        self._recorded = lru_cache(keep)(self._record)

    def batch(self, step: int, count: int, share: MicroBatch = FULL) -> TrainBatch:
        """Make `share` of a step's `count` answers; steps take the source's answers in order, in an endless cycle."""
        part = len(share.take(range(count)))
        positions = cycled(self.source, step * share.of + share.index, part)
        return collate([self._recorded(clip)[prompt] for clip, prompt in positions])

    def describe(self, step: int, count: int) -> str:
        """Describe the data of a step in words."""
        return describe_cycled(step, count)

    def _record(self, clip: int) -> list[CapturedAnswer]:
        return self.recorder.record([self.source.read(clip)])[0]


BatchSource = StoredBatches | OnlineBatches
"""Answers of a target, step by step."""


def cycled(source: ClipSource, step: int, count: int) -> list[tuple[int, int]]:
    """(clip, question) of a step's `count` answers; steps take the source's answers in order, in an endless cycle."""
    numbers = range(step * count, (step + 1) * count)
    return [source.locate(number % source.answers) for number in numbers]


def describe_answers(numbers: Sequence[int], store: CaptureStore) -> str:
    """Describe answers of a capture by their numbers, for people."""
    return f"answers {', '.join(map(str, numbers))} of {store.folder}"


def describe_cycled(step: int, count: int) -> str:
    """Describe the answers of a step that cycles through clips, for people."""
    return f"answers {step * count} to {step * count + count - 1} of the cycle through its clips"


def add_noise(batch: TrainBatch, noise: float, seed: int, step: int, first: int = 0) -> TrainBatch:
    """Add uniform noise to a batch's features, in units of each layer's standard deviation (EAGLE-1).

    Every answer has its own random stream and deviation, so that its noise does not depend on the micro-batch of the
    step that it is in.

    Args:
        first: number of the batch's first answer among those of the step.
    """
    if not noise:
        return batch
    hidden = {layer: features.clone() for layer, features in batch.hidden.items()}
    for row, length in enumerate(batch.lengths.tolist()):
        generator = torch.Generator().manual_seed(hash((seed, step, first + row)) % 2**62)
        for layer in sorted(hidden):
            features = hidden[layer][row, : length - 1]  # behind it there are no features
            drawn = torch.rand(features.shape, generator=generator).to(features.device) * 2 - 1
            features += drawn * noise * features.std()
    return replace(batch, hidden=hidden)
