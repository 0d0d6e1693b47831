"""Texts by text on disk, for what may be millions of rows."""

import json
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from crossdraft.errors import CrossdraftError

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
