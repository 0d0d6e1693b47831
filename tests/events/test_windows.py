"""Adaptive windows of a long recording, worked by hand and as properties."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossdraft.errors import CrossdraftError
from crossdraft.events import Events, adaptive_windows
from crossdraft.events.windows import equal_shares
from tests.events.helpers import made_up


def at(times_us) -> Events:
    """One event at each of these times, at one pixel."""
    t = np.asarray(times_us, dtype=np.int64)
    return Events.checked(np.zeros(len(t)), np.zeros(len(t)), t, np.zeros(len(t)), 4, 4)


def test_a_burst_in_a_noisy_recording_gets_every_window():
    """Noise of one event in 2 ms for 16 s, a burst of 8,000 in the second from 9 s: of 4 windows each holds 2,000.

    The first reaches back to where nothing moves yet, and is cut down to the half second with all of its burst.
    """
    noise, burst = np.arange(0, 16_000_000, 2_000), 9_000_000 + np.arange(0, 1_000_000, 125)
    events = at(np.sort(np.concatenate([noise, burst])))
    windows = adaptive_windows(events, 4, 500_000)
    starts = [int(events.t[rows.start]) for rows in windows]
    assert starts == pytest.approx([8_750_000, 9_250_000, 9_500_000, 9_750_000], abs=20_000)
    assert all(rows.stop - rows.start == pytest.approx(2_125, abs=200) for rows in windows)
    assert events.t[len(events) // 4] < 9_000_000  # of equal counts, the first would be noise alone


def test_a_long_window_is_cut_down_to_its_busiest_stretch():
    """One window over 10 s: events every second, and twenty of them at 7.1 s."""
    events = at(np.sort(np.concatenate([np.arange(0, 10_000_000, 1_000_000), np.full(20, 7_100_000)])))
    (rows,) = adaptive_windows(events, 1, 500_000)
    assert events.t[rows].tolist() == [7_000_000, *[7_100_000] * 20]


def test_a_short_recording_is_cut_into_equal_shares():
    events = made_up(1_000, span_us=1_000_000)
    windows = adaptive_windows(events, 5, 500_000)
    assert [rows.stop - rows.start for rows in windows] == pytest.approx([200] * 5, abs=40)
    assert (windows[0].start, windows[-1].stop) == (0, 1_000)


@given(st.lists(st.integers(0, 20_000_000), min_size=7, max_size=200), st.integers(1, 7), st.integers(1, 3_000_000))
def test_windows_follow_each_other_and_none_is_empty_or_too_long(times, count, longest_us):
    events = at(sorted(times))
    windows = adaptive_windows(events, count, longest_us)
    assert len(windows) == count
    for rows in windows:
        assert 0 <= rows.start < rows.stop <= len(events)
        assert events.t[rows.stop - 1] - events.t[rows.start] < longest_us
    assert all(first.stop <= second.start for first, second in pairwise(windows))
    cuts = equal_shares(events, count)
    assert cuts[0] == 0
    assert cuts[-1] == len(events)
    assert (np.diff(cuts) > 0).all()


def test_events_at_one_moment_are_shared_all_the_same():
    assert adaptive_windows(at([5] * 6), 3, 10) == [slice(0, 2), slice(2, 4), slice(4, 6)]


@pytest.mark.parametrize(
    ("count", "longest_us", "part"), [(0, 9, "0 windows"), (2, 0, "of 0 µs"), (4, 9, "3 events cannot fill 4 windows")]
)
def test_what_cannot_be_is_refused(count, longest_us, part):
    with pytest.raises(CrossdraftError, match=part):
        adaptive_windows(at([1, 2, 3]), count, longest_us)
