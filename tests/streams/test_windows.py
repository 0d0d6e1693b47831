"""Sliding windows: which frames and which events they hold, and when they fall due."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossdraft.errors import CrossdraftError
from crossdraft.events import EventLimits, Events, Excerpt
from crossdraft.streams import EventBuffer, RecordedEvents, SlidingWindows, Windowing
from crossdraft.video import VideoLimits


def frame(number: int, side: int = 4) -> np.ndarray:
    return np.full((side, side, 3), number, np.uint8)


def fed(windowing: Windowing, times: list[float], end: float | None = None):
    windows = SlidingWindows(windowing, now=lambda: 7.0)
    found = [window for number, time_s in enumerate(times) for window in windows.add_frame(time_s, frame(number))]
    return found + ([] if end is None else windows.finish(end))


def events(*times: int) -> Events:
    n = len(times)
    return Events.checked(np.zeros(n, int), np.zeros(n, int), np.array(times, dtype=np.int64), np.ones(n, int), 8, 8)


def test_a_window_holds_the_first_frame_at_or_after_each_of_its_times():
    first, second = fed(Windowing(0.5, 1.0, 4), [i / 10 for i in range(16)])
    assert first.times_s == (0.3, 0.5, 0.8, 1.0)  # for 0.25, 0.5, 0.75, 1
    assert second.times_s == (0.8, 1.0, 1.3, 1.5)
    assert first.frames[:, 0, 0, 0].tolist() == [3, 5, 8, 10]
    assert [(one.number, one.start_s, one.end_s, one.due_at) for one in (first, second)] == [
        (0, 0.0, 1.0, 7.0), (1, 0.5, 1.5, 7.0),
    ]  # fmt: skip


def test_overlapping_windows_share_frames_where_the_grid_allows():
    first, second = fed(Windowing(0.25, 1.0, 8), [i / 30 for i in range(60)])[:2]
    assert set(first.times_s) & set(second.times_s) == set(first.times_s[2:])


@given(every=st.integers(20, 900), length=st.integers(50, 2000), frames=st.integers(1, 9))
def test_all_windows_lie_on_one_grid(every, length, frames):
    windowing = Windowing(every / 1000, length / 1000, frames)
    step = windowing.grid.step_s
    parts = windowing.length_s / frames / step
    assert parts == pytest.approx(round(parts))
    assert step <= windowing.every_s + 1e-9
    begins = [windowing.begins(number) for number in range(40)]
    assert all(later > earlier + step / 2 for earlier, later in pairwise(begins))
    for number, start in enumerate(begins):
        assert -1e-6 < number * windowing.every_s - start < step
        for time_s in windowing.times(number):
            assert time_s / step == pytest.approx(round(time_s / step), abs=1e-6)


def test_windows_share_frames_where_their_distance_is_no_multiple_of_the_step():
    windows = fed(Windowing(0.4, 1.0, 4), [i / 20 for i in range(52)])
    assert [round(one.end_s, 2) for one in windows] == [1.0, 1.25, 1.75, 2.0, 2.5]
    shared = [len({*a.times_s} & {*b.times_s}) for a, b in pairwise(windows)]
    assert shared == [3, 2, 3, 2]


def test_a_slow_stream_repeats_frames_and_a_gap_makes_several_windows_due():
    windows = fed(Windowing(0.5, 1.0, 4), [0.0, 0.5, 2.0])
    assert [one.number for one in windows] == [0, 1, 2]
    assert windows[0].times_s == (0.5, 0.5, 2.0, 2.0)
    assert {one.end_s for one in windows} == {2.0}


def test_the_end_of_a_stream_shows_its_last_frame():
    times = [i / 24 for i in range(24)]
    assert fed(Windowing(0.5, 1.0), times) == []
    (window,) = fed(Windowing(0.5, 1.0), times, end=1.0)
    assert window.frames[-1, 0, 0, 0] == 23
    assert window.end_s == 1.0


@given(
    every=st.integers(20, 900), length=st.integers(50, 2000), frames=st.integers(1, 9), fps=st.sampled_from([7, 24, 30])
)
def test_the_count_of_windows_is_what_falls_due(every, length, frames, fps):
    windowing = Windowing(every / 1000, length / 1000, frames)
    times = [i / fps for i in range(3 * fps)]
    found = fed(windowing, times, end=3.0)
    assert len(found) == windowing.count(3.0)
    assert [window.number for window in found] == list(range(len(found)))
    for window in found:
        wanted = windowing.times(window.number)
        for wants, has in zip(wanted, window.times_s, strict=True):
            nearest = min((t for t in times if t >= wants - 1e-6), default=3.0)
            assert has == nearest


def test_a_recording_is_cut_to_the_window_on_its_own_clock(tmp_path):
    source = RecordedEvents(Excerpt(tmp_path / "x.h5", start_us=5_000_000, end_us=9_000_000))
    cut = source.between(0.5, 1.5)
    assert (cut.start_us, cut.end_us) == (5_500_000, 6_500_000)


def test_a_buffer_gives_the_events_of_the_span_and_forgets_old_ones():
    buffer = EventBuffer(1.0, zero_us=1_000_000)
    assert buffer.between(0, 1) is None
    for start in range(0, 4_000_000, 100_000):
        buffer.add(events(1_000_000 + start, 1_050_000 + start))
    assert buffer.between(3.0, 3.2).t.tolist() == [4_000_000, 4_050_000, 4_100_000, 4_150_000]
    assert len(buffer) == 21  # of the newest second
    with pytest.raises(CrossdraftError, match="out of order"):
        buffer.add(events(1_000_000))
    with pytest.raises(CrossdraftError, match="more than 3 events"):
        EventBuffer(1.0, limits=EventLimits(events=3)).add(events(1, 2, 3, 4))


def test_a_buffer_of_small_pieces_is_one_of_large_ones():
    """Piece by piece, an event each, it holds the same as all at once."""
    times, small, large = list(range(0, 50_000, 10)), EventBuffer(0.03), EventBuffer(0.03)
    for time_us in times:
        small.add(events(time_us))
    large.add(events(*times))
    for start_s, end_s in ((0.02, 0.05), (0.03, 0.031), (0.06, 0.07)):
        assert small.between(start_s, end_s).t.tolist() == large.between(start_s, end_s).t.tolist()
    assert len(small) == len(large) == 3001


@given(
    steps=st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=9), min_size=1, max_size=12),
    spans=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 60)), min_size=1, max_size=4),
)
def test_a_buffer_gives_what_a_list_of_all_events_gives(steps, spans):
    buffer, times = EventBuffer(0.0001), []
    for step in steps:
        piece = (np.cumsum(step) + (times[-1] if times else 0)).tolist()
        times += piece
        buffer.add(events(*piece))
        held = [one for one in times if one >= times[-1] - 100]
        assert len(buffer) == len(held)
        for begin, length in spans:
            start = max(begin, held[0])
            wanted = [one for one in times if start <= one < start + length]
            assert buffer.between(start / 1e6, (start + length) / 1e6).t.tolist() == wanted


def test_a_span_within_a_chunk_is_not_copied():
    buffer = EventBuffer(1.0)
    for start in range(0, 8000, 2000):
        buffer.add(events(*range(start, start + 2000)))
    first, again = (buffer.between(0.0025, 0.0035) for _ in range(2))
    assert len(first) == 1000
    for name in "xytp":
        assert np.shares_memory(getattr(first, name), getattr(again, name))


def test_beyond_its_most_a_buffer_drops_the_oldest_and_counts_them():
    buffer = EventBuffer(100.0, most=3000)
    buffer.add(events(*range(2000)))
    buffer.add(events(*range(2000, 4500)))
    assert (buffer.dropped, len(buffer)) == (1500, 3000)
    assert buffer.between(0, 1).t.tolist() == list(range(1500, 4500))
    buffer.add(events(*range(4500, 9000)))
    assert (buffer.dropped, len(buffer)) == (6000, 3000)


def test_after_a_restart_windows_show_what_came_later_alone():
    windows, found = SlidingWindows(Windowing(0.5, 1.0, 2), newest=True), []
    for number, time_s in enumerate(np.arange(0, 8, 0.25)):
        if time_s == 3.25:
            windows.restart(3.25)
        found += windows.add_frame(float(time_s), frame(number, 4 if time_s < 3.25 else 8))
    assert [one.end_s for one in found] == [1.0, 1.5, 2.0, 2.5, 3.0, *np.arange(4.5, 8, 0.5)]


def test_after_a_gap_the_newest_window_alone_is_made_if_that_is_wanted():
    windowing, times = Windowing(0.5, 1.0, 4), [0.0, 0.5, 2.0, 2.5]
    every, newest = SlidingWindows(windowing), SlidingWindows(windowing, newest=True)
    for number, time_s in enumerate(times):
        all_of_them = every.add_frame(time_s, frame(number))
        made = newest.add_frame(time_s, frame(number))
        assert [one.number for one in made] == [one.number for one in all_of_them[-1:]]
        assert all(
            np.array_equal(ours.frames, theirs.frames) for ours, theirs in zip(made, all_of_them[-1:], strict=True)
        )
    assert newest.passed == 2
    assert every.passed == 0


@given(
    every=st.integers(20, 900),
    length=st.integers(50, 2000),
    frames=st.integers(1, 9),
    gaps=st.lists(st.sampled_from([1, 20, 33, 41, 250, 990, 4000]), min_size=1, max_size=60),
    rest=st.sampled_from([0, 40, 3000]),
    newest=st.booleans(),
)
def test_windows_are_those_of_their_definition_whatever_the_times_of_the_frames(
    every, length, frames, gaps, rest, newest
):
    windowing = Windowing(every / 1000, length / 1000, frames)
    times = [sum(gaps[:count]) / 1000 for count in range(len(gaps) + 1)]
    shown = [*enumerate(times), (len(times) - 1, times[-1] + rest / 1000)]  # the last frame, up to the end
    windows, held, found = SlidingWindows(windowing, newest=newest), 0, []
    for number, time_s in enumerate(times):
        found.append(windows.add_frame(time_s, frame(number)))
        held = max(held, len(windows._held))
    found.append(windows.finish(shown[-1][1]))

    expected = [[] for _ in shown]
    for number in range(windowing.count(shown[-1][1])):
        wanted = windowing.times(number)
        at = [next(i for i, (_, time_s) in enumerate(shown) if time_s >= want - 1e-6) for want in wanted]
        expected[at[-1]].append((number, tuple(shown[i][1] for i in at), [shown[i][0] for i in at]))
    made = [due[-1:] if newest else due for due in expected]
    assert [[(w.number, w.times_s, w.frames[:, 0, 0, 0].tolist()) for w in due] for due in found] == made
    assert windows.passed == sum(map(len, expected)) - sum(map(len, made))
    assert held <= frames * windowing.open


def test_windows_that_are_not_made_cost_nothing(monkeypatch):
    """A minute without a frame, at 50 windows a second."""
    asked, times = [], Windowing.times
    monkeypatch.setattr(Windowing, "times", lambda self, number: (asked.append(number), times(self, number))[1])
    windows = SlidingWindows(Windowing(0.02, 60.0, 64), newest=True)
    made = [windows.add_frame(60.0 * number, frame(number)) for number in range(10)]
    assert [len(due) for due in made] == [0] + 9 * [1]
    assert windows.passed > 20_000
    assert len(asked) < 30


def test_a_window_takes_its_events_from_the_source():
    buffer = EventBuffer(1.0)
    windows = SlidingWindows(Windowing(1.0, 1.0, 2), buffer)
    found = []
    for number in range(11):
        buffer.add(events(100_000 * number))
        found += windows.add_frame(number / 10, frame(number))
    assert found[0].events.t.tolist() == list(range(0, 1_000_000, 100_000))  # the end is open


@pytest.mark.parametrize("values", [(0, 1, 8), (0.5, 0, 8), (0.5, 1, 0), (float("nan"), 1, 8), (-1, 1, 8)])
def test_values_without_sense_are_refused(values):
    with pytest.raises(CrossdraftError, match="it must be"):
        Windowing(*values)


def test_frames_that_do_not_fit_are_refused():
    def after(time_s, pixels):
        windows = SlidingWindows(Windowing())
        windows.add_frame(0.5, frame(0))
        windows.add_frame(time_s, pixels)

    with pytest.raises(CrossdraftError, match="send frames by time"):
        after(0.5, frame(1))
    with pytest.raises(CrossdraftError, match="from 4x4 to 6x6"):
        after(1.0, frame(1, side=6))
    with pytest.raises(CrossdraftError, match="uint8 \\[H, W, 3\\]"):
        after(1.0, frame(1)[..., 0])
    with pytest.raises(CrossdraftError, match="held at once"):
        SlidingWindows(Windowing(), limits=VideoLimits(held=100)).add_frame(0.0, frame(0))
