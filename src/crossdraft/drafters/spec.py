"""What a user writes to name a drafter: `event`, `memory:capacity=100000`, `union:event,memory`.

    spec := name [":" part ("," part)*]
    part := key "=" value | spec | "(" spec ")"        brackets where the inner one has commas of its own

`phased:event,(union:event,memory)` drafts with `event` while hidden and with the union afterwards.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from crossdraft.errors import CrossdraftError


@dataclass(frozen=True)
class Spec:
    """A drafter by name, the drafters that it joins, and its settings, all still text."""

    name: str
    parts: tuple["Spec", ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def names(self) -> set[str]:
        """Every drafter that is named in it."""
        return {self.name}.union(*(part.names for part in self.parts))

    def __str__(self) -> str:
        inner = [f"({part})" if part.parts or part.settings else str(part) for part in self.parts]
        inner += [f"{key}={value}" for key, value in self.settings.items()]
        return f"{self.name}:{','.join(inner)}" if inner else self.name


def parse(text: str) -> Spec:
    """Read a spec.

    >>> str(parse("phased:event,(union:event,memory)"))
    'phased:event,(union:event,memory)'

    Raises:
        CrossdraftError: brackets that do not match, an empty part, or a setting given twice.
    """
    name, colon, rest = _bare(text).partition(":")
    if name.strip() and colon and not rest.strip():
        raise CrossdraftError(f"In the drafter '{text}' nothing follows the colon; leave it out, or go on.")
    if not name.strip():
        raise CrossdraftError(f"The drafter '{text}' lacks a name; write one such as event or union:event,memory.")
    if {"(", ")"} & set(name):
        raise CrossdraftError(f"The brackets of '{text}' do not match.")
    parts: list[Spec] = []
    settings: dict[str, str] = {}
    for piece in _pieces(rest) if colon else ():
        key, equals, value = piece.partition("=")
        if equals and key.isidentifier():
            if key in settings:
                raise CrossdraftError(f"The drafter '{text}' sets {key} twice.")
            settings[key] = value
        elif piece:
            parts.append(parse(piece))
        else:
            raise CrossdraftError(f"In the drafter '{text}' nothing stands beside a comma; name a drafter there.")
    return Spec(name.strip(), tuple(parts), settings)


def renamed(spec: Spec, names: Mapping[str, str]) -> Spec:
    """The same with other names for some."""
    return replace(spec, name=names.get(spec.name, spec.name), parts=tuple(renamed(part, names) for part in spec.parts))


def _bare(text: str) -> str:
    """Without the brackets around the whole."""
    text = text.strip()
    while text.startswith("(") and text.endswith(")") and _pieces(text) == [text]:
        text = text[1:-1].strip()
    return text


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
