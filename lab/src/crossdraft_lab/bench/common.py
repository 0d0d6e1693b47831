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
