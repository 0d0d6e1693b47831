"""Work on an index of pairs: filling it from a data set, checking data set and index, writing its clips as a list."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby, islice
from pathlib import Path
from typing import Any

from crossdraft.errors import CrossdraftError
from crossdraft.files import atomic_path
from crossdraft_lab.datasets.catalogue import DATASETS, dataset_in, open_dataset
from crossdraft_lab.datasets.files import VIDEOS
from crossdraft_lab.datasets.index import FILE, PairIndex
from crossdraft_lab.datasets.recorded import ClipPlan
from crossdraft_lab.datasets.sample import DatasetReader, DatasetSample, Problem, counted
from crossdraft_lab.datasets.split import leaks

Bar = Callable[[Iterator[DatasetSample], str], Iterator[DatasetSample]]


@dataclass(frozen=True, slots=True)
class FilledParts:
    """Parts that could not be read, and parts without a sample.

    Args:
        broken: for each part, the reason that it could not be read to its end; samples read before are kept.
        empty: parts without a sample: recordings that are shorter than a clip, or have no events where frames are.
    """

    broken: Mapping[str, str]
    empty: tuple[str, ...]

    def to_json(self) -> dict[str, object]:
        """Plain values."""
        return {"broken": dict(self.broken), "empty": list(self.empty)}


def fill(
    index: PairIndex,
    reader: DatasetReader,
    parts: Sequence[str],
    most: int | None = None,
    bar: Bar = lambda samples, what: samples,
) -> FilledParts:
    """Read these parts, one after another.

    Args:
        index: index that keeps the samples.
        reader: reader of the data set.
        parts: names of the parts.
        most: largest number of samples of each part.
        bar: wraps the iteration over a part's samples, given the part's description.
    """
    index.begin(parts)
    broken, empty = dict[str, str](), list[str]()
    for number, part in enumerate(parts, 1):
        what = f"indexing {part} ({number} of {len(parts)})"
        try:
            given = index.add(reader, part, most, lambda samples, what=what: bar(samples, what))
        except CrossdraftError as error:
            broken[part] = str(error)
        else:
            empty += [] if given else [part]
    return FilledParts(broken, tuple(empty))


MOST_PROBLEMS = 1000  # problems that are reported of one part


@dataclass(frozen=True, slots=True)
class DatasetCheck:
    """Result of checking the folder of a data set.

    Args:
        dataset: name in the catalogue.
        title, licence: title and licence in the catalogue.
        parts: number of annotation files or sequences.
        problems: problems with files; at most `MOST_PROBLEMS` of a part.
    """

    dataset: str
    title: str
    licence: str
    parts: int
    problems: tuple[Problem, ...]

    def to_json(self) -> dict[str, object]:
        """Plain values."""
        return {**asdict(self), "problems": [asdict(problem) for problem in self.problems]}

    def lines(self) -> list[str]:
        """Lines for people: the data set, its licence, and each problem."""
        count = counted(self.parts, "part")
        found = counted(len(self.problems), "problem") if self.problems else "whole"
        return [
            f"{self.title}: {count}, {found}.",
            f"Licence: {self.licence}.",
            *(f"  {problem.path}: {problem.what}" for problem in self.problems),
        ]


def check_dataset(
    root: Path, name: str | None = None, watch: Callable[[Sequence[str]], Iterable[str]] = iter
) -> DatasetCheck:
    """Check every file that the layout names. Nothing is written.

    Args:
        root: folder of the data set.
        name: name of the data set, if the layout does not show it.
        watch: wraps the iteration over parts, as a progress bar does.

    Raises:
        CrossdraftError: the folder holds no known data set, or none of its files.
    """
    dataset = dataset_in(root, name)
    record, reader = DATASETS[dataset], open_dataset(root, dataset, ClipPlan())
    parts, problems = reader.parts(), list[Problem]()
    for part in watch(parts):
        try:
            problems += islice(reader.problems(part), MOST_PROBLEMS)
        except CrossdraftError as error:
            problems.append(Problem(part, str(error)))
    return DatasetCheck(dataset, record.title, record.licence, len(parts), tuple(problems))


def check_index(folder: Path) -> DatasetCheck:
    """Check an index: whether its files exist, whether all parts were read, and whether its splits leak.

    Raises:
        CrossdraftError: there is no index, or it is damaged.
    """
    with PairIndex(folder) as index:
        meta, counts = index.meta, index.counts()
        problems = [
            Problem(part, "was not read to its end; run crossdraft data pairs again")
            for (part,) in index.rows("SELECT name FROM parts WHERE done = 0")
        ]
        for column in ("video", "events"):
            statement = f"SELECT DISTINCT {column} FROM samples WHERE {column} IS NOT NULL"  # noqa: S608 (our names)
            gone = (path for (path,) in index.rows(statement) if not (folder / path).is_file())
            problems += [Problem(path, "the file is missing") for path in islice(gone, MOST_PROBLEMS)]
        problems += [Problem(FILE, f"the split leaks: {leak}") for leak in leaks(index)]
        held = f"{counted(counts.samples, 'question')} about {counted(counts.clips, 'clip')}"
        title = f"Index of {meta.get('dataset')}, {held}"
        return DatasetCheck(str(meta.get("dataset")), title, str(meta.get("licence")), counts.parts, tuple(problems))


MOST_QUESTIONS = 512  # questions in a line


def export(index: PairIndex, path: Path, split: str | None = None) -> tuple[int, int]:
    """Write the clips of a split, or all, as JSON lines; the file is whole or absent.

    A line holds `video`, `events` if there are any, `prompt` (the questions), and for the scoring of answers `answers`,
    `kinds`, `ids`, `sequence`, `dataset` and `licence`. Paths are relative to the index's folder. Questions about a
    clip that are not successive, or more than `MOST_QUESTIONS`, make several lines.

    Returns:
        Number of lines written, and number of clips left out because they have no video file.
    """
    meta = index.meta
    known = {"dataset": meta.get("dataset"), "licence": meta.get("licence")}
    written = left_out = 0
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        for video, rows in groupby(index.samples(split), key=lambda row: (row["video"], row["events"])):
            if video[0] is None or not video[0].lower().endswith(VIDEOS):
                left_out += any(True for _ in rows)
                continue
            while some := list(islice(rows, MOST_QUESTIONS)):
                file.write(json.dumps({**_line(some), **known}, ensure_ascii=False) + "\n")
                written += 1
    return written, left_out


def _line(rows: Sequence[Mapping[str, Any]]) -> dict[str, object]:
    """Line of the list with some questions about one clip."""
    about = {name: rows[0][name] for name in ("video", "events", "sequence", "start_s", "end_s")}
    return {
        **{name: value for name, value in about.items() if value is not None},
        "prompt": [row["question"] for row in rows],
        "answers": [row["answers"] for row in rows],
        "kinds": [row["kind"] for row in rows],
        "ids": [row["id"] for row in rows],
    }
