"""`data:` addresses (RFC 2397), which hold a file themselves: `data:video/mp4;base64,…`.

An address may be as long as a body, so it is neither copied nor decoded in one call: from any thread, a call that holds
the interpreter's lock so long would stop the event loop.
"""

import base64
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from urllib.parse import unquote_to_bytes

MOST_URL = 1 << 12  # characters of an address of any other kind
MOST_SCHEME = 16  # characters
MOST_HEAD = 256  # characters in front of the comma
AT_ONCE = 1 << 17  # characters that are decoded in one call
STANDARD = bytes.maketrans(b"-_", b"+/")
WHITE_SPACE = b" \t\n\f\r"
SHOTS = "video/jpeg;base64"


def scheme_of(url: str) -> str:
    """An address's scheme in lower case; "" if it has none.

    >>> scheme_of("FILE:clip.mp4"), scheme_of("clip.mp4")
    ('file', '')
    """
    scheme, colon, _ = url[: MOST_SCHEME + 1].partition(":")
    return scheme.lower() if colon else ""


@dataclass(frozen=True, slots=True)
class DataUrl:
    """A file that is written in an address.

    Args:
        head: text in front of the comma, without `data:`.
        url: the whole address.
        start, end: bounds of the file within `url`.
    """

    head: str
    url: str = field(repr=False)
    start: int
    end: int

    @property
    def base64(self) -> bool:
        """True if the data is written as base64; else percent-encoded."""
        return self.head.lower().replace(" ", "").endswith(";base64")

    @property
    def quoted(self) -> bool:
        """True if a character of the data is written as `%41`, which takes much longer to decode."""
        return self.url.find("%", self.start, self.end) >= 0

    @property
    def length(self) -> int:
        """Number of characters to be decoded."""
        return self.end - self.start

    @property
    def nbytes(self) -> int:
        """Upper bound of the bytes of the file and the head."""
        return len(self.head) + (self.length * 3 // 4 if self.base64 else self.length)

    def shots(self) -> "list[DataUrl]":
        """The frames of `data:video/jpeg;base64,A,B,…`, several JPEG files as vLLM takes them; [] of anything else."""
        if self.head.lower() != SHOTS or self.url.find(",", self.start) < 0:
            return []
        found, start = list[DataUrl](), self.start
        while start <= self.end:
            end = self.url.find(",", start)
            end = self.end if end < 0 else end
            found.append(DataUrl(self.head, self.url, start, end))
            start = end + 1
        return found

    def decoded(self, at_once: int = AT_ONCE) -> Iterator[bytes]:
        """Decode the file piece by piece, from `at_once` characters each.

        Base64 may be broken into lines, lack its padding, use the letters of addresses (`-_` for `+/`), and have
        `%3D` for `=`.

        Raises:
            ValueError: the data is not encoded as its head says.
        """
        plain = map(unquote_to_bytes, self._pieces(at_once))
        return _from_base64(plain) if self.base64 else plain

    def _pieces(self, at_once: int) -> Iterator[str]:
        """The text, cut so that no `%41` is cut in two."""
        at = self.start
        while at < self.end:
            end = min(at + at_once, self.end)
            cut = self.url.rfind("%", max(at + 1, end - 2), end)
            end = cut if cut >= 0 and end < self.end else end
            yield self.url[at:end]
            at = end


def _from_base64(pieces: Iterable[bytes]) -> Iterator[bytes]:
    rest, ended = b"", False
    for piece in pieces:
        text = rest + piece.translate(STANDARD, WHITE_SPACE)
        whole = len(text) - len(text) % 4
        done, rest = text[:whole], text[whole:]
        if ended and text:
            raise ValueError("Something stands behind the padding.")
        if done:
            yield base64.b64decode(done, validate=True)
        ended = done.endswith(b"=")
    if ended and rest:
        raise ValueError("Something stands behind the padding.")
    if rest:
        yield base64.b64decode(rest + b"=" * (-len(rest) % 4), validate=True)


def data_url(url: str) -> DataUrl | None:
    """The file in a `data:` address; `None` if no comma ends the head, or the head is too long."""
    start = url.index(":") + 1
    comma = url.find(",", start, start + MOST_HEAD + 1)
    return None if comma < 0 else DataUrl(url[start:comma], url, comma + 1, len(url))
