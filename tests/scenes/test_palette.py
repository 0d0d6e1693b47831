"""Colours of a kind differ in hue and never in luma."""

import itertools

import numpy as np
import pytest

from crossdraft_lab.scenes import make_scene
from crossdraft_lab.scenes.palette import LAMP, LAMP_LUMA, PAINT, PAINT_LUMA, air_of, luma
from crossdraft_lab.scenes.scene import COLOURS, LIGHTS


@pytest.mark.parametrize(("colours", "level"), [(PAINT, PAINT_LUMA), (LAMP, LAMP_LUMA)])
def test_equal_luma_in_range(colours, level):
    for colour in colours.values():
        assert luma(colour) == pytest.approx(level, abs=1e-9)
        assert all(0 <= part <= 255 for part in colour)


def test_the_names_are_those_that_scenes_use():
    assert set(PAINT) == set(COLOURS)
    assert set(LAMP) == {*LIGHTS, "unlit"} - {"none"}


@pytest.mark.parametrize("colours", [PAINT, LAMP])
def test_colours_differ_clearly(colours):
    for one, other in itertools.combinations(colours.values(), 2):
        assert np.linalg.norm(np.subtract(one, other)) > 40


@pytest.mark.parametrize("seed", range(40))
def test_light_and_fog_keep_luma_equal_and_in_range(seed):
    air = air_of(make_scene(seed))
    for light in (air.ambient, air.headlit, 1.0):
        lumas = [luma(air.shade(colour, 9.0, light)) for colour in PAINT.values()]
        assert max(lumas) - min(lumas) < 1e-9
        assert 0 <= min(lumas) <= 255
