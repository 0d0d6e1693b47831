"""Projection, worked by hand."""

from dataclasses import replace

import numpy as np
import pytest

from crossdraft_lab.scenes import make_scene
from crossdraft_lab.scenes.camera import CAMERA_HEIGHT_M, FOCAL, HORIZON, NEAR_M, camera_at, on_road, project, turned

TIMES = np.array([0.0, 0.5, 1.0])


def camera(**fields):
    still = camera_at(replace(make_scene(0), **{"layout": "two-lane", "ego": "stopped"} | fields), TIMES)
    return replace(still, shake=np.zeros((3, 2), dtype=np.float32))


def seen(view, points):
    return project(view, turned(view, on_road(view, np.array(points, dtype=np.float32))))


def test_the_point_straight_ahead_lies_on_the_horizon():
    picture = seen(camera(), [(0, CAMERA_HEIGHT_M, 20)])
    np.testing.assert_allclose(picture[:, 0], [(0.5, HORIZON)] * 3, atol=1e-6)


def test_a_point_to_the_right_and_below():
    # 2 m to the right and on the ground, 10 m ahead: u = 1/2 + f 2/10, v = horizon + f 1.5/10.
    picture = seen(camera(), [(2, 0, 10)])
    np.testing.assert_allclose(picture[0, 0], (0.5 + 0.2 * FOCAL, HORIZON + 0.15 * FOCAL), atol=1e-6)


def test_driving_brings_things_nearer():
    # At 5.6 m/s the point that is 10 m ahead at mid-clip is 12.8 m ahead at first and 7.2 m at last.
    picture = seen(camera(ego="fast"), [(2, 0, 10)])
    np.testing.assert_allclose(picture[:, 0, 0], 0.5 + FOCAL * 2 / np.array([12.8, 10, 7.2]), atol=1e-6)


@pytest.mark.parametrize(("ego", "way"), [("turning left", 1), ("turning right", -1)])
def test_a_turn_swings_the_view_the_other_way(ego, way):
    picture = seen(camera(ego=ego), [(0, 1, 100)])
    assert np.all(np.sign(np.diff(picture[:, 0, 0])) == way)


@pytest.mark.parametrize(("layout", "way"), [("left bend", -1), ("right bend", 1), ("two-lane", 0)])
def test_a_bend_leaves_the_straight_line(layout, way):
    picture = seen(camera(layout=layout), [(0, 0, 5), (0, 0, 30)])
    assert picture[0, 0, 0] == pytest.approx(0.5)
    assert np.sign(picture[0, 1, 0] - 0.5) == way


def test_what_is_behind_us_stays_on_the_same_line():
    # A lane mark's near end slides along the mark, so that the mark keeps its direction in the picture.
    behind, near, depth = seen(camera(), [(1.75, 0, -3), (1.75, 0, NEAR_M), (1.75, 0, 8)])[0]
    np.testing.assert_allclose(behind, near)
    vanishing = np.array([0.5, HORIZON])
    towards = [(point - vanishing) / np.linalg.norm(point - vanishing) for point in (near, depth)]
    np.testing.assert_allclose(towards[0], towards[1], atol=1e-5)


def test_a_stopped_car_shakes_a_little():
    shake = camera_at(replace(make_scene(0), ego="stopped"), np.linspace(0, 1, 200)).shake
    assert 0.2 / 112 < np.abs(shake).max() < 1.0 / 112
