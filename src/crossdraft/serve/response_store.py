"""Responses that later requests continue: in memory, bounded, each its client's own."""

from collections import Counter, OrderedDict
from dataclasses import dataclass
from threading import Lock

from crossdraft.serve.errors import ApiError

MOST_BYTES = 16 << 20  # of one client's responses with their conversations; the least recently used ones go first
MOST_RESPONSES = 256  # of one client
MOST_OF_ALL = 256 << 20  # bytes of all clients' responses


@dataclass(frozen=True)
class StoredResponse:
    """A response, and the messages of its conversation with the answer, both as JSON, so that their size is known."""

    body: bytes
    messages: bytes

    @property
    def size(self) -> int:
        """Bytes that count: at least as many as let a client have `MOST_RESPONSES`."""
        return max(len(self.body) + len(self.messages), MOST_BYTES // MOST_RESPONSES)


class ResponseStore:
    """The responses of all clients, for any thread."""

    def __init__(self) -> None:
        self._kept = OrderedDict[tuple[str, str], StoredResponse]()  # by owner and id
        self._held = Counter[str]()  # bytes of each client
        self._lock = Lock()

    def put(self, owner: str, found: str, response: StoredResponse) -> None:
        """Store a client's response by a new id, unless it alone is too large."""
        if response.size > MOST_BYTES:
            return
        with self._lock:
            self._kept[owner, found] = response
            self._held[owner] += response.size
            while self._held[owner] > MOST_BYTES:
                self._forget(next(key for key in self._kept if key[0] == owner))
            while self._held.total() > MOST_OF_ALL:
                self._forget(next(iter(self._kept)))

    def get(self, found: str, owner: str, *, previous: bool = False) -> StoredResponse:
        """Return a client's response, `previous` to one that is asked for.

        Raises:
            ApiError: the client has none of this id, or no longer: 404, or as OpenAI for a previous one 400.
        """
        with self._lock:
            if (owner, found) in self._kept:
                self._kept.move_to_end((owner, found))
                return self._kept[owner, found]
        status, code, param = (400, "previous_", "previous_response_id") if previous else (404, "", None)
        message = "There is no such response, or no longer; send its messages again."
        raise ApiError(status, message, f"{code}response_not_found", param)

    def delete(self, found: str, owner: str) -> None:
        """Forget a client's response; errors as `get`."""
        self.get(found, owner)
        with self._lock:
            self._forget((owner, found))

    def _forget(self, key: tuple[str, str]) -> None:
        self._held[key[0]] -= self._kept.pop(key).size
