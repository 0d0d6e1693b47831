"""Integrity of a data set in its folder, and of an index: what is missing or broken, by file."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

from crossdraft.errors import CrossdraftError
from crossdraft_lab.datasets.catalogue import DATASETS, dataset_in, open_dataset
from crossdraft_lab.datasets.index import FILE, PairIndex
from crossdraft_lab.datasets.recorded import ClipPlan
from crossdraft_lab.datasets.sample import Problem, counted
from crossdraft_lab.datasets.split import leaks

MOST_PROBLEMS = 1000  # reported of one part


@dataclass(frozen=True, slots=True)
class DatasetCheck:
    """Result of checking the folder of a data set.

    Args:
        dataset: its name in the catalogue.
        title, licence: as the catalogue says.
        parts: how many annotation files or sequences there are.
        problems: with files; at most `MOST_PROBLEMS` of a part.
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
        """For people: what it is, under which licence, and each problem."""
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
    """Look at every file that the layout names. Nothing is written.

    Args:
        root: its folder.
        name: of the data set, where the layout does not say it.
        watch: sees the parts pass by, as a progress bar does.

    Raises:
        CrossdraftError: the folder holds no data set that is known, or nothing of it.
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
    """Look at an index: are its files there, was everything read, do its splits leak?

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
