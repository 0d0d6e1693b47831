"""One question about one clip of a data set, with the answers that count as right."""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from crossdraft.errors import CrossdraftError

HALVES = re.compile("[\ud800-\udfff]")  # halves of surrogate pairs


@dataclass(frozen=True, slots=True)
class DatasetSample:
    """A question about a clip.

    Args:
        id: key that is unique within the data set.
        sequence: the recording or video that the clip is part of.
        question: plain text, without a model's placeholders.
        answers: right answers; empty where the data set has none.
        video, events: files of the clip; `None` where the data set has none of that kind.
        start_s, end_s: start and end of the clip within its group, in seconds; `None` where the layout does not say.
        kind: kind of question, in the data set's own terms.
        group: name of the drive or the source video, which a split must not divide; the sequence if empty.
        missing: name of a file in the annotations that does not exist; such a sample cannot be asked.
    """

    id: str
    sequence: str
    question: str
    answers: tuple[str, ...] = ()
    video: Path | None = None
    events: Path | None = None
    start_s: float | None = None
    end_s: float | None = None
    kind: str = ""
    group: str = ""
    missing: str = ""

    @property
    def kept_together(self) -> str:
        """The group that a split must not divide."""
        return self.group or self.sequence


@dataclass(frozen=True, slots=True)
class Problem:
    """A fault in a file of a data set."""

    path: str
    what: str


class DatasetReader(ABC):
    """A data set in its own layout. Only one part's table of names is held in memory.

    Args:
        paths: paths of the parts that are read one after another: annotation files, or sequences.
        lacking: error message if there are no parts.
        shows: kinds of file that a question is about, for `problems`.

    Raises:
        CrossdraftError: there are no parts.
    """

    def __init__(self, paths: Mapping[str, Path], lacking: str, shows: str = "recording") -> None:
        if not paths:
            raise CrossdraftError(lacking)
        self.paths, self._shows = paths, shows

    def parts(self) -> list[str]:
        """Names of the parts."""
        return sorted(self.paths)

    @abstractmethod
    def samples(self, part: str) -> Iterator[DatasetSample]:
        """Yield the samples of a part, in the same order at every call.

        Raises:
            CrossdraftError: an annotation or a recording cannot be read.
        """

    def problems(self, part: str) -> Iterator[Problem]:
        """Yield missing or broken files of a part; nothing if the part is whole."""
        last = ""
        for sample in self.samples(part):
            if sample.missing and sample.missing != last:
                last = sample.missing
                yield Problem(sample.missing, f"the {self._shows} is missing")
            if (fault := fault_of(sample)) is not None:
                yield Problem(part, fault)


def fault_of(sample: DatasetSample) -> str | None:
    """Reason that a question cannot be asked, as a part of a sentence; `None` if it can be asked."""
    if not sample.question.strip():
        return f"the question {sample.id!a} is empty"
    texts = (sample.id, sample.question, sample.sequence, sample.kept_together, sample.kind, *sample.answers)
    if HALVES.search(" ".join(texts)):
        return f"the question {sample.id!a}, or what belongs to it, is no text: it has half of a surrogate pair"
    return None


def wording(question: str) -> str:
    """Normalised wording of a question: capitals, punctuation and spaces make no difference.

    >>> wording("What is  ahead?") == wording("what is ahead")
    True
    """
    return " ".join(re.findall(r"[^\W_]+", question.casefold()))


def counted(number: int, what: str) -> str:
    """Number with the name of the things that it counts.

    >>> counted(1, "question"), counted(1200, "clip")
    ('1 question', '1,200 clips')
    """
    return f"{number:,} {what}{'' if number == 1 else 's'}"
