"""Training batches without a capture: the target answers while the head learns."""

from collections.abc import Sequence
from functools import lru_cache

from crossdraft.engine.target import Target
from crossdraft.heads.networks.train_batch import TrainBatch
from crossdraft.train.capture.clip import ClipSource, cycled, describe_cycled
from crossdraft.train.capture.plan import canonical
from crossdraft.train.capture.recorder import FeatureRecorder
from crossdraft.train.capture.shard import CapturedAnswer, CaptureSpec
from crossdraft.train.capture.store import collate
from crossdraft.train.core.dist import MicroBatch

CLIPS, BATCH = 8, 8  # clips kept in memory; answers decoded in one batch
FULL = MicroBatch()


class OnlineBatches:
    """The answers of an endless cycle through a source; a source of batches as `heads.batches.BatchSource`.

    What a step sees is a function of the step alone, to the last bit: the answers about a clip are written together and
    without memory of others.

    Args:
        layers, visual_layers: which features; negative ones count from the end.
        max_new_tokens: the longest answer.
        batch: answers decoded in one batch.
        keep: most clips whose answers are held in memory.
    """

    def __init__(
        self,
        target: Target,
        source: ClipSource,
        layers: Sequence[int],
        visual_layers: Sequence[int] = (),
        *,
        max_new_tokens: int = 96,
        batch: int = BATCH,
        keep: int = CLIPS,
    ) -> None:
        depth = target.text_config.num_hidden_layers
        spec = CaptureSpec(canonical(layers, depth), canonical(visual_layers, depth), max_new_tokens)
        self.source = source
        self.recorder = FeatureRecorder(target, spec, batch, learns=False)
        self._recorded = lru_cache(keep)(self._record)

    def batch(self, step: int, count: int, share: MicroBatch = FULL) -> TrainBatch:
        """The share's part of a step's `count` answers: step 0 has the source's first, and so on, round and round."""
        part = len(share.take(range(count)))
        positions = cycled(self.source, step * share.of + share.index, part)
        return collate([self._recorded(clip)[prompt] for clip, prompt in positions])

    def describe(self, step: int, count: int) -> str:
        """What a step learns from, for people."""
        return describe_cycled(step, count)

    def _record(self, clip: int) -> list[CapturedAnswer]:
        return self.recorder.record([self.source.read(clip)])[0]
