"""Parts shared by every bench and several commands: lists of names, balanced orders, output files, tables.

Imports nothing heavy: a command refuses a bad file name before it loads a model.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

from crossdraft.checks import did_you_mean, whole
from crossdraft.errors import CrossdraftError

if TYPE_CHECKING:
    from rich.table import Table

T = TypeVar("T")


def listed(text: str | None) -> tuple[str, ...]:
    """The parts of a comma-separated list; empty for `None`.

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
        CrossdraftError: one of them is no whole number, or below 1, or the list is empty.
    """
    try:
        found = tuple(whole(option, int(part)) for part in listed(text))
    except ValueError:
        found = ()
    if not found:
        raise CrossdraftError(f"{option} is '{text}', no list of whole numbers; write it as 1,4,16.")
    return found


def check_names(what: str, names: Sequence[str], known: Sequence[str], listed_by: str | None = None) -> None:
    """Refuse an unknown name, and suggest the nearest known one.

    Args:
        what: kind of thing that the names stand for.
        names, known: names that are given, and names that exist.
        listed_by: command that lists the known names, where they are too many for a sentence.

    Raises:
        CrossdraftError: a name is unknown; the first one is reported.
    """
    for name in names:
        if name not in known:
            others = f"choose among {', '.join(known)}" if listed_by is None else f"`{listed_by}` lists them"
            raise CrossdraftError(f"Unknown {what} '{name}'{did_you_mean(name, known)}; {others}.")


def check_each_once(what: str, names: Sequence[str]) -> None:
    """Refuse a list in which a name stands twice.

    Raises:
        CrossdraftError: a name stands there twice.
    """
    if len(set(names)) != len(names):
        raise CrossdraftError(f"A {what} is named twice in {', '.join(names)}; name each once.")


def check_repeats(repeats: int, what: str = "pair") -> None:
    """Refuse fewer than one run.

    Raises:
        CrossdraftError: `repeats` is below 1.
    """
    if repeats < 1:
        raise CrossdraftError(f"The number of repeats is {repeats}; run each {what} at least once.")


def table(title: str | None, first: str, heads: Sequence[str], caption: str | None = None) -> "Table":
    """Create a table of figures that has no rows yet.

    Args:
        title: text above the table.
        first: head of the first column, which holds names; a long one goes on in the next line.
        heads: heads of the columns of figures; a figure with its interval goes on in the next line, at a space.
        caption: text below the table.
    """
    from rich import box
    from rich.table import Table

    made = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), caption=caption)
    made.add_column(first, overflow="fold")
    for head in heads:
        made.add_column(head, justify="right", overflow="fold")
    return made
