import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossdraft.errors import CrossdraftError
from crossdraft.events import Events, concatenate, eventgpt_frames, render
from crossdraft.events.render import film, spans, write_pngs
from tests.events.helpers import made_up, same


def test_png_files_hold_the_frames(tmp_path):
    frames = eventgpt_frames(made_up(100), 5)
    paths = write_pngs(tmp_path / "new", frames)
    assert [path.name for path in paths] == [f"frame_{i}.png" for i in range(5)]
    for path, frame in zip(paths, frames, strict=True):
        stored = cv2.imread(str(path))
        assert stored is not None
        assert np.array_equal(stored[..., ::-1], frame)


@given(st.integers(1, 60), st.integers(500, 70_000))
def test_spans_cut_by_time(chunk, span):
    events = made_up(60)
    parts = list(spans((events.take(slice(i, i + chunk)) for i in range(0, 60, chunk)), span))
    assert same(concatenate(parts), events)
    for index, part in enumerate(parts):
        assert same(part, events.slice(events.t0 + index * span, events.t0 + (index + 1) * span))


def test_a_film_is_white_where_nothing_happens():
    events = Events.checked([0, 2], [0, 0], [0, 95_000], [1, 0], 3, 1)
    frames = list(film([Events.empty(3, 1), events], 20))
    assert len(frames) == 2
    frames = list(film([events], 100))
    assert len(frames) == 10
    assert all(frame.shape == (2, 4, 3) for frame in frames)
    assert all((frame == 255).all() for frame in frames[1:-1])
    assert frames[0][0, 0].tolist() == [255, 0, 0]
    assert frames[-1][0, 2].tolist() == [0, 0, 255]
    with pytest.raises(CrossdraftError, match="fps"):
        list(film([events], 0))


@pytest.mark.parametrize("parts", [1, 2])
def test_a_gap_between_two_clocks_is_no_film(parts):
    """The first event at 0, the second at the Unix epoch: forty thousand million white frames."""
    events = Events.checked([0, 2], [0, 0], [0, 1_700_000_000_000_000], [1, 0], 3, 1)
    chunks = [events] if parts == 1 else [events.take(slice(0, 1)), events.take(slice(1, 2))]
    with pytest.raises(CrossdraftError, match="span 1700000000 s, which is 42500000000 frames at 25 a second"):
        next(film(chunks, 25))


def test_a_film_may_be_as_long_as_the_limit(monkeypatch):
    monkeypatch.setattr(render, "MAX_FILM_FRAMES", 10)
    assert len(list(film([made_up(50, start_us=5_000_000, span_us=100_000)], 100))) == 10
    with pytest.raises(CrossdraftError, match="a film holds 10"):
        next(film([made_up(50, start_us=5_000_000, span_us=110_000)], 100))


@pytest.mark.parametrize("fps", [1e-320, 1e-9, 2e6, float("nan"), float("inf")])
def test_an_absurd_rate_is_refused(fps):
    with pytest.raises(CrossdraftError, match="fps"):
        next(film([made_up(5)], fps))
