"""The file of an experiment's runs: JSON, a line for each unit, appended when the unit is done.

A process that dies leaves whole lines, except perhaps the last one, which is dropped when the file is read.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar, cast

from crossdraft.errors import CrossdraftError
from crossdraft_lab.bench.experiments.record import UnitResult

C = TypeVar("C")
RUNS = "runs.jsonl"
LARGEST = 1 << 28  # bytes of a file that is read


@dataclass(frozen=True, slots=True)
class RunLine:
    """Line of the file: a unit's result, its configuration, its machine and its time."""

    experiment: str
    key: str
    config: Mapping[str, Any]
    seeds: Sequence[int]
    environment: Mapping[str, Any]
    seconds: float
    found: Mapping[str, Any]

    @property
    def result(self) -> UnitResult:
        """Result of the unit."""
        return UnitResult(self.key, tuple(self.seeds), self.found)


KEYS = {field.name for field in fields(RunLine)}


class RunsFile:
    """Reads and extends the file in an experiment's folder.

    Args:
        folder: the experiment's folder.
        name: the experiment's name.
        config: configuration with which the experiment runs now, a dataclass or a mapping.

    Raises:
        CrossdraftError: a line that is no run, runs of another experiment or another configuration, or a file that
            cannot be read.
    """

    def __init__(self, folder: Path, name: str, config: object) -> None:
        self.path = folder / RUNS
        self.name, self.config = name, plain(config)
        self.lines: list[RunLine] = []
        self._whole = 0  # bytes of whole lines
        if self.path.exists():
            self.lines, self._whole = read_lines(self.path)
            self._check()

    def _check(self) -> None:
        for line in self.lines:
            if line.experiment != self.name:
                raise CrossdraftError(
                    f"{self.path} holds runs of the experiment {line.experiment}, not of {self.name}; name another "
                    "folder."
                )
            changed = [key for key in {**self.config, **line.config} if self.config.get(key) != line.config.get(key)]
            if changed:
                raise CrossdraftError(
                    f"{self.path} holds runs of another configuration ({changed[0]} is {line.config.get(changed[0])}, "
                    f"now {self.config.get(changed[0])}); name another folder (--out), or move the file away."
                )

    @property
    def done(self) -> set[str]:
        """Keys of the units that have a result."""
        return {line.key for line in self.lines}

    def ordered(self, keys: Sequence[str]) -> list[RunLine]:
        """Lines of these units, in the order of the keys; units without a result are left out."""
        by_key = {line.key: line for line in self.lines}
        return [by_key[key] for key in keys if key in by_key]

    def append(self, line: RunLine) -> None:
        """Append a line and force it to the disk.

        Raises:
            CrossdraftError: there is no room, or no permission.
        """
        text = json.dumps(asdict(line), ensure_ascii=False, allow_nan=False) + "\n"
        try:
            with open(self.path, "ab") as file:
                if file.tell() > self._whole:  # a line that was cut off
                    file.truncate(self._whole)
                file.write(text.encode())
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise CrossdraftError(f"Cannot write {self.path}: {error.strerror}.") from error
        self._whole += len(text.encode())
        self.lines.append(line)


def read_lines(path: Path) -> tuple[list[RunLine], int]:
    """Read the lines of a file, and the number of bytes that they take; a last line that was cut off is left out.

    Raises:
        CrossdraftError: the file is too large or cannot be read, or a line before the last is none of ours.
    """
    content = read_whole(path)
    whole = content.rfind(b"\n") + 1
    lines = [_line(path, number, text) for number, text in enumerate(content[:whole].splitlines(), 1)]
    return lines, whole


def read_whole(path: Path) -> bytes:
    """Read a whole file that an experiment wrote.

    Raises:
        CrossdraftError: the file is too large, or cannot be read.
    """
    try:
        if path.stat().st_size > LARGEST:
            raise CrossdraftError(f"{path} is larger than {LARGEST >> 20} MiB; no experiment writes such a file.")
        return path.read_bytes()
    except OSError as error:
        raise CrossdraftError(f"Cannot read {path}: {error.strerror}.") from error


def _line(path: Path, number: int, text: bytes) -> RunLine:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise CrossdraftError(
            f"Line {number} of {path} is no JSON; move the file away, or begin anew with --force."
        ) from error
    if not isinstance(found, dict) or not set(cast("dict[str, Any]", found)) >= KEYS:
        raise CrossdraftError(f"Line {number} of {path} is no run of an experiment; move the file away.")
    row = cast("dict[str, Any]", found)
    values: dict[str, Any] = {name: row[name] for name in KEYS}
    values["seeds"] = tuple(row["seeds"])
    return RunLine(**values)


def plain(config: object) -> dict[str, Any]:
    """Configuration as JSON values, with lists for tuples."""
    return json.loads(json.dumps(config if isinstance(config, Mapping) else asdict(config)))  # pyright: ignore[reportArgumentType]


def typed(kind: type[C], values: Mapping[str, Any]) -> C:
    """Rebuild a configuration from the values that `plain` made of it.

    Raises:
        CrossdraftError: the values are of another version's configuration.
    """
    known = {field.name for field in fields(kind)}  # pyright: ignore[reportArgumentType]
    if set(values) != known:
        raise CrossdraftError("The runs are of another version's configuration; run the experiment again with --force.")
    return kind(**{name: _tuples(value) for name, value in values.items()})


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
