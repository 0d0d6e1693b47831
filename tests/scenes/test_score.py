"""Scoring, case by case."""

import itertools

import pytest

from crossdraft.errors import CrossdraftError
from crossdraft_lab.scenes import ATTRIBUTES, score
from crossdraft_lab.scenes.score import PHRASES


@pytest.mark.parametrize(
    ("slot", "value", "text", "right"),
    [
        ("lead.type", "bus", "A bus is ahead of us.", True),
        ("lead.type", "bus", "A BUS\nis ahead of us.", True),
        ("lead.type", "bus", "A truck is ahead of us.", False),
        ("lead.type", "bus", "A bus is ahead of us, or a truck.", False),  # hedging is no answer
        ("lead.type", "car", "Take care of the cars.", False),  # whole words only
        ("lead.type", "none", "There is no vehicle ahead of us.", True),
        ("lead.colour", "red", "A red truck is ahead.", True),
        ("lead.colour", "red", "There is a red light and a blue truck.", False),  # another thing's red
        ("light", "red", "There is a red light and a blue truck.", True),
        ("light", "red", "Since the light is red, the driver should stop.", True),
        ("people.colour", "green", "They are wearing green coats.", True),
        ("sign", "none", "There is a red light but no sign.", True),
        ("sign", "stop", "The driver should stop, because the light is red.", False),
        ("driver", "stop", "The driver should stop, because there is a yield sign.", True),
        ("layout", "two-lane", "We are on a two-lane street.", True),
        ("layout", "crossroads", "We are on a two-lane street.", False),
        ("people.count", "2", "Two people on the left are waving.", True),
        ("people.count", "0", "There are no people near the road.", True),
        ("left", "people", "One person on the left is standing still.", True),
        ("right", "people", "One person on the left is standing still.", False),
        ("presence", "yes", "Yes. A cyclist on the left is riding to the right.", True),
        ("presence", "no", "Nobody knows.", False),
        ("weather", "rain", "On this rainy day the road is wet.", True),
        ("weather", "clear", "", False),
    ],
)
def test_cases(slot, value, text, right):
    assert score({slot: value}, text) == {slot: right}


def test_every_slot_and_value_has_phrases():
    for slot, values in ATTRIBUTES.items():
        if slot == "light.side":
            continue  # known for training, never in an answer
        missing = set(values) - set(PHRASES[slot])
        assert missing <= {"none"}, slot


def test_no_phrase_of_a_value_is_part_of_a_rivals():
    for slot, values in PHRASES.items():
        for one, other in itertools.permutations(values, 2):
            for phrase in values[one]:
                assert not any(score({slot: other}, phrase).values()), (slot, one, other)


@pytest.mark.parametrize("facts", [{"smell": "roses"}, {"light": "blue"}])
def test_an_unknown_fact_is_refused(facts):
    with pytest.raises(CrossdraftError, match="No phrase states"):
        score(facts, "anything")
