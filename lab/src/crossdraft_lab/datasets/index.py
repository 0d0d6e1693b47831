"""An index of samples on disk: SQLite, written some thousand rows at a time; an interruption loses at most these.

Memory does not grow with the number of rows. A part of the data set that was read to its end is not opened again; one
that was interrupted continues behind the last row that was kept.
"""

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Self

from crossdraft.errors import CrossdraftError
from crossdraft_lab.datasets.recorded import relative
from crossdraft_lab.datasets.sample import DatasetReader, DatasetSample, fault_of, wording
from crossdraft_lab.folders import make_folder

FILE = "pairs.sqlite"
ROWS_AT_ONCE = 5000
VERSION = 1
SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS parts (
  name TEXT PRIMARY KEY, read INTEGER NOT NULL, missing INTEGER NOT NULL, done INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS samples (
  number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, part TEXT NOT NULL, sequence TEXT NOT NULL,
  kept_together TEXT NOT NULL, video TEXT, events TEXT, question TEXT NOT NULL, wording TEXT NOT NULL,
  answers TEXT NOT NULL, kind TEXT NOT NULL, start_s REAL, end_s REAL, split TEXT NOT NULL DEFAULT ''
);
"""
Watch = Callable[[Iterator[DatasetSample]], Iterator[DatasetSample]]
COLUMNS = (
    "id", "part", "sequence", "kept_together", "video", "events", "question", "wording", "answers", "kind", "start_s",
    "end_s",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class PairCounts:
    """Numbers of what an index holds.

    Args:
        samples: number of questions that can be asked.
        clips: number of different videos, or of recordings without video.
        groups: number of groups that a split keeps together.
        missing: number of questions whose files are missing.
        parts, open_parts: number of parts of the data set, and of parts that are not read to their end.
    """

    samples: int
    clips: int
    groups: int
    missing: int
    parts: int
    open_parts: int


class PairIndex:
    """The index in a folder; paths in it are relative to the folder.

    Raises:
        CrossdraftError: the index cannot be opened, or is not ours.
    """

    def __init__(self, folder: Path, *, create: bool = False) -> None:
        self.folder = folder
        path = folder / FILE
        if create:
            make_folder(folder)
        elif not path.is_file():
            raise CrossdraftError(f"{folder} holds no index of pairs ({FILE}); make one: crossdraft data pairs.")
        with self._errors():
            self._db = sqlite3.connect(path)
            if create:
                self._db.executescript(SCHEMA)
            self._db.execute("SELECT split FROM samples LIMIT 1")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._db.close()

    @property
    def meta(self) -> Mapping[str, Any]:
        """Metadata of the index: dataset, licence, settings, and later the split."""
        return {key: json.loads(value) for key, value in self.rows("SELECT key, value FROM meta")}

    def describe(self, **values: object) -> None:
        """Store plain values about the index in it."""
        with self._errors(), self._db:
            rows = [(key, json.dumps(value, sort_keys=True)) for key, value in values.items()]
            self._db.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", rows)

    def expect(self, **values: object) -> None:
        """Store these values in a new index, or compare them with those of an existing one.

        Raises:
            CrossdraftError: the existing index was made with other values.
        """
        known = self.meta
        for name, value in {"version": VERSION, **values}.items():
            if known and known.get(name) != json.loads(json.dumps(value)):
                raise CrossdraftError(
                    f"{self.folder / FILE} was made with {name} {known.get(name)!r}, not {value!r}; choose another "
                    "folder, or remove it."
                )
        if not known:
            self.describe(version=VERSION, **values)

    def begin(self, parts: Iterable[str]) -> None:
        """Register parts that are to be read; the index is incomplete until all of them are."""
        with self.writing() as db:
            db.executemany("INSERT OR IGNORE INTO parts VALUES (?, 0, 0, 0)", [(part,) for part in parts])

    def add(self, reader: DatasetReader, part: str, most: int | None = None, watch: Watch = iter) -> int:
        """Read the rest of a data set's part; return the number of its samples, including those of earlier runs.

        Args:
            reader: reader of the data set.
            part: name of the part.
            most: largest number of samples to read; the part then stays open.
            watch: wraps the iteration over samples, as a progress bar does.

        Raises:
            CrossdraftError: an error of the reader; samples read before are kept.
        """
        known = next(self.rows("SELECT read, missing, done FROM parts WHERE name = ?", part), (0, 0, 0))
        read, missing, done = known
        if done or (most is not None and read >= most):
            return read
        for some in _batches(_whole(watch(islice(reader.samples(part), read, most)), part)):
            read += len(some)
            missing += sum(bool(sample.missing) for sample in some)
            self._keep(part, [sample for sample in some if not sample.missing], (read, missing, 0))
        ended = most is None or read < most
        self._keep(part, [], (read, missing, int(ended)))
        return read

    def samples(self, split: str | None = None) -> Iterator[Mapping[str, Any]]:
        """Yield the samples of a split, or all, in the order in which they were read, as rows of the table."""
        names = (*COLUMNS, "split")
        where, values = ("", ()) if split is None else (" WHERE split = ?", (split,))
        for row in self.rows(f"SELECT {', '.join(names)} FROM samples{where} ORDER BY number", *values):  # noqa: S608
            yield _as_mapping(row, names)

    def sample(self, key: str) -> Mapping[str, Any] | None:
        """Return the sample of that id, as `samples` yields it, or `None`."""
        statement = f"SELECT {', '.join(COLUMNS)} FROM samples WHERE id = ?"  # noqa: S608 (our own names)
        row = next(self.rows(statement, key), None)
        return None if row is None else _as_mapping(row, COLUMNS)

    def counts(self) -> PairCounts:
        """Count samples, clips, groups and parts."""
        samples, clips, groups = next(
            self.rows(
                "SELECT COUNT(*), COUNT(DISTINCT COALESCE(video, events)), COUNT(DISTINCT kept_together) FROM samples"
            )
        )
        missing, parts, done = next(
            self.rows("SELECT COALESCE(SUM(missing), 0), COUNT(*), COALESCE(SUM(done), 0) FROM parts")
        )
        return PairCounts(samples, clips, groups, missing, parts, parts - done)

    def rows(self, statement: str, *values: object) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a query, one at a time."""
        with self._errors():
            # "yield from" would close the cursor even when its database is closed already.
            for row in self._db.execute(statement, values):  # noqa: UP028
                yield row

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Open a transaction of the database: all of its changes are kept, or none."""
        with self._errors(), self._db:
            yield self._db

    def _keep(self, part: str, samples: list[DatasetSample], state: tuple[int, int, int]) -> None:
        """Keep samples together with the state of their part, in one transaction."""
        marks = ", ".join("?" * len(COLUMNS))
        insert = f"INSERT INTO samples ({', '.join(COLUMNS)}) VALUES ({marks})"  # noqa: S608 (our own names)
        try:
            with self.writing() as db:
                db.executemany(insert, [self._row(part, sample) for sample in samples])
                db.execute("INSERT OR REPLACE INTO parts VALUES (?, ?, ?, ?)", (part, *state))
        except UnicodeEncodeError as error:  # in a field other than the question
            raise CrossdraftError(f"A sample of {part} is no text ({error}); mend its annotations.") from error
        except sqlite3.IntegrityError as error:
            raise CrossdraftError(
                f"{part}: two questions have the same id{self._twice(samples)}; mend its annotations, unless another "
                "process fills this index, too."
            ) from error

    def _twice(self, samples: list[DatasetSample]) -> str:
        """Return the first id that the index already holds; empty if there is none."""
        seen = set[str]()
        for sample in samples:
            if sample.id in seen or self.sample(sample.id) is not None:
                return f", {sample.id!a}"
            seen.add(sample.id)
        return ""

    def _row(self, part: str, sample: DatasetSample) -> tuple[object, ...]:
        video, events = (
            None if path is None else relative(path, self.folder) for path in (sample.video, sample.events)
        )
        return (
            sample.id, part, sample.sequence, sample.kept_together, video, events, sample.question,
            wording(sample.question), json.dumps(sample.answers, ensure_ascii=False), sample.kind, sample.start_s,
            sample.end_s,
        )  # fmt: skip

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Convert SQLite's errors into one sentence, except for rows that contradict each other."""
        try:
            yield
        except sqlite3.IntegrityError:
            raise
        except sqlite3.Error as error:
            raise CrossdraftError(
                f"The index {self.folder / FILE} cannot be used ({error}); if it is damaged, make it anew."
            ) from error


def _whole(samples: Iterator[DatasetSample], part: str) -> Iterator[DatasetSample]:
    for sample in samples:
        if (fault := fault_of(sample)) is not None:
            raise CrossdraftError(f"{part}: {fault}; mend its annotations.")
        yield sample


def _batches(samples: Iterator[DatasetSample]) -> Iterator[list[DatasetSample]]:
    """Yield batches of some thousand samples; those before a reader's error are yielded before it is raised."""
    some = list[DatasetSample]()
    try:
        for sample in samples:
            some.append(sample)
            if len(some) == ROWS_AT_ONCE:
                yield some
                some = []
    except CrossdraftError:
        if some:
            yield some
        raise
    if some:
        yield some


def _as_mapping(row: tuple[Any, ...], names: tuple[str, ...]) -> Mapping[str, Any]:
    found = dict(zip(names, row, strict=True))
    return {**found, "answers": json.loads(found["answers"])}
