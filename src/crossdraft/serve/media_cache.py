"""Cache of values that requests share: each is made once, even if several ask for it at a time."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Hashable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")


@dataclass(slots=True)
class _Making(Generic[T]):
    """A value that is being made, and the number of callers that wait for it."""

    task: "asyncio.Task[T]"
    waiting: int = 0


class MediaCache(Generic[T]):
    """Values by key, the least recently used ones forgotten. For one event loop.

    Args:
        most: largest sum of the sizes of all values.
        size: function that returns a value's size.
    """

    def __init__(self, most: int, size: Callable[[T], int]) -> None:
        self._most, self._size = most, size
        self._values: OrderedDict[Hashable, T] = OrderedDict()
        self._making: dict[Hashable, _Making[T]] = {}
        self.held = 0

    def known(self, key: Hashable) -> T | None:
        """Return the value if it is cached, else `None`."""
        if key in self._values:
            self._values.move_to_end(key)
        return self._values.get(key)

    async def get(self, key: Hashable, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return the value of a key; make it if it is missing. Making stops when all its callers are cancelled.

        The last caller to be cancelled waits until the making has ended, so that its slot stays taken.
        """
        while (value := self.known(key)) is None:
            making, first = self._making.get(key), False
            if making is None:
                making, first = _Making(asyncio.get_running_loop().create_task(make())), True
                making.task.add_done_callback(lambda done: self._keep(key, done))
                self._making[key] = making
            making.waiting += 1
            try:
                return await asyncio.shield(making.task)
            except Exception:
                if first:  # others make it themselves: the file may have been deleted with the first request
                    raise
            finally:
                making.waiting -= 1
                if not making.waiting:
                    making.task.cancel()
                    if self._making.get(key) is making:
                        del self._making[key]
                    await asyncio.wait([making.task])
        return value

    def _keep(self, key: Hashable, done: "asyncio.Task[T]") -> None:
        if key in self._making and self._making[key].task is done:
            del self._making[key]
        if not done.cancelled() and done.exception() is None:
            self.put(key, done.result())

    def forget(self, key: Hashable) -> None:
        """Remove the value, if it is cached."""
        if (old := self._values.pop(key, None)) is not None:
            self.held -= self._size(old)

    def put(self, key: Hashable, value: T) -> None:
        """Cache a value, unless it alone is too large."""
        if self._size(value) > self._most:
            return
        self.forget(key)
        self.held += self._size(value)
        self._values[key] = value
        while self.held > self._most:
            self.held -= self._size(self._values.popitem(last=False)[1])
