"""Event recordings made up for tests."""

import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from crossdraft.events import Events


def made_up(count: int, width: int = 64, height: int = 48, start_us: int = 0, span_us: int = 50_000, seed: int = 0):
    """Events at random pixels and random, sorted times in [start_us, start_us + span_us)."""
    rng = np.random.default_rng(seed)
    return Events.checked(
        rng.integers(0, width, count),
        rng.integers(0, height, count),
        np.sort(rng.integers(start_us, start_us + span_us, count)),
        rng.integers(0, 2, count),
        width,
        height,
    )


def same(left: Events, right: Events) -> bool:
    """Equal in every column and in the sensor."""
    return (left.width, left.height) == (right.width, right.height) and all(
        np.array_equal(getattr(left, name), getattr(right, name)) for name in "xytp"
    )


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """No file of this process may grow beyond `size` bytes: writing fails as on a full disk."""
    usual, bytecode = resource.getrlimit(resource.RLIMIT_FSIZE), sys.dont_write_bytecode
    sys.dont_write_bytecode = True  # Python would keep a module's bytecode cut off, and fail at its next import
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, usual[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)
        sys.dont_write_bytecode = bytecode
