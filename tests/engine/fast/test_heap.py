"""Freed memory goes back to the system: in time, and not more often than it pays."""

import sys

import numpy as np
import pytest

from crossdraft.engine.fast import heap
from crossdraft.engine.fast.heap import (
    GROWTH,
    INTERVAL_S,
    REQUESTS,
    TRIM_EVERY,
    HeapTrimmer,
    RequestTrimmer,
    resident,
    trim,
)

MIB = 1 << 20


@pytest.fixture
def trims(monkeypatch):
    """A list that grows with each trim; the process holds `held[0]` bytes."""
    found: list[int] = []
    monkeypatch.setattr(heap, "trim", lambda: found.append(1))
    return found


@pytest.fixture
def held(monkeypatch):
    now = [500 * MIB]
    monkeypatch.setattr(heap, "resident", lambda: now[0])
    return now


def end(trimmer: RequestTrimmer) -> None:
    trimmer.ended()
    trimmer.trim_if_due()


def test_weights_are_trimmed_by_their_bytes(trims):
    trimmer = HeapTrimmer()
    for _ in range(3):
        trimmer.replaced(TRIM_EVERY // 2)
    assert len(trims) == 1
    trimmer.trim()
    assert len(trims) == 2


def test_requests_are_trimmed_by_their_number(trims, held):
    trimmer = RequestTrimmer()
    for _ in range(2 * REQUESTS - 1):
        end(trimmer)
    assert len(trims) == 1
    end(trimmer)
    assert len(trims) == 2


def test_a_process_that_has_grown_is_trimmed_at_once(trims, held):
    trimmer = RequestTrimmer()
    held[0] += GROWTH
    end(trimmer)
    assert not trims
    held[0] += 1
    end(trimmer)
    assert len(trims) == 1


def test_growth_counts_from_the_least_that_was_held_since(trims, held):
    trimmer = RequestTrimmer()
    held[0] -= GROWTH
    end(trimmer)
    held[0] += GROWTH + 1
    end(trimmer)
    assert len(trims) == 1


def test_what_is_in_use_is_not_trimmed_for_again_and_again(trims, held):
    trimmer = RequestTrimmer()
    held[0] += 4 * GROWTH
    for _ in range(REQUESTS):
        end(trimmer)
    assert len(trims) == 1


def test_a_process_that_grows_fast_is_trimmed_twice_a_second(trims, held, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(heap.time, "monotonic", lambda: now[0])
    trimmer = RequestTrimmer()
    for _ in range(20):
        held[0] += GROWTH + 1
        end(trimmer)
        now[0] += INTERVAL_S / 4
    assert len(trims) == 5


def test_nothing_is_trimmed_while_no_request_ends(trims, held):
    trimmer = RequestTrimmer()
    held[0] += 4 * GROWTH
    trimmer.trim_if_due()
    assert not trims


@pytest.mark.skipif(sys.platform != "linux", reason="read from /proc")
def test_resident_memory_follows_what_is_held_and_trimmed():
    trim()
    before = resident()
    blocks = [np.ones(MIB // 128) for _ in range(1600)]  # 100 MiB, in blocks that glibc keeps
    assert resident() - before > 80 * MIB
    del blocks[::2]
    kept = resident()
    trim()
    assert resident() < kept - 30 * MIB
