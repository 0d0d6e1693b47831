"""Facts that a text states, found by fixed phrases."""

import re
from collections.abc import Mapping
from functools import cache

from crossdraft.errors import CrossdraftError
from crossdraft_lab.scenes.scene import COLOURS, VEHICLES

_NOUNS = (*VEHICLES, "vehicle")
_COATS = {colour: (f"{colour} coat", f"{colour} coats") for colour in COLOURS}

# slot -> value -> the phrases that state it. Sentences are written from the same words; a phrase never
# stands for two values of a slot, and no sentence uses a phrase of a slot for anything else.
PHRASES: dict[str, dict[str, tuple[str, ...]]] = {
    "layout": {
        "two-lane": ("two-lane street",),
        "three-lane": ("three-lane road",),
        "crossroads": ("crossroads",),
        "left bend": ("bends to the left",),
        "right bend": ("bends to the right",),
    },
    "ego": {
        "stopped": ("we are stopped", "driver is not moving"),
        "slow": ("we are driving slowly", "driver is going slowly"),
        "fast": ("we are driving fast", "driver is going fast"),
        "turning left": ("we are turning left", "driver is turning left"),
        "turning right": ("we are turning right", "driver is turning right"),
    },
    "lead.type": {"none": ("no vehicle ahead",), **{kind: (kind,) for kind in VEHICLES}},
    "lead.colour": {colour: tuple(f"{colour} {noun}" for noun in _NOUNS) for colour in COLOURS},
    "lead.motion": {
        "keeping": ("keeping its distance",),
        "closer": ("getting closer",),
        "away": ("pulling away",),
        "left lane": ("moving to the left lane",),
        "right lane": ("moving to the right lane",),
    },
    "people.count": {"0": ("no people", "nobody"), "1": ("one person",), "2": ("two people",), "3": ("three people",)},
    "people.action": {
        "to the right": ("from left to right",),
        "to the left": ("from right to left",),
        "standing": ("standing still",),
        "waving": ("waving",),
    },
    "people.colour": _COATS,
    "left": {
        "people": ("people on the left", "person on the left"),
        "cyclist": ("cyclist on the left",),
        "vehicle": ("oncoming vehicle",),
        "empty": ("left side is empty",),
    },
    "right": {
        "people": ("people on the right", "person on the right"),
        "cyclist": ("cyclist on the right",),
        "vehicle": ("parked vehicle",),
        "empty": ("right side is empty",),
    },
    "cyclist": {
        "none": ("no cyclist",),
        "to the left": ("riding to the left",),
        "to the right": ("riding to the right",),
    },
    "light": {
        "none": ("no traffic light",),
        **{colour: (f"{colour} light", f"light is {colour}") for colour in ("red", "yellow", "green")},
    },
    "sign": {
        "none": ("no sign",),
        "stop": ("stop sign",),
        "yield": ("yield sign",),
        "speed limit": ("speed limit sign",),
    },
    "weather": {"clear": ("clear",), "rain": ("rain", "rainy"), "fog": ("fog", "foggy"), "snow": ("snow", "snowy")},
    "time": {"day": ("day",), "dusk": ("dusk",), "night": ("night",)},
    "side": {"buildings": ("buildings",), "trees": ("trees",), "fields": ("fields",)},
    "driver": {action: (f"should {action}",) for action in ("stop", "brake", "give way", "slow down", "keep going")},
    "presence": {"yes": ("yes",), "no": ("no",)},
}


def score(facts: Mapping[str, str], text: str) -> dict[str, bool]:
    """Judge a text: a fact holds if the text has a phrase of its value, and none of a rival value of its slot.

    Args:
        facts: slot -> value, as in `QA.facts`.
        text: any answer; capitals and line breaks do not matter.

    Raises:
        CrossdraftError: a slot or value that no phrase is known for.
    """
    plain = " ".join(text.lower().split())
    return {slot: _holds(slot, value, plain) for slot, value in facts.items()}


def stated(slot: str, text: str) -> str:
    """The value of a slot that a text states, as a short answer; "" if it states none, or several.

    >>> stated("weather", "It is a rainy day."), stated("time", "By day and by night.")
    ('rain', '')

    Raises:
        CrossdraftError: there is no such slot.
    """
    if slot not in PHRASES:
        raise CrossdraftError(f"There is no slot '{slot}'; known slots: {', '.join(PHRASES)}.")
    return next((value for value in PHRASES[slot] if score({slot: value}, text)[slot]), "")


def _holds(slot: str, value: str, plain: str) -> bool:
    if value not in PHRASES.get(slot, {}):
        raise CrossdraftError(f"No phrase states {slot} = {value!r}; known slots: {', '.join(PHRASES)}.")
    patterns = _patterns(slot)
    return all(bool(pattern.search(plain)) == (name == value) for name, pattern in patterns.items())


@cache
def _patterns(slot: str) -> dict[str, re.Pattern[str]]:
    # A hyphen counts as part of a word: "two-lane" is not "lane".
    return {
        value: re.compile(r"(?<![\w-])(?:" + "|".join(map(re.escape, phrases)) + r")(?![\w-])")
        for value, phrases in PHRASES[slot].items()
    }
