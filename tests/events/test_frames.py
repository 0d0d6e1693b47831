import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossdraft.errors import CrossdraftError
from crossdraft.events import Events, eventgpt_frames, read_events
from crossdraft.events.frames import last_event_rows
from tests.events.helpers import made_up

RED, BLUE, WHITE = [255, 0, 0], [0, 0, 255], [255, 255, 255]


def by_the_book(events: Events, count: int, overlap: str) -> list[np.ndarray]:
    """EventGPT's rule spelt out event by event: the release's ("last") and the training's ("red")."""
    share, frames = len(events) // count, []
    for i in range(count):
        rows = range(i * share, (i + 1) * share if i < count - 1 else len(events))
        frame = np.full((events.height, events.width, 3), 255, np.uint8)
        if overlap == "red":
            rows = sorted(rows, key=lambda row: events.p[row])
        for row in rows:
            frame[events.y[row], events.x[row]] = RED if events.p[row] else BLUE
        frames.append(frame)
    return frames


def test_a_case_worked_by_hand():
    # Seven events in three frames: 2, 2 and the remaining 3.
    events = Events.checked(
        np.array([0, 1, 0, 0, 1, 1, 0]), np.zeros(7, int), np.arange(7), np.array([0, 1, 1, 0, 1, 0, 1]), 2, 1
    )
    assert eventgpt_frames(events, 3).tolist() == [[[BLUE, RED]], [[BLUE, WHITE]], [[RED, BLUE]]]
    assert eventgpt_frames(events, 3, overlap="red").tolist() == [[[BLUE, RED]], [[RED, WHITE]], [[RED, RED]]]


@given(st.integers(0, 2**32 - 1), st.integers(1, 120), st.integers(1, 6), st.sampled_from(["last", "red"]))
def test_frames_follow_the_rule(seed, count, frames, overlap):
    count = max(count, frames)
    events = made_up(count, width=4, height=3, seed=seed)
    assert np.array_equal(eventgpt_frames(events, frames, overlap=overlap), by_the_book(events, frames, overlap))


def test_the_two_rules_differ_so_that_the_test_above_can_fail():
    events = made_up(100, width=4, height=3)
    assert not np.array_equal(eventgpt_frames(events, 5, overlap="last"), eventgpt_frames(events, 5, overlap="red"))


def test_tight_frames_just_hold_their_events():
    events = made_up(23, width=40, height=30)
    whole = eventgpt_frames(events, 5)
    tight = eventgpt_frames(events, 5, "tight")
    share = len(events) // 5
    for i, frame in enumerate(tight):
        rows = slice(i * share, (i + 1) * share if i < 4 else None)
        height, width = int(events.y[rows].max()) + 1, int(events.x[rows].max()) + 1
        assert frame.shape == (height, width, 3)
        assert np.array_equal(frame, whole[i, :height, :width])


def test_a_canvas_may_be_larger_than_the_sensor_but_not_cut_events():
    events = made_up(50, width=8, height=6)
    frames = eventgpt_frames(events, 5, (10, 12))
    assert frames.shape == (5, 10, 12, 3)
    assert np.array_equal(frames[:, :6, :8], eventgpt_frames(events, 5))
    assert (frames[:, 6:] == 255).all()
    assert (frames[:, :, 8:] == 255).all()
    with pytest.raises(CrossdraftError, match="outside the 4x4 canvas"):
        eventgpt_frames(events, 5, (4, 4))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_frames": 6}, "5 events cannot fill 6"),
        ({"num_frames": 0}, "At least one"),
        ({"overlap": "blue"}, "Overlap"),
    ],
)
def test_what_cannot_be_drawn_is_refused(options, words):
    with pytest.raises(CrossdraftError, match=words):
        eventgpt_frames(made_up(5), **options)


class _AnyOrder(np.ndarray):
    """An array that writes repeated indices in an order of its own, which numpy reserves the right to do."""

    def __setitem__(self, index, value):
        order = np.random.default_rng(len(index)).permutation(len(index))
        np.asarray(self)[index[order]] = value[order]


@given(st.integers(0, 2**32 - 1), st.integers(1, 200), st.integers(1, 9))
def test_the_last_event_wins_in_whatever_order_numpy_writes(seed, count, pixels):
    pixel = np.random.default_rng(seed).integers(0, pixels, count).astype(np.int32)
    expected = sorted({int(where): row for row, where in enumerate(pixel)}.values())
    stamp = np.full(pixels, 12345, np.int32)
    assert last_event_rows(pixel, stamp).tolist() == expected
    assert last_event_rows(pixel, stamp.view(_AnyOrder)).tolist() == expected


@pytest.mark.parametrize("name", ["eventgpt_sample1", "dsec_interlaken_00_d_000069", "dsec_interlaken_00_d_000099"])
def test_real_recordings_give_exactly_eventgpts_frames(shared, name):
    events = read_events(shared / "data" / "events" / f"{name}.npy")
    expected = by_the_book(events, 5, "last")
    assert np.array_equal(eventgpt_frames(events), expected)
    for frame, whole in zip(eventgpt_frames(events, 5, "tight"), expected, strict=True):
        assert np.array_equal(frame, whole[: frame.shape[0], : frame.shape[1]])
