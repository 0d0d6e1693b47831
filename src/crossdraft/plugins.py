"""Tables of records that other installed packages may add to, by entry points."""

import sys
from collections.abc import Iterator, Mapping, MutableMapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from typing import Generic, TypeVar

from crossdraft.errors import CrossdraftError

T = TypeVar("T")

LAB = "crossdraft-lab: pip install -e './lab[all]' in the checkout"  # it is not on PyPI


class Table(MutableMapping[str, T], Generic[T]):
    """Records by name: our own, those set at run time, and those of other installed packages.

    A record of another package is imported when it is looked up, or when the table is gone through.

    Args:
        group: group of entry points, each of which names the record of its own name.
        kind: the class of a record.
        what: the word for a record in errors.
        own: the package's own records, which an entry point never replaces.
        added: records set at run time.

    Raises:
        CrossdraftError: by a lookup, where a package names a record that cannot be loaded.
    """

    def __init__(
        self, group: str, kind: type[T], what: str, own: Mapping[str, T], added: dict[str, T] | None = None
    ) -> None:
        self.group, self.kind, self.what = group, kind, what
        self.own, self.added = dict(own), {} if added is None else added

    def __getitem__(self, name: str) -> T:
        for known in (self.added, self.own):
            if name in known:
                return known[name]
        if name not in self._points:
            raise KeyError(name)
        return self._loaded(self._points[name])

    def __contains__(self, name: object) -> bool:
        return name in self.own or name in self.added or name in self._points

    def __setitem__(self, name: str, record: T) -> None:
        self.added[name] = record

    def __delitem__(self, name: str) -> None:
        del self.added[name]

    def __iter__(self) -> Iterator[str]:
        return iter({**self.own, **self.added, **self._points})

    def __len__(self) -> int:
        return sum(1 for _ in self)

    @property
    def _points(self) -> dict[str, EntryPoint]:
        return _entry_points(self.group, tuple(sys.path))

    def _loaded(self, point: EntryPoint) -> T:
        try:
            found = point.load()
        except Exception as error:  # the package's import may raise anything
            raise CrossdraftError(
                f"The {self.what} '{point.name}' ({point.value}) cannot be loaded: {error}."
            ) from error
        if not isinstance(found, self.kind) or getattr(found, "name", point.name) != point.name:
            raise CrossdraftError(
                f"The entry point '{point.name}' of {self.group} must be the record of that {self.what}."
            )
        return found


def more_to_install() -> str:
    """A sentence on the package that brings more records; empty if that package is installed."""
    installed = find_spec("crossdraft_lab") is not None
    return "" if installed else f" More come with {LAB}."


@cache
def _entry_points(group: str, _path: tuple[str, ...]) -> dict[str, EntryPoint]:
    """Entry points by name; a package that is put on the path later is found."""
    return {point.name: point for point in sorted(entry_points(group=group), key=lambda point: point.name)}
