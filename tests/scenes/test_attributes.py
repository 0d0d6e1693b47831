from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossdraft.scenes import ATTRIBUTES, attributes, make_scene
from crossdraft.scenes.scene import driver_action


@given(st.integers(0, 3_000_000))
def test_every_attribute_has_one_of_its_values(seed):
    values = attributes(make_scene(seed))
    assert list(values) == list(ATTRIBUTES)
    assert all(value in ATTRIBUTES[slot] for slot, value in values.items())


CALM = replace(
    make_scene(0),
    light="green", lead="car", lead_colour="red", lead_motion="keeping",
    people=1, people_action="standing", sign="none", weather="clear",
)  # fmt: skip


@pytest.mark.parametrize(
    ("change", "action"),
    [
        ({}, ("keep going", "none")),
        ({"light": "red", "lead_motion": "closer"}, ("stop", "light")),  # the light comes first
        ({"lead_motion": "closer", "people_action": "to the left"}, ("brake", "lead.motion")),
        ({"people_action": "to the left", "sign": "stop"}, ("give way", "people.action")),
        ({"people_action": "waving"}, ("keep going", "none")),
        ({"sign": "stop", "light": "yellow"}, ("stop", "sign")),
        ({"light": "yellow", "sign": "yield"}, ("slow down", "light")),
        ({"sign": "yield"}, ("give way", "sign")),
        ({"sign": "speed limit", "weather": "fog"}, ("slow down", "weather")),
    ],
)
def test_what_the_driver_should_do(change, action):
    assert driver_action(replace(CALM, **change)) == action
