"""Checks of values that a user gives from Python or on the command line, each with one sentence of complaint."""

import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches
from ipaddress import ip_address
from itertools import count
from typing import Any, ClassVar, Self

from crossdraft.errors import CrossdraftError

LIVE = "live:"  # what the addresses of live sources begin with
MOST_SPANS, MOST_LETTERS = 8, 40  # of ranges of cores, and of letters, in a message


def whole(name: str, value: Any, least: int = 1) -> int:
    """Return `value` as an int of at least `least`; NumPy's whole numbers are allowed, truth values are not.

    Raises:
        CrossdraftError: `value` is no whole number, or too small.
    """
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise CrossdraftError(f"{name} is {_shown(value)}; it must be a whole number, such as {max(least, 1)}.")
    number = operator.index(value)
    if number < least:
        raise CrossdraftError(f"{name} is {number}; it must be at least {least}.")
    return number


def positive(name: str, value: Any) -> float:
    """Return `value` as a finite float above 0.

    Raises:
        CrossdraftError: `value` is no such number.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise CrossdraftError(f"{name} is {_shown(value)}; it must be a number above 0.")
    return float(value)


def text(name: str, value: Any, example: str) -> str:
    """Return `value`, which must be a string.

    Raises:
        CrossdraftError: `value` is something else.
    """
    if not isinstance(value, str):
        raise CrossdraftError(f"{name} is {_shown(value)}; give a string such as {example!r}.")
    return value


def choice(name: str, value: Any, known: Iterable[object]) -> Any:
    """Return `value`, which must be one of the known words.

    Raises:
        CrossdraftError: `value` is another word.
    """
    words = tuple(known)
    if value not in words:
        raise CrossdraftError(f"Unknown {name} '{value}'; choose one of {', '.join(map(str, words))}.")
    return value


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A hint to follow an unknown name: the nearest known name, or an empty text.

    >>> did_you_mean("memry", ("memory", "ngram"))
    " (did you mean 'memory'?)"
    """
    near = get_close_matches(name, list(known), 1)
    return f" (did you mean '{near[0]}'?)" if near else ""


def suggestion(name: str, known: Iterable[str], otherwise: str, prefix: str = "") -> str:
    """The end of a sentence about an unknown name: a hint at the nearest known name, else the text `otherwise`.

    >>> suggestion("learning_rte", ("learning_rate", "steps"), "known keys are …", "optim.")
    "did you mean 'optim.learning_rate'?"
    """
    near = get_close_matches(name, list(known), 1, cutoff=0.4)
    return f"did you mean '{prefix}{near[0]}'?" if near else otherwise


class NamedFields:
    """Base of dataclasses that refuse an unknown field in one sentence, which suggests the nearest name.

    `gone`: names that there were once, each with the rest of a sentence that says so.

    Raises:
        CrossdraftError: a keyword is the name of no field.
    """

    __slots__ = ()
    gone: ClassVar[Mapping[str, str]] = {}

    def __new__(cls, *values: Any, **named: Any) -> Self:
        """A new object, to be filled by `__init__`."""
        known = [one.name for one in fields(cls) if one.init]  # type: ignore[arg-type]
        for name in named:
            if name in cls.gone:
                raise CrossdraftError(f"{name} {cls.gone[name]}.")
            if name not in known:
                raise CrossdraftError(
                    f"{cls.__name__} has no '{name}'{did_you_mean(name, known)}; help(crossdraft.{cls.__name__}) lists "
                    "what it takes."
                )
        return super().__new__(cls)


