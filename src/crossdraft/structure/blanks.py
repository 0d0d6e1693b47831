"""Blanks between the parts of JSON: taken out of an answer, learned from it, and put into text that must come.

A model writes its JSON in one style: `{"a":1}`, `{"a": 1, "b": 2}`, or a line for each member with an indent. What it
wrote between two parts is what it will write between two such parts again, a line's indent by the depth. Before it has
shown its style, each common one is drafted.
"""

from copy import copy
from dataclasses import dataclass

BLANKS = b" \n\r\t"
OPENING, CLOSING, PARTS = b"{[", b"}]", b"{}[],:"
LINE = b"\n"
STYLES = ("lines", "spaces", "none")

Pair = tuple[bytes, bytes, bytes]
"""The container that two neighbouring parts stand in, and both parts: one of `PARTS`, or empty for a value."""


@dataclass
class Place:
    """A place in a JSON text.

    Args:
        containers: those that are open.
        last: the last part's last byte; empty at the beginning.
        quoted, escaped: true in a string, and after its backslash.
    """

    containers: bytes = b""
    last: bytes = b""
    quoted: bool = False
    escaped: bool = False

    def pair(self, byte: bytes) -> Pair:
        """The parts before and after this place, if `byte` comes next."""
        return self.containers[-1:], self.last if self.last in PARTS else b"", byte if byte in PARTS else b""

    def depth(self, byte: bytes) -> int:
        """Containers that the part `byte` stands in; one that closes stands outside of its own."""
        return len(self.containers) - (byte in CLOSING)

    def push(self, byte: bytes) -> None:
        """Read a byte that is no blank between parts."""
        if self.quoted:
            self.quoted = self.escaped or byte != b'"'
            self.escaped = byte == b"\\" and not self.escaped
        elif byte == b'"':
            self.quoted = True
        elif byte in OPENING:
            self.containers += byte
        elif byte in CLOSING:
            self.containers = self.containers[:-1]
        self.last = byte


class Blanks:
    """The blanks of one answer.

    >>> blanks = Blanks()
    >>> blanks.push(b'{"a": "x y", ')
    b'{"a":"x y",'
    >>> blanks.spaced(b'"b":')
    [b'"b":']
    """

    def __init__(self) -> None:
        self._place = Place()
        self._since = b""  # blanks after the last part
        self._learned: dict[Pair, bytes] = {}  # `LINE` for a new line and its indent
        self._indent = b"  "

    def push(self, text: bytes) -> bytes:
        """Read more of the answer; returns it without the blanks between its parts."""
        dense = b""
        for byte in _each(text):
            if not self._place.quoted and byte in BLANKS:
                self._since += byte
                continue
            if not self._place.quoted and self._place.last:
                self._learn(byte)
            self._since = b""
            self._place.push(byte)
            dense += byte
        return dense

    def spaced(self, dense: bytes) -> list[bytes]:
        """A text that must come, with its blanks: once for each style that the answer may have."""
        return list(dict.fromkeys(self._spaced(dense, style) for style in STYLES))

    def _learn(self, byte: bytes) -> None:
        depth, (_, line, indent) = self._place.depth(byte), self._since.rpartition(LINE)
        if line and depth and indent:
            self._indent = indent[: max(1, len(indent) // depth)]
        self._learned[self._place.pair(byte)] = LINE if line else self._since

    def _spaced(self, dense: bytes, style: str) -> bytes:
        place, since, made = copy(self._place), self._since, b""
        for byte in _each(dense):
            if not place.quoted and place.last:
                gap = self._gap(place.pair(byte), style)
                if gap == LINE:
                    gap += self._indent * place.depth(byte)
                made += gap[len(since) :] if gap.startswith(since) else b""
            since = b""
            place.push(byte)
            made += byte
        return made

    def _gap(self, pair: Pair, style: str) -> bytes:
        """The blanks between two parts: as before, else in the style of such containers so far, else in `style`."""
        if (gap := self._learned.get(pair)) is not None:
            return gap
        seen = [(one, gap) for one, gap in self._learned.items() if one[0] == pair[0]]
        agreeing = {name: sum(_usual(one, name) == gap for one, gap in seen) for name in STYLES}
        return _usual(pair, max([style, *STYLES], key=agreeing.__getitem__))


def _usual(pair: Pair, style: str) -> bytes:
    """The blanks between two parts in a style."""
    _, last, following = pair
    opens, closes = last in (b"{", b"["), following in (b"}", b"]")
    if following in (b",", b":") or (opens and closes) or not (last or closes):
        return b""
    if last == b":":
        return b"" if style == "none" else b" "
    if style == "lines":
        return LINE
    return b" " if style == "spaces" and last == b"," else b""


def _each(text: bytes) -> list[bytes]:
    return [text[i : i + 1] for i in range(len(text))]
