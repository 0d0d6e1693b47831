"""Figures of a recording, by hand and beside counts over the whole of it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossdraft.errors import CrossdraftError
from crossdraft.events import Events
from crossdraft.events.summary import SILENCES, STEPS, Summary, summarise


def at(times_us: list[int]) -> Events:
    return Events.checked([0] * len(times_us), [0] * len(times_us), times_us, [0] * len(times_us), 10, 5)


def test_a_case_worked_by_hand():
    parts = [
        Events.empty(10, 5),
        Events.checked([0, 1], [0, 0], [1000, 1500], [1, 0], 10, 5),
        Events.checked([2, 3], [0, 0], [2000, 3000], [0, 0], 10, 5),
    ]
    steps = [0] * 63  # of 32 µs: 0, 500, 1000 and 2000 µs
    for step in (0, 15, 31, 62):
        steps[step] = 1
    silences = (1000, 1000), (0, 500), (500, 500)
    assert summarise(parts) == Summary(10, 5, 4, 1000, 2000, 0.002, 40.0, 0.25, 32, tuple(steps), silences)
    assert summarise([Events.empty(10, 5)]) == Summary(10, 5, 0, 0, 0, 0.0, 0.0, 0.0, 1, (), ())
    assert summarise([at([7, 7])]) == Summary(10, 5, 2, 7, 0, 0.0, 0.0, 0.0, 1, (2,), ())
    assert summarise([at([0, STEPS])]).step_us == 2  # steps are from 0 on, so that the last one of 1 µs ends there
    assert summarise([at([1]).noting(["a", "b"]), at([2]).noting(["b", "c"])]).notes == ("a", "b", "c")
    with pytest.raises(CrossdraftError, match="no events"):
        summarise([])


@given(
    st.lists(st.sampled_from([0, 0, 1, 3, 100, 5_000, 10_000_000]), min_size=1, max_size=60),
    st.integers(-5, 10**12),
    st.integers(1, 7),
)
def test_chunks_give_the_counts_and_gaps_of_the_whole(gaps, start_us, chunk):
    events = at((start_us + np.cumsum([0, *gaps])).tolist())
    found = summarise(events.take(slice(first, first + chunk)) for first in range(0, len(events), chunk))
    since = events.t - events.t0
    assert len(found.steps) <= STEPS
    assert found.step_us == 1 or len(found.steps) > STEPS // 2
    assert list(found.steps) == np.bincount(since // found.step_us).tolist()
    assert [us for _, us in found.silences] == sorted(filter(None, gaps), reverse=True)[:SILENCES]
    for begin, us in found.silences:
        assert {begin, begin + us} <= set(since.tolist())
        assert not ((since > begin) & (since < begin + us)).any()
