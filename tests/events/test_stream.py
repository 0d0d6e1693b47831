import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossdraft.errors import CrossdraftError
from crossdraft.events.read import gathered
from crossdraft.events.stream import Events, Newest, Window, batches, concatenate, unwrap_time
from crossdraft.events.summary import summarise
from tests.events.helpers import made_up, same


def build(x=(0, 1, 2), y=(0, 0, 1), t=(10, 10, 12), p=(0, 1, 1), width=3, height=2) -> Events:
    return Events.checked(np.array(x), np.array(y), np.array(t), np.array(p), width, height)


@pytest.mark.parametrize("p", [(0, 1, 1), (-1, 1, 1), (False, True, True), (0.0, 1.0, 1.0), (-1.0, 1.0, 1.0)])
def test_polarity_of_every_spelling_becomes_0_and_1(p):
    assert build(p=p).p.tolist() == [0, 1, 1]


def test_all_on_and_all_off_keep_their_meaning():
    assert build(p=(1, 1, 1)).p.tolist() == [1, 1, 1]
    assert build(p=(-1, -1, -1)).p.tolist() == [0, 0, 0]
    assert build(p=(0, 0, 0)).p.tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"p": (0, 1, 2)}, "polarity"),
        ({"p": (0, 1, 0.5)}, "polarity"),
        ({"p": (0, 1, 256)}, "polarity"),
        ({"p": (-1, 0, 1)}, "mixes"),
        ({"x": (0, 1, 3)}, "outside the 3x2 sensor"),
        ({"y": (0, 0, 2)}, "outside the 3x2 sensor"),
        ({"x": (0, -1, 2)}, "outside the 3x2 sensor"),
        ({"x": (0, float("nan"), 2)}, "outside the 3x2 sensor"),
        ({"x": (0, 1.5, 2)}, "fractional"),
        ({"t": (10, 12, 11)}, "event 2 is 1 µs earlier"),
        ({"t": (10.0, float("nan"), 11.0)}, "finite"),
        ({"t": (10.0, 11.0, float("inf"))}, "finite"),
        ({"t": (1.0, 2.0, 1e20)}, "below 2"),
        ({"t": (-1e20, 1.0, 2.0)}, "below 2"),
        ({"t": (1, 2, 1 << 62)}, "below 2"),
        ({"t": np.array([1, 2, (1 << 63) + 1], np.uint64)}, "below 2"),
        ({"p": (0.0, 1.0, float("nan"))}, "polarity"),
        ({"t": (10, 12)}, "differ in length"),
        ({"width": 0}, "impossible"),
        ({"height": 70_000}, "impossible"),
    ],
)
def test_bad_columns_are_refused_in_one_sentence(columns, words):
    with pytest.raises(CrossdraftError, match=words) as caught:
        build(**columns)
    assert "\n" not in str(caught.value)


def test_canonical_dtypes_and_facts():
    events = build(t=(10.4, 10.6, 12.0))
    assert [events.x.dtype, events.y.dtype, events.t.dtype, events.p.dtype] == [
        np.uint16,
        np.uint16,
        np.int64,
        np.uint8,
    ]
    assert (len(events), events.t0, events.duration_us) == (3, 10, 2)
    empty = Events.empty(3, 2)
    assert (len(empty), empty.t0, empty.duration_us) == (0, 0, 0)


def test_the_plain_constructor_refuses_other_dtypes():
    good = build()
    with pytest.raises(CrossdraftError, match="uint16"):
        Events(
            good.x.astype(np.int32),  # pyright: ignore[reportArgumentType]
            good.y,
            good.t,
            good.p,
            3,
            2,
        )
    with pytest.raises(CrossdraftError, match="length 3"):
        Events(good.x[:2], good.y, good.t, good.p, 3, 2)


def test_a_slice_is_half_open():
    events = build()
    assert events.slice(10, 12).t.tolist() == [10, 10]
    assert events.slice(11, 13).t.tolist() == [12]
    assert len(events.slice(12, 10)) == 0
    assert len(events.slice(13, 99)) == 0


@given(st.integers(-5, 60_000), st.integers(-5, 60_000))
def test_windows_clip_like_a_mask(start, end):
    events = made_up(200)
    wanted = (events.t >= start) & (events.t < end)
    assert Window(start, end).clip(events).t.tolist() == events.t[wanted].tolist()
    assert same(Window().clip(events), events)


def test_joining_what_was_cut_gives_it_back():
    events = made_up(100)
    parts = [events.take(slice(i, i + 7)) for i in range(0, 100, 7)]
    assert same(concatenate(parts), events)
    for size in (1, 10, 1000):
        joined = list(batches(parts, size))
        assert same(concatenate(joined), events)
        assert all(len(chunk) >= size for chunk in joined[:-1])


def test_chunks_that_do_not_follow_each_other_are_refused():
    early, late = build(), build(t=(20, 21, 22))
    with pytest.raises(CrossdraftError, match="out of order"):
        concatenate([late, early])
    with pytest.raises(CrossdraftError, match="different sensor"):
        concatenate([early, Events.empty(9, 9)])
    with pytest.raises(CrossdraftError, match="no event chunks"):
        concatenate([])
    with pytest.raises(CrossdraftError, match="no event chunks"):
        list(batches([], 5))


@given(st.lists(st.integers(0, (1 << 15) - 1), min_size=1, max_size=200), st.integers(0, 1 << 20))
def test_a_wrapped_counter_is_unwrapped(steps, start):
    true = start + np.cumsum(steps)
    found = unwrap_time((true % (1 << 16)).astype(np.uint16), 16, "x")
    assert (found - found[0]).tolist() == (true - true[0]).tolist()


def test_disorder_is_not_taken_for_a_wrap():
    with pytest.raises(CrossdraftError, match="out of order"):
        unwrap_time(np.array([500, 400], np.uint16), 16, "x")


def test_their_bytes_are_those_of_the_columns():
    assert build().nbytes == 3 * (2 + 2 + 8 + 1)


def test_a_reader_s_notes_stay_with_the_events():
    """Kept by parts, joined without repetition, and kept where only the newest events are."""
    parts = [made_up(10, start_us=at, span_us=5).noting(notes) for at, notes in ((0, "ab"), (10, ""), (20, "bc"))]
    first, _, last = parts
    assert (first.notes, first.slice(0, 3).notes, first.take(slice(2)).notes) == (("a", "b"),) * 3
    assert first.noting("a") is first
    assert concatenate(parts).notes == ("a", "b", "c")
    newest = gathered(parts, "x", newest=Newest(most=5))
    assert (newest.t0 >= last.t0, sorted(newest.notes)) == (True, ["a", "b", "c"])
    assert summarise(iter(parts)).notes == ("a", "b", "c")
