"""Checks that refuse a question, and the tables on disk that they and joined answers need for millions of rows."""

import json
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Self

from crossdraft.errors import CrossdraftError
from crossdraft_lab.datasets.sample import DatasetSample, Problem, fault_of

CACHE_KIB = 16 << 10  # as much is in memory


class TextsOnDisk:
    """A table of texts by text, in a database without a name: SQLite removes it, however the process ends.

    Args:
        what: cannot be done where there is no room for it: the beginning of a sentence.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        # What is read from it may be a generator, which another thread may end than the one that began it.
        self._db = sqlite3.connect("", check_same_thread=False)
        try:
            with self._errors():
                self._db.executescript(f"PRAGMA journal_mode = OFF; PRAGMA cache_size = -{CACHE_KIB}")
                self._db.execute("CREATE TABLE texts (key TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID")
        except BaseException:
            self.close()
            raise

    def put(self, rows: Iterable[tuple[str, str]]) -> None:
        """Keep these; of several with one key the last.

        Raises:
            CrossdraftError: there is no room.
        """
        with self._errors():
            self._db.executemany("INSERT OR REPLACE INTO texts VALUES (?, ?)", map(_as_ascii, rows))

    def add(self, key: str) -> bool:
        """Keep a key; whether it is new.

        Raises:
            CrossdraftError: there is no room.
        """
        with self._errors():
            return self._db.execute("INSERT OR IGNORE INTO texts VALUES (?, ?)", _as_ascii((key, ""))).rowcount == 1

    def get(self, key: str) -> str | None:
        """Look up the text of a key.

        Raises:
            CrossdraftError: it cannot be read.
        """
        with self._errors():
            found = self._db.execute("SELECT value FROM texts WHERE key = ?", (json.dumps(key),)).fetchone()
        return None if found is None else json.loads(found[0])

    def close(self) -> None:
        """Remove the table."""
        self._db.close()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise CrossdraftError(
                f"{self._what} ({error}); free some room for temporary files, or name another place for them in "
                "SQLITE_TMPDIR."
            ) from error


def _as_ascii(row: tuple[str, str]) -> tuple[str, str]:
    """Both as JSON: SQLite takes no text with half a surrogate pair."""
    key, value = row
    return json.dumps(key), json.dumps(value)


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
