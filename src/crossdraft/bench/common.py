"""What every bench and several commands share: lists of names, balanced orders, output files, tables.

Imports nothing heavy: a command refuses a bad file name before it loads a model.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import count, islice
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, TypeVar

from crossdraft.checks import did_you_mean, whole
from crossdraft.errors import CrossdraftError
from crossdraft.files import atomic_path

if TYPE_CHECKING:
    from rich.table import Table

T = TypeVar("T")


def listed(text: str | None) -> tuple[str, ...]:
    """The parts of a comma-separated list; none of `None`.

    >>> listed("hf, event")
    ('hf', 'event')
    """
    return tuple(part.strip() for part in text.split(",")) if text else ()


def numbers(option: str, text: str) -> tuple[float, ...]:
    """The numbers of a comma-separated list.

    >>> numbers("--temperatures", "0, 0.7")
    (0.0, 0.7)

    Raises:
        CrossdraftError: one of them is no number.
    """
    try:
        return tuple(float(part) for part in listed(text))
    except ValueError as error:
        raise CrossdraftError(f"{option} is '{text}', no list of numbers; write it as 0,1.") from error


def counts(option: str, text: str) -> tuple[int, ...]:
    """The whole numbers of a comma-separated list, one or more.

    >>> counts("--frames", "2, 8")
    (2, 8)

    Raises:
        CrossdraftError: one of them is no whole number, or below 1, or there is none.
    """
    try:
        found = tuple(whole(option, int(part)) for part in listed(text))
    except ValueError:
        found = ()
    if not found:
        raise CrossdraftError(f"{option} is '{text}', no list of whole numbers; write it as 1,4,16.")
    return found


def check_names(what: str, names: Sequence[str], known: Sequence[str], listed_by: str | None = None) -> None:
    """Refuse a name that is not known, and suggest the nearest that is.

    Args:
        what: they name.
        names, known: those that are given, and those that there are.
        listed_by: the command that lists those that there are, where they are too many for a sentence.

    Raises:
        CrossdraftError: the first name that is not known.
    """
    for name in names:
        if name not in known:
            others = f"choose among {', '.join(known)}" if listed_by is None else f"`{listed_by}` lists them"
            raise CrossdraftError(f"Unknown {what} '{name}'{did_you_mean(name, known)}; {others}.")


def check_each_once(what: str, names: Sequence[str]) -> None:
    """Refuse a list in which a name stands twice.

    Raises:
        CrossdraftError: it does.
    """
    if len(set(names)) != len(names):
        raise CrossdraftError(f"A {what} is named twice in {', '.join(names)}; name each once.")


def check_repeats(repeats: int, what: str = "pair") -> None:
    """Refuse fewer than one run.

    Raises:
        CrossdraftError: so few.
    """
    if repeats < 1:
        raise CrossdraftError(f"The number of repeats is {repeats}; run each {what} at least once.")


def orders(methods: Sequence[T], seed: int = 0, after: int = 0) -> Iterator[list[T]]:
    """Endless balanced orders, the same for the same seed: blocks of a Williams design, their rows shuffled.

    The first `after` of them are left out: a part of a measurement that runs by itself goes on behind the parts before.

    Over a block, each method is first, second … equally often, and follows each other one equally often: what a method
    leaves behind (warm caches, a hot core) helps or hurts all alike. Rows are shuffled so that they do not keep in step
    with the workload, whose kinds of question come in turn.
    """
    import numpy as np

    rng = np.random.default_rng(seed)
    rows = williams(len(methods))
    every = (rows[number] for _ in count() for number in rng.permutation(len(rows)))
    return ([methods[index] for index in row] for row in islice(every, after, None))


def williams(count: int) -> list[list[int]]:
    """Rows of a Williams design (1949): a Latin square in zigzag; with an odd number, its mirror image as well.

    >>> williams(4)
    [[0, 1, 3, 2], [1, 2, 0, 3], [2, 3, 1, 0], [3, 0, 2, 1]]
    """
    zigzag = [(step + 1) // 2 if step % 2 else -(step // 2) for step in range(count)]  # 0, 1, -1, 2, -2 …
    square = [[(start + step) % count for step in zigzag] for start in range(count)]
    return square if count % 2 == 0 else square + [row[::-1] for row in square]


def add_output_arguments(parser: argparse.ArgumentParser) -> None:
    """Where a command line's result goes: `json`, `json_out` and `force`, as the options of the other benches."""
    parser.add_argument("--json", action="store_true", help="JSON on stdout; the rest then goes to stderr")
    parser.add_argument("--json-out", type=Path, metavar="FILE", help="write the result as JSON into a file, too")
    parser.add_argument("--force", action="store_true", help="overwrite a file that exists")


def check_outputs(*paths: Path | None, force: bool) -> None:
    """Refuse a file before time is spent on what it should hold. No folder is made.

    Raises:
        CrossdraftError: its folder is missing or takes no files, it is a folder, or it exists and `force` is off.
    """
    for path in paths:
        if path is None:
            continue
        folder = path.absolute().parent
        if not folder.exists():
            raise CrossdraftError(f"There is no folder {folder}, where {path.name} was to go; make it first.")
        if path.is_dir() or not _takes_files(folder):
            raise CrossdraftError(f"Cannot write {path}; name a file in a folder that you may write to.")
        if path.exists() and not force:
            raise CrossdraftError(f"{path} exists; add --force to overwrite it, or name another file.")


def write_json(report: Mapping[str, object], path: Path | None, *, stdout: bool = False) -> None:
    """Write to a file, whole or not at all, and to standard output, where wanted."""
    if path is None and not stdout:
        return
    text = json.dumps(report, indent=1, default=_unknown, ensure_ascii=False) + "\n"
    if stdout:
        sys.stdout.write(text)
    if path is not None:
        with atomic_path(path) as temporary:
            temporary.write_text(text, encoding="utf-8")


def table(title: str | None, first: str, heads: Sequence[str], caption: str | None = None) -> "Table":
    """A table of figures without rows yet.

    Args:
        title: above it.
        first: head of the first column, which holds names; a long one goes on in the next line.
        heads: of the columns of figures; one with its interval goes on in the next line, at a space.
        caption: below it.
    """
    from rich import box
    from rich.table import Table

    made = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), caption=caption)
    made.add_column(first, overflow="fold")
    for head in heads:
        made.add_column(head, justify="right", overflow="fold")
    return made


def _takes_files(folder: Path) -> bool:
    """Tried out with a file without a name: permissions alone do not tell (read-only disks, /proc)."""
    try:
        with TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def _unknown(value: object) -> object:
    raise CrossdraftError(f"The report holds a {type(value).__name__}, which JSON cannot.")
