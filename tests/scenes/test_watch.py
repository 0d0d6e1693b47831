"""What the event camera sees of a scene."""

from dataclasses import replace

import numpy as np
import pytest

from crossdraft.events import eventgpt_frames
from crossdraft.scenes import DURATION_S, SENSOR_SIZE, make_scene, simulate_events

SCENE = replace(make_scene(5), weather="clear", time="day")


@pytest.fixture(scope="module")
def events():
    return simulate_events(SCENE)


def rate(stream):
    return len(stream.t) / (SENSOR_SIZE**2 * DURATION_S)


def test_the_stream_covers_the_clip(events):
    assert (events.width, events.height) == (SENSOR_SIZE, SENSOR_SIZE)
    assert 0 <= events.t[0] < 10_000
    assert 980_000 < events.t[-1] <= 1_000_000
    assert np.all(np.diff(events.t) >= 0)


def test_the_same_scene_gives_the_same_events(events):
    again = simulate_events(SCENE)
    assert all(np.array_equal(getattr(again, name), getattr(events, name)) for name in "xytp")


def test_another_seed_changes_noise_only(events):
    other = simulate_events(SCENE, seed=99)
    assert not np.array_equal(other.t, events.t)
    assert len(other.t) == pytest.approx(len(events.t), rel=0.05)


def test_colours_cannot_be_seen(events):
    assert SCENE.lead_colour != "blue"
    assert SCENE.people_colour != "blue"
    assert SCENE.light not in {"none", "green"}
    other = simulate_events(replace(SCENE, lead_colour="blue", people_colour="blue", light="green"))
    assert all(np.array_equal(getattr(other, name), getattr(events, name)) for name in "xytp")


def test_motion_can_be_seen(events):
    other = simulate_events(replace(SCENE, lead_motion="closer"))
    one, two = (eventgpt_frames(stream).astype(int) for stream in (events, other))
    assert (np.abs(one - two).max(-1) > 0).mean() > 0.03


@pytest.mark.parametrize("seed", [2, 9, 13, 22])
def test_rates_are_those_of_a_real_sensor(seed):
    # Seven real recordings have 8 to 19 events a second per pixel, 49 to 63 % of them ON; a standing car sees less.
    stream = simulate_events(replace(make_scene(seed), weather="clear"))
    assert 3 < rate(stream) < 25
    assert 0.45 < stream.p.mean() < 0.65


def test_fog_leaves_something_to_see():
    stream = simulate_events(replace(SCENE, weather="fog", time="night", ego="stopped"))
    assert rate(stream) > 1.5
