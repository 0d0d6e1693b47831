"""The tokens that the target has committed, and a digest of every prefix of them."""

import hashlib
from collections.abc import Sequence

from crossdraft.edge.frames import DIGEST_BYTES


class Committed:
    """An answer so far. Digests are chained, starting from the session, so that none matches another answer's.

    >>> one, other = Committed(b"session"), Committed(b"session")
    >>> one.add((5, 6)), other.add((5,)), other.add((6,))
    (None, None, None)
    >>> one.digest() == other.digest(2), one.digest(1) == one.digest(2)
    (True, False)
    """

    def __init__(self, session: bytes) -> None:
        self.tokens: list[int] = []
        self._digests = [hashlib.blake2b(session, digest_size=DIGEST_BYTES).digest()]

    def __len__(self) -> int:
        return len(self.tokens)

    def add(self, tokens: Sequence[int]) -> None:
        """Append the tokens that were committed next."""
        for token in tokens:
            link = self._digests[-1] + token.to_bytes(4, "little", signed=True)
            self._digests.append(hashlib.blake2b(link, digest_size=DIGEST_BYTES).digest())
        self.tokens += tokens

    def digest(self, length: int | None = None) -> bytes:
        """Digest of the first `length` tokens; of all of them by default."""
        return self._digests[len(self.tokens) if length is None else length]

    def agrees(self, length: int, digest: bytes) -> bool:
        """True if there are at least `length` tokens, and the first `length` have this digest."""
        return length <= len(self.tokens) and self._digests[length] == digest

    def copy(self) -> "Committed":
        """Copy the answer; the copy grows independently."""
        made = Committed(b"")
        made.tokens, made._digests = [*self.tokens], [*self._digests]
        return made
