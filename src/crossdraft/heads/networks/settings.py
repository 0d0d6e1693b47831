"""Of what kind a network's settings are: values from files and command lines, held against the fields they are for."""

from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from crossdraft.errors import CrossdraftError

WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a word", NoneType: "null"}


def fits(value: object, kind: Any) -> bool:
    """Whether a value is of a field's kind: a plain type, a choice, a tuple of any length, or one of several kinds.

    >>> fits(3, float), fits(True, int), fits((1, 2), tuple[int, ...] | None), fits("3", int)
    (True, False, True, False)
    """
    origin, args = get_origin(kind), get_args(kind)
    if origin in (UnionType, Union):
        return any(fits(value, one) for one in args)
    if origin is Literal:
        return value in args
    if origin is tuple:
        return isinstance(value, tuple) and all(fits(one, args[0]) for one in value)
    if isinstance(value, bool):  # Python counts it among the whole numbers
        return kind is bool
    return isinstance(value, int | float if kind is float else kind)


def told(kind: Any) -> str:
    """A kind in words.

    >>> told(tuple[int, ...] | None)
    'a list, each a whole number, or null'
    """
    origin, args = get_origin(kind), get_args(kind)
    if origin in (UnionType, Union):
        return ", or ".join(told(one) for one in args)
    if origin is Literal:
        return f"one of {', '.join(args)}"
    if origin is tuple:
        return f"a list, each {told(args[0])}"
    return WORDS[kind]


def at_least_one(number: int, what: str) -> int:
    """The number.

    Raises:
        CrossdraftError: it is below 1.
    """
    if number < 1:
        raise CrossdraftError(f"{what} must be 1 or more, not {number}.")
    return number
