"""Values that requests share: each made once, however many ask for it at a time, and kept for later ones."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Hashable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")


@dataclass(slots=True)
class _Making(Generic[T]):
    """A value that is being made, and how many wait for it."""

    task: "asyncio.Task[T]"
    waiting: int = 0


class MediaCache(Generic[T]):
    """Values by key, the least recently used ones forgotten. For one event loop.

    Args:
        most: that the sizes of all values may add up to.
        size: of a value.
    """

    def __init__(self, most: int, size: Callable[[T], int]) -> None:
        self._most, self._size = most, size
        self._values: OrderedDict[Hashable, T] = OrderedDict()
        self._making: dict[Hashable, _Making[T]] = {}
        self.held = 0

    def known(self, key: Hashable) -> T | None:
        """The value, if it is there."""
        if key in self._values:
            self._values.move_to_end(key)
        return self._values.get(key)

    async def get(self, key: Hashable, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The value of a key, made if it is not there. It is made as long as any caller waits that is not cancelled.

        The last caller to be cancelled waits until the making has ended: its slot pays for it.
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
                if first:  # others try to make it themselves: the file may have gone with the first request
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
        """Keep the value no longer, if it is there."""
        if (old := self._values.pop(key, None)) is not None:
            self.held -= self._size(old)

    def put(self, key: Hashable, value: T) -> None:
        """Keep a value, unless it alone is too large."""
        if self._size(value) > self._most:
            return
        self.forget(key)
        self.held += self._size(value)
        self._values[key] = value
        while self.held > self._most:
            self.held -= self._size(self._values.popitem(last=False)[1])
