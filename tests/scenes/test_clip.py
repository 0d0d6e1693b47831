"""A clip on disk reads back as what was rendered."""

import json

import numpy as np
import pytest

from crossdraft.errors import CrossdraftError
from crossdraft.events import read_events
from crossdraft.video import iter_frames, probe
from crossdraft_lab.scenes import KINDS, attributes, make_scene, render, score, simulate_events, wordings, write_clip
from crossdraft_lab.scenes.clip import contact_sheet

SCENE = make_scene(2_000_010)


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    return write_clip(SCENE, tmp_path_factory.mktemp("clips") / "new folder")


def test_names_and_nothing_else(clip):
    assert sorted(path.name for path in clip.video.parent.iterdir()) == [
        "scene-2000010.h5",
        "scene-2000010.json",
        "scene-2000010.mp4",
    ]


def test_the_video_is_the_scene(clip):
    info = probe(clip.video)
    assert (info.width, info.height, info.frames, info.fps) == (224, 224, 24, 24.0)
    times, frames = zip(*iter_frames(clip.video), strict=True)
    np.testing.assert_allclose(times, np.arange(24) / 24, atol=1e-3)
    difference = np.abs(frames[7].astype(int) - render(SCENE, 7 / 24, 224)[0])
    assert difference.mean() < 6  # what compression and its halved colour resolution cost


def test_the_events_are_the_scene(clip):
    stored, simulated = read_events(clip.events), simulate_events(SCENE)
    assert (stored.width, stored.height) == (112, 112)
    assert all(np.array_equal(getattr(stored, name), getattr(simulated, name)) for name in "xytp")


def test_the_meta_says_the_truth(clip):
    meta = json.loads(clip.meta.read_text())
    assert meta["seed"] == SCENE.seed
    assert meta["attributes"] == attributes(SCENE)
    questions = meta["questions"]
    assert len(questions) == sum(len(wordings(kind, held_out)) for kind in KINDS for held_out in (False, True))
    assert all(all(score(row["facts"], row["answer"]).values()) for row in questions)


def test_a_contact_sheet_shows_video_and_events():
    page = contact_sheet(SCENE)
    assert page.dtype == np.uint8
    assert page.shape[2] == 3
    first = render(SCENE, 0.0, 224)[0]
    found = [row for row in range(page.shape[0] - 224) if np.array_equal(page[row : row + 224, 16 : 16 + 224], first)]
    assert len(found) == 1
    below = page[found[0] + 260 :]
    assert (below == (255, 0, 0)).all(-1).any()
    assert (below == (0, 0, 255)).all(-1).any()


def test_a_folder_that_is_a_file_is_one_sentence(tmp_path):
    (tmp_path / "clips").write_text("mine")
    with pytest.raises(CrossdraftError, match=r"Cannot write .*clips/scene-2000010\.mp4"):
        write_clip(SCENE, tmp_path / "clips")
    assert (tmp_path / "clips").read_text() == "mine"
