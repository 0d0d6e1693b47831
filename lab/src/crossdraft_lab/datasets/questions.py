"""Checks that refuse a question: no id of its own, no words, no valid text."""

import re
from collections.abc import Iterator
from typing import Self

from crossdraft_lab.datasets.on_disk import TextsOnDisk
from crossdraft_lab.datasets.sample import DatasetSample, Problem

HALVES = re.compile("[\ud800-\udfff]")  # of surrogate pairs


class QuestionCheck:
    """The questions of a part, one after another; their ids are on disk.

    Raises:
        CrossdraftError: there is no room for the ids.
    """

    def __init__(self) -> None:
        self._ids = TextsOnDisk("The ids of the questions cannot be compared")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._ids.close()

    def problems(self, sample: DatasetSample, path: str) -> Iterator[Problem]:
        """Yield the problems of a question of that file, among them an id that an earlier question has."""
        if (fault := fault_of(sample)) is not None:
            yield Problem(path, fault)
        # One about a file that is missing is not kept.
        if not sample.missing and not self._ids.add(sample.id):
            yield Problem(path, f"two questions have the id {sample.id!a}")


def fault_of(sample: DatasetSample) -> str | None:
    """Why a question cannot be asked, as a part of a sentence; `None` = it can."""
    if not sample.question.strip():
        return f"the question {sample.id!a} is empty"
    texts = (sample.id, sample.question, sample.sequence, sample.kept_together, sample.kind, *sample.answers)
    if HALVES.search(" ".join(texts)):
        return f"the question {sample.id!a}, or what belongs to it, is no text: it has half of a surrogate pair"
    return None
