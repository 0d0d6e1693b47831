"""Notation that names a drafter, a rule or a compression: `event`, `memory:capacity=9`, `typical:eps=0.05`.

    spec  := name ["@" where] [":" part ("," part)*]  |  "(" spec ")" ["@" where]
    part  := spec  |  key "=" value ["@" where]
    where := "inline" | "process"

Brackets stand around a part that has commas of its own. `@process` runs a drafter in a process of its own, `@inline` in
the target's; without either the engine decides:

    phased:event,(union:event,memory)      event during the target's prefill, then the union of both
    union:event@process,memory@inline      each part where it is said to run
    (union:event,memory)@process           the whole union in one process of its own
    event:words=2@process                  after a setting: the drafter whose setting it is

Settings are the fields of a frozen dataclass, which says their types, defaults and limits.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from crossdraft.checks import did_you_mean
from crossdraft.errors import CrossdraftError

T = TypeVar("T")
RUNS_IN = ("inline", "process")
EXAMPLES = {
    "drafter": "event or union:event,memory",
    "acceptance rule": "greedy or typical:eps=0.05",
    "compression": "pool or fastv:keep=0.5",
}
BRACKETED = re.compile(r"\((.*)\)(?:@(\w+))?", re.DOTALL)


@dataclass(frozen=True)
class Spec:
    """A name, the specs that it joins, its settings as text, and where it runs (`None`: the engine decides)."""

    name: str
    parts: tuple["Spec", ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    runs_in: str | None = None

    @property
    def names(self) -> set[str]:
        """Every name in the spec."""
        return {self.name}.union(*(part.names for part in self.parts))

    @property
    def leaves(self) -> tuple["Spec", ...]:
        """The specs within this one that join no others."""
        return tuple(leaf for part in self.parts for leaf in part.leaves) or (self,)

    def __str__(self) -> str:
        if self.runs_in is not None:
            return f"{_as_part(replace(self, runs_in=None))}@{self.runs_in}"
        inner = [*map(_as_part, self.parts), *(f"{key}={value}" for key, value in self.settings.items())]
        return f"{self.name}:{','.join(inner)}" if inner else self.name


def parse(text: str, what: str = "drafter") -> Spec:
    """Read a spec; error messages call the thing that it names `what`.

    >>> str(parse("phased:event,(union:event,memory)")), parse("event:words=2@process").runs_in
    ('phased:event,(union:event,memory)', 'process')

    Raises:
        CrossdraftError: brackets that do not match, an empty part, a setting given twice, or an unknown `@` suffix.
    """
    text = text.strip()
    if found := BRACKETED.fullmatch(text):
        return _run_in(parse(found[1], what), found[2], text)
    head, colon, rest = text.partition(":")
    name, where = _without_suffix(head.strip(), known="/" in head)
    if not name:
        raise CrossdraftError(f"The {what} '{text}' lacks a name; write one such as {EXAMPLES[what]}.")
    if colon and not rest.strip():
        raise CrossdraftError(f"In the {what} '{text}' nothing follows the colon; leave it out, or go on.")
    if {"(", ")"} & set(name):
        raise CrossdraftError(f"The brackets of '{text}' do not match.")
    spec = _run_in(Spec(name), where, text)
    for piece in _pieces(rest) if colon else ():
        spec = _with_part(spec, piece, text, what)
    return spec


def _as_part(spec: Spec) -> str:
    return f"({spec})" if (spec.parts or spec.settings) and spec.runs_in is None else str(spec)


def _with_part(spec: Spec, piece: str, text: str, what: str) -> Spec:
    """The spec with one more setting or part."""
    key, equals, value = (side.strip() for side in piece.partition("="))
    if not piece:
        raise CrossdraftError(f"In the {what} '{text}' nothing stands beside a comma; name a {what} there.")
    if not (equals and key.isidentifier()):
        return replace(spec, parts=(*spec.parts, parse(piece, what)))
    if key in spec.settings:
        raise CrossdraftError(f"The {what} '{text}' sets {key} twice.")
    value, where = _without_suffix(value, known=True)
    return _run_in(replace(spec, settings={**spec.settings, key: value}), where, text)


def _without_suffix(text: str, *, known: bool) -> tuple[str, str | None]:
    """Split a text at its last `@`; with `known`, an unknown suffix stays part of the text."""
    rest, at, where = text.rpartition("@")
    return (rest.strip(), where) if at and (where in RUNS_IN or not known) else (text, None)


def _run_in(spec: Spec, where: str | None, text: str) -> Spec:
    """The spec, set to run at `where`; `text` is what the user wrote, for errors."""
    if where is None:
        return spec
    if where not in RUNS_IN:
        raise CrossdraftError(f"'{text}' asks for '@{where}'; write @process (a process of its own) or @inline.")
    if spec.runs_in is not None:
        raise CrossdraftError(f"'{text}' says twice where '{spec.name}' runs; say it once.")
    return replace(spec, runs_in=where)


def _pieces(text: str) -> list[str]:
    """Split at the commas outside of brackets."""
    pieces, depth = [""], 0
    for letter in text:
        depth += (letter == "(") - (letter == ")")
        if depth < 0:
            break
        if letter == "," and depth == 0:
            pieces.append("")
        else:
            pieces[-1] += letter
    if depth != 0:
        raise CrossdraftError(f"The brackets of '{text}' do not match.")
    return [piece.strip() for piece in pieces]


@dataclass(frozen=True)
class Limit:
    """A limit of a setting, in words and as a test of its value; stands in `Annotated[int, Limit(…)]`."""

    wanted: str
    holds: Callable[[Any], bool]


@dataclass(frozen=True)
class NoSettings:
    """Settings of a drafter, rule or compression that has none."""


Count = Annotated[int, Limit("a whole number of 1 or more", lambda value: value >= 1)]
Share = Annotated[float, Limit("a share above 0, at most 1", lambda value: 0 < value <= 1)]


def read_settings(kind: type[T], spec: Spec, what: str = "drafter") -> T:
    """Return a spec's settings as an instance of `kind`; missing settings keep their defaults.

    >>> @dataclass(frozen=True)
    ... class MemorySettings:
    ...     folder: str | None = None
    ...     capacity: Count = 200_000
    >>> read_settings(MemorySettings, parse("memory:capacity=9"))
    MemorySettings(folder=None, capacity=9)

    Raises:
        CrossdraftError: an unknown setting (the nearest is named), or a value that cannot be read or is out of range.
    """
    known = _readers(kind)
    values: dict[str, Any] = {}
    for key, text in spec.settings.items():
        if not known:
            raise CrossdraftError(f"The {what} '{spec.name}' has no settings; write just '{spec.name}'.")
        if key not in known:
            raise CrossdraftError(
                f"The {what} '{spec.name}' has no setting '{key}'{did_you_mean(key, known)}; its settings are: "
                f"{settings_text(kind())}."
            )
        read, limit = known[key]
        try:
            values[key] = read(text)
        except ValueError:
            raise CrossdraftError(_complaint(what, spec.name, key, text, limit)) from None
    settings = kind(**values)
    check_settings(settings, spec.name, what)
    return settings


def check_settings(settings: object, name: str, what: str) -> None:
    """Refuse a setting that is out of its limits; acceptance rules call it when they are made."""
    for key, (_, limit) in _readers(type(settings)).items():
        value = getattr(settings, key)
        if value is not None and not limit.holds(value):
            raise CrossdraftError(_complaint(what, name, key, value, limit))


def settings_text(settings: Any) -> str:
    """Write settings and their values as `longest=3,copied=10`; a setting that is `None` by its name alone."""
    values = {one.name: getattr(settings, one.name) for one in fields(settings)}
    return ",".join(key if value is None else f"{key}={value}" for key, value in values.items())


def _readers(kind: Any) -> dict[str, tuple[Callable[[str], Any], Limit]]:
    """The reader from text, and the limit, of each setting."""
    hints = get_type_hints(kind, include_extras=True)
    return {one.name: _reader(hints[one.name]) for one in fields(kind)}


def _reader(hint: Any) -> tuple[Callable[[str], Any], Limit]:
    if get_origin(hint) in (Union, UnionType):  # X | None: only the default is None
        (hint,) = (one for one in get_args(hint) if one is not type(None))
    limit = None
    if get_origin(hint) is Annotated:
        hint, limit = get_args(hint)
    if get_origin(hint) is Literal:
        words = get_args(hint)
        return str, Limit(f"one of {', '.join(words)}", words.__contains__)
    if get_origin(hint) is tuple:
        return _numbers, limit or Limit("whole numbers, such as 2+4", bool)
    wanted = {int: "a whole number", float: "a number"}.get(hint, "a word")
    return hint, limit or Limit(wanted, lambda value: True)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split("+")))


def _complaint(what: str, name: str, key: str, value: object, limit: Limit) -> str:
    return f"The {what} '{name}' got {key}={value}; {key} must be {limit.wanted}."
