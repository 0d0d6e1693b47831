"""Lessons without a store: target and head side by side, the target asked as the head learns."""

from collections import OrderedDict
from collections.abc import Sequence

from crossdraft.engine.target import Target
from crossdraft.heads.networks.train_batch import TrainBatch
from crossdraft.train.capture.clip import Source, walk, waves
from crossdraft.train.capture.plan import canonical
from crossdraft.train.capture.recorder import Scribe
from crossdraft.train.capture.shard import ClipRecord, Told, Wanted, merged
from crossdraft.train.capture.store import Excerpt, Top, batch_of, top_of

CLIPS, BATCH = 8, 8  # clips kept in memory; answers written side by side


class Online:
    """The answers of an endless walk round a source, as lessons.

    What a step sees is a function of the step alone, to the last bit: the answers about a clip are written together and
    without memory of others.

    Args:
        layers, visual_layers: which features; negative ones count from the end.
        top_k, max_new_tokens: as in `record.Wanted`.
        keep: most clips held in memory.
    """

    def __init__(
        self,
        target: Target,
        source: Source,
        layers: Sequence[int],
        visual_layers: Sequence[int] = (),
        *,
        top_k: int = 8,
        max_new_tokens: int = 96,
        batch: int = BATCH,
        keep: int = CLIPS,
    ) -> None:
        depth = target.text_config.num_hidden_layers
        self.wanted = Wanted(canonical(layers, depth), canonical(visual_layers, depth), top_k, max_new_tokens)
        self.source = source
        self.batch = batch
        self.keep = keep
        self._scribe = Scribe(target, self.wanted, learns=False)
        self._told: OrderedDict[int, list[tuple[ClipRecord, Told]]] = OrderedDict()

    def lesson(self, step: int, count: int) -> TrainBatch:
        """`count` answers: those of step 0 are the source's first, and so on, round and round."""
        chosen = self._of_step(step, count)
        return batch_of([_excerpt(*one) for one in chosen], self.wanted.layers, self.wanted.visual_layers)

    def top(self, step: int, count: int) -> Top:
        """The target's likeliest next tokens, at the places of `lesson(step, count)`."""
        return top_of([(told.start, told.top_ids, told.top_logits) for _, told in self._of_step(step, count)])

    def _of_step(self, step: int, count: int) -> list[tuple[ClipRecord, Told]]:
        return [self._clip(clip)[prompt] for clip, prompt in walk(self.source, step, count)]

    def _clip(self, index: int) -> list[tuple[ClipRecord, Told]]:
        """The answers about a clip in the order of its prompts, each with what stands in front of it."""
        if index not in self._told:
            waved = waves([self.source.read(index)], self.batch)
            records = merged([record for wave in waved for record in self._scribe.write([c for _, c in wave])[0]])
            self._told[index] = [(record, told) for record in records for told in record.told]
            while len(self._told) > self.keep:
                self._told.popitem(last=False)
        self._told.move_to_end(index)
        return self._told[index]


def _excerpt(record: ClipRecord, told: Told) -> Excerpt:
    return Excerpt(
        told.tokens, told.start, told.hidden.__getitem__, lambda: record.visual_ids, record.visual.__getitem__
    )
