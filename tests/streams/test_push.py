"""A clip as a live stream: what is pushed makes the same windows as the whole clip, and the same events."""

from itertools import pairwise
from pathlib import Path

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossdraft.errors import CrossdraftError
from crossdraft.events import Events, Excerpt, read_events
from crossdraft.streams import EventBuffer, RecordedEvents, ReplayClock, SlidingWindows, StreamWindow, Windowing, replay
from crossdraft.streams.messages import SCHEMA, PushedEvents, PushedFrame, StreamEnd
from crossdraft.streams.push import EventFeed, encoded, push_clip
from crossdraft.video import iter_frames
from crossdraft.video.grid import WindowGrid, frames_on

AT_ONCE = {"wait": lambda _: False, "now": lambda: 0.0}


def clock() -> ReplayClock:
    return ReplayClock(**AT_ONCE)


def pushed(video, windowing: Windowing, **more) -> list:
    """Messages as they come out of the wire."""
    grid, found = WindowGrid(windowing.every_s, windowing.length_s, windowing.frames), []
    push_clip(video, grid, lambda message: found.append(SCHEMA.decode(SCHEMA.encode(message))), clock(), **more)
    return found


def decoded(image: bytes) -> np.ndarray:
    return cv2.cvtColor(cv2.imdecode(np.frombuffer(image, np.uint8), cv2.IMREAD_COLOR), cv2.COLOR_BGR2RGB)


def rebuilt(messages, windowing: Windowing, sensor) -> list[StreamWindow]:
    """Windows as a server makes them."""
    buffer = EventBuffer(windowing.length_s)
    windows, found = SlidingWindows(windowing, buffer), []
    for message in messages:
        match message:
            case PushedEvents():
                buffer.add(Events.checked(message.x, message.y, message.t, message.p, *sensor))
            case PushedFrame():
                found += windows.add_frame(message.time_s, decoded(message.image))
            case StreamEnd():
                found += windows.finish(message.time_s)
    return found


@pytest.mark.parametrize(
    ("windowing", "seconds", "most"),
    [
        (Windowing(0.25, 0.5, 4), None, None),
        (Windowing(0.17, 0.41, 3), None, None),
        (Windowing(0.25, 0.5, 4), 0.8, None),
        (Windowing(0.1, 0.3, 2), None, 4),
    ],
)
def test_what_is_pushed_makes_the_windows_of_the_clip(clip, windowing, seconds, most):
    excerpt, expected = Excerpt(clip.events, start_us=0), []
    local = SlidingWindows(windowing, RecordedEvents(excerpt))
    replay(iter_frames(clip.video), local, expected.append, clock(), seconds=seconds, most=most)
    feed = EventFeed(excerpt)
    messages = pushed(clip.video, windowing, events=feed, seconds=seconds, most=most)
    found = rebuilt(messages, windowing, feed.sensor)
    assert [one.number for one in found] == [one.number for one in expected]
    assert found
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours.start_s, ours.end_s, ours.times_s) == (theirs.start_s, theirs.end_s, theirs.times_s)
        assert np.array_equal(ours.frames, theirs.frames)
        assert np.array_equal(ours.events.t, theirs.events.read().t)
        assert np.array_equal(ours.events.x, theirs.events.read().x)
    frames = [one for one in messages if isinstance(one, PushedFrame)]
    assert len(frames) < sum(1 for _ in iter_frames(clip.video))  # no more than the windows show


def test_all_events_come_once_and_before_the_frames_that_follow_them(clip):
    messages = pushed(clip.video, Windowing(0.25, 0.5, 4), events=EventFeed(Excerpt(clip.events, start_us=0)))
    assert isinstance(messages[-1], StreamEnd)
    time_us = 0
    for message in messages:
        if isinstance(message, PushedFrame):
            time_us = round(message.time_s * 1e6)
        elif isinstance(message, PushedEvents):
            assert message.t[0] >= time_us
    t = np.concatenate([one.t for one in messages if isinstance(one, PushedEvents)])
    every = read_events(clip.events).t
    assert np.array_equal(t, every[every < round(messages[-1].time_s * 1e6)])


