"""Responses that later requests continue: in memory, bounded, each its client's own."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from crossdraft.serve.errors import ApiError
from crossdraft.serve.media_cache import MediaCache
from crossdraft.serve.schema import ChatMessage

MOST_BYTES = 16 << 20  # of one client's responses with their conversations; the least recently used ones go first
MOST_RESPONSES = 256  # of one client


@dataclass(frozen=True)
class StoredResponse:
    """A response, its conversation with the answer, and the bytes of both as JSON."""

    body: Mapping[str, object]
    messages: Sequence[ChatMessage]
    size: int


class ResponseStore:
    """The responses of all clients."""

    def __init__(self) -> None:
        self._clients = defaultdict[str, MediaCache[StoredResponse | None]](
            lambda: MediaCache(MOST_BYTES, lambda one: max(one.size if one else 0, MOST_BYTES // MOST_RESPONSES))
        )

    def put(self, owner: str, found: str, response: StoredResponse) -> None:
        """Store a client's response, unless it alone is too large."""
        self._clients[owner].put(found, response)

    def get(self, found: str, owner: str, param: str | None = None) -> StoredResponse:
        """Return a client's response.

        Raises:
            ApiError: 404, the client has none of this id, or no longer.
        """
        if (response := self._clients[owner].known(found)) is None:
            raise ApiError(
                404, "There is no such response, or no longer; send its messages again.", "response_not_found", param
            )
        return response

    def delete(self, found: str, owner: str) -> None:
        """Forget a client's response; errors as `get`."""
        self.get(found, owner)
        self._clients[owner].forget(found)
