"""One bound on the bytes of media that all requests hold at a time: sent in them, fetched for them, decoded."""

from collections import Counter
from collections.abc import Hashable

from crossdraft.serve.errors import ApiError, overloaded


class MediaBudget:
    """The bytes of all requests.

    Args:
        most: that they may hold.
    """

    def __init__(self, most: int) -> None:
        self.most, self.held = most, 0
        self.holders = Counter[Hashable]()  # of each value, which counts once


class MediaShare:
    """What one request holds of a budget. Close it."""

    def __init__(self, budget: MediaBudget) -> None:
        self._budget = budget
        self._sizes: dict[Hashable, int] = {}
        self._size = 0  # their sum

    def hold(self, size: int, key: Hashable | None = None) -> None:
        """Hold so many bytes more; `key` is of a value that other requests may hold, too.

        Raises:
            ApiError: 413, the request alone has too many; 503, all requests have.
        """
        budget = self._budget
        key = object() if key is None else key
        if key in self._sizes:
            return
        if self._size + size > budget.most:
            raise ApiError(
                413,
                f"The request's media have more than {budget.most:,} bytes, the limit.",
                "media_too_large",
                "messages",
            )
        more = 0 if budget.holders[key] else size
        if budget.held + more > budget.most:
            raise overloaded("As many media are read as the server holds at a time; ask again later.", "media_full")
        self._sizes[key] = size
        self._size += size
        budget.held += more
        budget.holders[key] += 1

    def close(self) -> None:
        """Hold nothing more."""
        for key, size in self._sizes.items():
            self._budget.holders[key] -= 1
            if not self._budget.holders[key]:
                del self._budget.holders[key]
                self._budget.held -= size
        self._sizes.clear()
        self._size = 0