def test_a_stream_that_is_stopped_ends(clip):
    stopped, found = clock(), []
    stopped.stop()
    push_clip(clip.video, WindowGrid(0.1, 0.1, 1), found.append, stopped)
    assert found == [StreamEnd(0.0)]


def test_a_clip_that_is_shorter_than_a_window_is_refused_as_a_replayed_one_is(clip):
    windows, says = Windowing(0.5, 5.0, 4), r"^The stream ends after 1\.000 s, and a window is 5 s long; give a longer"
    with pytest.raises(CrossdraftError, match=says):
        pushed(clip.video, windows)
    with pytest.raises(CrossdraftError, match=says):
        replay(iter_frames(clip.video), SlidingWindows(windows), [].append, clock())
    assert pushed(clip.video, Windowing(0.5, 1.0, 4))[-1] == StreamEnd(1.0)  # one as long as a window has one


# As docs/streams.md has them: a program in another language is written after these.
BYTES = [
    (PushedFrame(0.5, b"\x89PNG"), "94 01 a5 66 72 61 6d 65 cb 3f e0 00 00 00 00 00 00 c4 04 89 50 4e 47"),
    (
        PushedEvents(
            np.array([1000, 2000], "<i8"), np.array([3, 4], "<u2"), np.array([5, 6], "<u2"), np.array([1, 0], "u1")
        ),
        (
            "96 01 a6 65 76 65 6e 74 73 c4 10 e8 03 00 00 00 00 00 00 d0 07 00 00 00 00 00 00 "
            "c4 04 03 00 04 00 c4 04 05 00 06 00 c4 02 01 00"
        ),
    ),
    (StreamEnd(1.0), "93 01 a3 65 6e 64 cb 3f f0 00 00 00 00 00 00"),
]


@pytest.mark.parametrize(("message", "wanted"), BYTES, ids=["frame", "events", "end"])
def test_the_bytes_of_a_message_are_those_that_the_docs_show(message, wanted):
    assert SCHEMA.encode(message).hex(" ") == wanted
    assert SCHEMA.encode(SCHEMA.decode(bytes.fromhex(wanted))).hex(" ") == wanted
    shown = (Path(__file__).parents[2] / "docs" / "streams.md").read_text(encoding="utf-8")
    assert f"`{wanted}`" in shown


def test_png_loses_nothing_and_jpeg_is_an_image(clip):
    _, pixels = next(iter_frames(clip.video))
    assert np.array_equal(decoded(encoded(pixels)), pixels)
    assert encoded(pixels, "jpeg").startswith(b"\xff\xd8\xff")
    with pytest.raises(CrossdraftError, match="format of frames 'gif'"):
        encoded(pixels, "gif")


@given(
    every=st.integers(20, 900),
    length=st.integers(50, 2000),
    frames=st.integers(1, 9),
    fps=st.sampled_from([7, 24, 30]),
    shift=st.floats(0, 0.02),
)
def test_the_grid_wants_the_frames_that_windows_show_and_no_others(every, length, frames, fps, shift):
    times = [0.0, *(i / fps + shift * (i % 2) for i in range(1, 3 * fps))]
    until = times[-1] + (length + every) / 1000
    later = list(np.arange(times[-1] + 0.05, until + 0.1, 0.05))  # so that all windows that show one of them are due
    sizes = every / 1000, length / 1000, frames
    grid, windows = WindowGrid(*sizes), SlidingWindows(Windowing(*sizes))
    due = [one for time in [*times, *later] for one in windows.add_frame(time, np.zeros((1, 1, 3), np.uint8))]
    shown = {time for one in due for time in one.times_s if time <= times[-1]}
    assert shown == {time for before, time in pairwise([-1.0, *times]) if grid.wants(before, time)}


def test_the_frames_of_a_grid_are_the_clips_and_the_last_is_there(clip):
    every = dict(iter_frames(clip.video))
    found, end_s = frames_on(clip.video, WindowGrid(0.25, 0.5, 4))
    times = list(every)
    assert found.times_s[-1] == times[-1]
    assert end_s == pytest.approx(times[-1] + times[-1] - times[-2])
    for time_s, pixels in zip(found.times_s, found.pixels, strict=True):
        assert np.array_equal(pixels, every[time_s])
