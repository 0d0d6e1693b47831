"""What a target said before it began to learn: the lessons of `joint`, scene by scene as they are wanted."""

from collections import OrderedDict

from crossdraft.engine.target import Target
from crossdraft.train.capture.online import CLIPS
from crossdraft.train.capture.record import Wanted
from crossdraft.train.capture.scribe import Scribe
from crossdraft.train.capture.sources import Clip, Source, walk, walked
from crossdraft.train.heads.asked import LONGEST
from crossdraft.train.heads.joint import Asked, Joint


class Said:
    """Prompts and answers of an endless walk round a source; those of a step are a function of the step alone.

    The target that is asked is the one that learns, with its additions off: so it need not be held twice.

    Args:
        target: an adapter over the model of `joint`.
        joint: what learns.
        source: what is asked; its answers are kept, and the prompts of the last `CLIPS` clips.
        count: answers of a step.
    """

    def __init__(self, target: Target, joint: Joint, source: Source, count: int) -> None:
        self.target, self.joint, self.source, self.count = target, joint, source, count
        wanted = Wanted((joint.head.config.num_layers,), top_k=1, max_new_tokens=LONGEST)
        self._scribe = Scribe(target, wanted, learns=False)
        self._answers: dict[int, list[list[int]]] = {}
        self._recent: OrderedDict[int, list[Asked]] = OrderedDict()

    def __call__(self, step: int) -> list[Asked]:
        """What a step learns from: step 0 from the source's first answers, and so on, round and round."""
        return [self._clip(clip)[prompt] for clip, prompt in walk(self.source, step, self.count)]

    def describe(self, step: int) -> str:
        """The same, for people."""
        return walked(step, self.count)

    def _clip(self, index: int) -> list[Asked]:
        if index not in self._recent:
            clip = self.source.read(index)
            if index not in self._answers:
                self._answers[index] = self._ask(clip)
            prompts = [self.target.prepare(request) for request in clip.requests(LONGEST)]
            self._recent[index] = list(zip(prompts, self._answers[index], strict=True))
            while len(self._recent) > CLIPS:
                self._recent.popitem(last=False)
        self._recent.move_to_end(index)
        return self._recent[index]

    def _ask(self, clip: Clip) -> list[list[int]]:
        with self.joint.before():
            records = self._scribe.write([clip])[0]
        return [told.tokens[told.start :].tolist() for record in records for told in record.told]