def core_numbers(name: str, value: Any, allowed: Iterable[int], *, none: str = "all of them") -> tuple[int, ...] | None:
    """Read core numbers from text or a collection of whole numbers; `None`, described by `none`, stays `None`.

    Raises:
        CrossdraftError: `value` is neither, is empty, or names a core that is not `allowed`.
    """
    if value is None:
        return None
    usable = tuple(allowed)
    if isinstance(value, str):
        return parse_cores(value, usable)
    if isinstance(value, bytes) or not isinstance(value, Iterable):
        raise CrossdraftError(f"{name} is {_shown(value)}; give the numbers of cores, such as ({usable[0]},).")
    cores = tuple(whole(f"A core in {name}", core, least=0) for core in value)
    if not cores:
        raise CrossdraftError(f"{name} is empty; give the numbers of cores, or None for {none}.")
    absent = [core for core in cores if core not in usable]
    if absent:
        raise CrossdraftError(
            f"{name} names core {absent[0]}, but this process may use only {', '.join(map(str, usable))}."
        )
    return cores


def parse_cores(text: str, allowed: Sequence[int]) -> tuple[int, ...]:
    """Read core numbers such as `0`, `0,2` or `0-3`.

    Raises:
        CrossdraftError: the text is no list of numbers, or names a core that is not in `allowed`.
    """
    cores: set[int] = set()
    for part in text.split(","):
        first, last = _ends(part, text)
        cores.update(core for core in allowed if first <= core <= last)
        # Counted up from the first, so that a range of a billion cores is refused as soon as one is absent.
        absent = next(core for core in count(first) if core > last or core not in allowed)
        if absent <= last:
            raise CrossdraftError(
                f"'{_cut(text)}' names core {absent}, but this process may use only {spans(allowed)}."
            )
    return tuple(sorted(cores))


def spans(cores: Sequence[int]) -> str:
    """Core numbers for people: neighbours joined to ranges, a long list cut short.

    >>> spans((0, 1, 2, 5))
    '0-2, 5'
    """
    runs: list[list[int]] = []
    for core in sorted(cores):
        if runs and core == runs[-1][-1] + 1:
            runs[-1].append(core)
        else:
            runs.append([core])
    shown = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    more = f" … ({len(cores)} in all)" if len(shown) > MOST_SPANS else ""
    return ", ".join(shown[:MOST_SPANS]) + more


def _ends(part: str, text: str) -> tuple[int, int]:
    """First and last core of `3` or `0-3`."""
    found = re.fullmatch(r"([0-9]{1,18})(?:-([0-9]{1,18}))?", part.strip())
    first, last = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
    if first > last:
        raise CrossdraftError(f"'{_cut(text)}' is no list of cores; write it as 0, 0,2 or 0-3.")
    return first, last


def _cut(text: str) -> str:
    return text if len(text) <= MOST_LETTERS else f"{text[:MOST_LETTERS]}…"


def is_loopback(host: str) -> bool:
    """True if a host name or address is of this machine alone.

    >>> [is_loopback(one) for one in ("localhost", "127.0.0.2", "::1", "0.0.0.0", "", "example.org")]
    [True, True, True, False, False, False]
    """
    return host == "localhost" or (is_address(host) and ip_address(host).is_loopback)


def is_live(source: object) -> bool:
    """True if a text or path names a live source, not a file."""
    return str(source).startswith(LIVE)


def is_address(host: str) -> bool:
    """True if a host is an IP address, not a name."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def described(value: Any, array: Any = None) -> str:
    """Describe a value for an error message: its type, and of an array its dtype and its shape.

    Args:
        array: the array made of `value`, if that is no array itself.

    >>> described([[1, 2], [3]])
    'a list'
    """
    name = type(value).__name__
    shown = f"{'an' if name[:1] in 'aeio' or name == 'ndarray' else 'a'} {name}"
    array = value if array is None else array
    if not hasattr(array, "dtype") or getattr(array, "is_nested", False):  # a nested tensor has no shape
        return shown
    return f"{shown} of {str(array.dtype).removeprefix('torch.')} {list(array.shape)}"


def _shown(value: object) -> str:
    """A value as it stands in an error message: short, with its type where that is not plain."""
    shown = repr(value)
    if len(shown) > 60:
        shown = f"{shown[:60]}…"
    return shown if isinstance(value, str | int | float | None) else f"{shown} (a {type(value).__name__})"
