"""A limit on the bytes of media that all requests hold at a time: sent in them, fetched for them, decoded."""

from collections import Counter
from collections.abc import Callable, Hashable

from crossdraft.serve.errors import ApiError, overloaded


class MediaBudget:
    """Bytes of media that all requests together hold.

    Args:
        most: largest number of bytes that they may hold.
    """

    def __init__(self, most: int) -> None:
        self.most, self.held = most, 0
        self.holders = Counter[Hashable]()  # requests that hold each value, which counts once


class MediaShare:
    """Bytes of media that one request holds of a budget. Close it after the request."""

    def __init__(self, budget: MediaBudget) -> None:
        self._budget = budget
        self._sizes: dict[Hashable, int] = {}
        self._size = 0  # sum of the bytes

    def hold(self, size: int, key: Hashable | None = None) -> None:
        """Hold `size` more bytes; `key` names a value that other requests may hold, too.

        Raises:
            ApiError: 413, this request alone holds too many bytes; 503, all requests together do.
        """
        key = object() if key is None else key
        if key in self._sizes:
            return
        self._take(size, 0 if self._budget.holders[key] else size)
        self._sizes[key] = size
        self._budget.holders[key] += 1

    def growing(self) -> Callable[[int], None]:
        """Return a function that holds more bytes of one value as they arrive; errors as `hold`."""
        key = object()
        self.hold(0, key)

        def grow(size: int) -> None:
            self._take(size, size)
            self._sizes[key] += size

        return grow

    def _take(self, size: int, more: int) -> None:
        """Add bytes to this request's count, and `more` to that of all requests."""
        budget = self._budget
        if self._size + size > budget.most:
            raise ApiError(
                413,
                f"The request's media have more than {budget.most:,} bytes, the limit.",
                "media_too_large",
                "messages",
            )
        if budget.held + more > budget.most:
            raise overloaded("As many media are read as the server holds at a time; ask again later.", "media_full")
        self._size += size
        budget.held += more

    def close(self) -> None:
        """Release all bytes that the request holds."""
        for key, size in self._sizes.items():
            self._budget.holders[key] -= 1
            if not self._budget.holders[key]:
                del self._budget.holders[key]
                self._budget.held -= size
        self._sizes.clear()
        self._size = 0
