"""Recordings longer than a scene's second."""

import numpy as np
import pytest

from crossdraft.errors import CrossdraftError
from crossdraft_lab import scenes
from crossdraft_lab.scenes import Pace


def test_a_spread_scene_is_the_same_scene_more_slowly():
    scene = scenes.make_scene(7)
    once, spread = scenes.simulate_events(scene), scenes.simulate_events(scene, pace=Pace(2.0))
    assert spread.t[-1] > 1_950_000
    noise = 0.5 * scenes.SENSOR_SIZE**2  # a second more of shot noise and leak, at 0.45 Hz a pixel
    assert len(once) < len(spread) < len(once) * 1.25 + noise


def test_a_scene_at_its_own_speed_leaves_the_rest_to_noise():
    scene = scenes.make_scene(7)
    once, later = scenes.simulate_events(scene), scenes.simulate_events(scene, pace=Pace(3.0, begins_s=1.5))
    inside = len(later.slice(1_500_000, 2_500_000))
    assert inside == pytest.approx(len(once), rel=0.05)
    assert len(later) - inside < 1.2 * 2 * 0.45 * scenes.SENSOR_SIZE**2


def test_the_usual_second_is_what_it_was():
    scene = scenes.make_scene(3)
    assert np.array_equal(scenes.simulate_events(scene).t, scenes.simulate_events(scene, pace=Pace(1.0, 0.0)).t)


@pytest.mark.parametrize(
    ("seconds", "begins_s", "part"),
    [(0.5, None, "from 1 to 60 s, not 0.5"), (61, None, "not 61"), (4, 3.5, "from 0 to 3 s"), (4, -1, "from 0 to 3 s")],
)
def test_what_cannot_be_is_refused(seconds, begins_s, part):
    with pytest.raises(CrossdraftError, match=part):
        Pace(seconds, begins_s)
