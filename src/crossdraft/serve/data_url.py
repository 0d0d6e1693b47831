"""`data:` addresses (RFC 2397), which hold a file themselves: `data:video/mp4;base64,…`.

One may be as long as a body. So it is neither copied nor decoded as a whole: a call that holds the interpreter's lock
for that long would stop the event loop from any thread.
"""

import base64
from collections.abc import Iterator
from dataclasses import dataclass, field
from urllib.parse import unquote_to_bytes

MOST_URL = 1 << 12  # characters of an address of any other kind
MOST_SCHEME = 16  # characters
MOST_HEAD = 256  # characters in front of the comma
AT_ONCE = 1 << 17  # characters that are decoded in one call, a multiple of 4
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
        head: what stands in front of the comma, without `data:`.
        url: the whole address.
        start, end: where in it the file stands.
    """

    head: str
    url: str = field(repr=False)
    start: int
    end: int

    @property
    def base64(self) -> bool:
        """Whether it is written as base64; else percent-encoded."""
        return self.head.lower().endswith(";base64")

    @property
    def length(self) -> int:
        """Characters of what is to be decoded."""
        return self.end - self.start

    @property
    def nbytes(self) -> int:
        """Bytes of the file and of the head, at most."""
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
        """The file, piece by piece; `at_once` is a multiple of 4.

        Raises:
            ValueError: it is not written as its head says.
        """
        at = self.start
        while at < self.end:
            end = min(at + at_once, self.end)
            if not self.base64:  # no `%41` is cut in two
                cut = self.url.rfind("%", max(at + 1, end - 2), end)
                end = cut if cut >= 0 and end < self.end else end
            text = self.url[at:end]
            if self.base64 and end < self.end and text.endswith("="):
                raise ValueError("Padding stands in the midst of it.")
            yield base64.b64decode(text, validate=True) if self.base64 else unquote_to_bytes(text)
            at = end


def data_url(url: str) -> DataUrl | None:
    """The file in a `data:` address; `None` if no comma ends its head, or that is too long."""
    start = url.index(":") + 1
    comma = url.find(",", start, start + MOST_HEAD + 1)
    return None if comma < 0 else DataUrl(url[start:comma], url, comma + 1, len(url))
