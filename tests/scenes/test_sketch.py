import numpy as np

from crossdraft_lab.scenes import make_scene
from crossdraft_lab.scenes.camera import camera_at, project
from crossdraft_lab.scenes.palette import air_of
from crossdraft_lab.scenes.sketch import Anchor, Sketch, disc, limb, quads, strip

TIMES = np.array([0.0, 0.25, 0.75])


def test_a_bar_has_its_width_and_length():
    (corners,) = limb((0, 0), (0, 2), 0.5)[0]
    assert sorted(map(tuple, corners.tolist())) == [(-0.25, 0, 0), (-0.25, 2, 0), (0.25, 0, 0), (0.25, 2, 0)]


def test_a_moving_bar_moves():
    hand = np.stack([np.array([0.0, 1.0, 2.0]), np.zeros(3)], axis=-1)
    assert limb((0, 1), hand, 0.1).shape == (3, 1, 4, 3)


def test_a_disc_keeps_its_radius():
    corners = disc(3, 1, 0.5, 8)[0]
    np.testing.assert_allclose(np.hypot(corners[:, 0] - 3, corners[:, 1] - 1), 0.5, rtol=1e-6)


def test_polygons_are_drawn_in_order_where_they_belong():
    scene = make_scene(1)
    sketch = Sketch(camera_at(scene, TIMES), air_of(scene))
    track = np.array([(1, 0, 9), (1, 0, 8), (1, 0, 7)], dtype=np.float32)
    flat = np.full((3, 2, 3, 2), 0.25, dtype=np.float32)
    sketch.body(quads((-1, 0, 1, 2)), Anchor(track, 1.0, 8.0), (1, 1, 1))
    sketch.road(np.concatenate([strip(0, 1, 5, 6), strip(0, 1, 7, 8)]), (2, 2, 2))
    sketch.flat(flat, (3, 3, 3))
    painting = sketch.painting()
    assert [(paint.polygons, paint.corners) for paint in painting.paints] == [(1, 4), (2, 4), (2, 3)]
    assert painting.points.shape == (3, 4 + 8 + 6, 2)
    body = project(sketch.camera, quads((-1, 0, 1, 2)).reshape(1, 4, 3) + track[:, None])
    np.testing.assert_allclose(painting.points[:, :4], body, rtol=1e-6)
    np.testing.assert_allclose(painting.points[:, 12:], 0.25)
