"""Methods that their own object holds: weakly, as the two would else wait for the cyclic collector together."""

from collections.abc import Callable
from typing import ParamSpec, TypeVar
from weakref import WeakMethod

P = ParamSpec("P")
Result = TypeVar("Result")


def weakly(method: Callable[P, Result]) -> Callable[P, Result]:
    """A function that calls a bound method as long as its object is alive, and does not keep it alive: its caller does.

    Raises:
        ReferenceError: it is called when the object is gone.
    """
    held = WeakMethod(method)

    def call(*args: P.args, **kwargs: P.kwargs) -> Result:
        if (found := held()) is None:
            raise ReferenceError("The object of this method is gone.")
        return found(*args, **kwargs)

    return call
