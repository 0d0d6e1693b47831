"""How much disk a capture will need, said before it starts."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from crossdraft.errors import CrossdraftError
from crossdraft.train.capture.index import Index
from crossdraft.train.capture.plan import Plan
from crossdraft.train.capture.reading import read_prompts
from crossdraft.train.capture.record import answer_bytes, piece_bytes


@dataclass(frozen=True)
class Estimate:
    """What is still to be captured, and the room for it; answers are taken to be half as long as they may be.

    Args:
        done, clips: clips captured, and in all.
        needed, free: bytes.
    """

    folder: Path
    done: int
    clips: int
    needed: int
    free: int

    def sentence(self) -> str:
        """For people."""
        if self.done == self.clips:
            return f"{self.folder} holds all {self.clips} clips."
        before = f", {self.done} of {self.clips} clips are there" if self.done else ""
        return f"{self.folder} will take about {size(self.needed)} more{before}; {size(self.free)} are free."

    def refuse_unless_room(self) -> None:
        """Stop before anything is written.

        Raises:
            CrossdraftError: the disk is too small.
        """
        if self.needed > self.free:
            raise CrossdraftError(
                f"The capture needs about {size(self.needed)} in {self.folder}, where {size(self.free)} are free: "
                f"{size(self.needed - self.free)} lack; capture fewer clips, prompts or layers, or choose another disk."
            )


def estimate(folder: Path, plan: Plan, index: Index) -> Estimate:
    """From what is there already, if anything, else from the lengths of the first clip's prompts."""
    left = max(0, len(plan.source) - index.done)
    each = index.bytes / index.done if index.done else (_first_clip(plan) if left else 0)
    nearest = next(parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.exists())
    return Estimate(folder, index.done, len(plan.source), round(left * each), shutil.disk_usage(nearest).free)


def _first_clip(plan: Plan) -> float:
    """Bytes of the average clip, as far as the first one tells."""
    wanted, width = plan.wanted, plan.owner.hidden_size
    readings = read_prompts(plan.target, plan.source.read(0), wanted.max_new_tokens)
    questions = [question for reading in readings for question in reading.questions]
    answer = max(1, wanted.max_new_tokens // 2)
    told = sum(answer_bytes(len(question.last.tokens), answer, width, wanted) for question in questions)
    pieces = sum(piece_bytes(reading.shared, width, wanted) for reading in readings)
    return pieces + told / len(questions) * plan.source.answers / len(plan.source)


def size(count: float) -> str:
    """Bytes for people, in powers of ten.

    >>> size(1234567)
    '1.23 MB'
    """
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"
