import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossdraft.errors import CrossdraftError
from crossdraft.events import Events, concatenate, eventgpt_frames
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
