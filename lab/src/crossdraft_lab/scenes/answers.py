"""Answers to each kind of question: their sentences, in order."""

from collections.abc import Callable

from crossdraft_lab.scenes.scene import Scene
from crossdraft_lab.scenes.sentences import (
    LEAD,
    SIDE,
    SKY,
    WHERE,
    Answer,
    AnswerTable,
    Phrasing,
    Sentence,
    Style,
    capital,
    same,
)

_EGO = {
    "stopped": "stopped",
    "slow": "driving slowly",
    "fast": "driving fast",
    "turning left": "turning left",
    "turning right": "turning right",
}
_EGO_TAIL = {
    "stopped": "the lane marks do not move",
    "slow": "the lane marks pass by one after another",
    "fast": "the lane marks rush towards us",
    "turning left": "the whole view swings to the right",
    "turning right": "the whole view swings to the left",
}
_LAYOUT_TAIL = {
    "two-lane": "One lane goes each way.",
    "three-lane": "There is a lane on each side of ours.",
    "crossroads": "Another street crosses ours, and there is a crosswalk.",
    "left bend": "We cannot see what comes after the bend.",
    "right bend": "We cannot see what comes after the bend.",
}
_LEAD_TAIL = {
    "keeping": "The gap stays the same.",
    "closer": "The gap is shrinking quickly.",
    "away": "The gap is growing.",
    "left lane": "Our lane will soon be free.",
    "right lane": "Our lane will soon be free.",
    "none": "Nothing is close in front of us.",
}
_ACTION = {
    "to the right": "walking from left to right",
    "to the left": "walking from right to left",
    "standing": "standing still",
    "waving": "waving with both arms",
}
_SKY_TAIL = {
    "clear": "we can see far ahead",
    "rain": "the road is wet",
    "fog": "we cannot see far ahead",
    "snow": "the ground is white",
}
_WHEN = {"day": "On", "dusk": "In", "night": "On"}

PHRASING = Phrasing(
    clauses={
        "road": ("We are {ego} {where}.", "Right now we are {ego} {where}.", "ego layout"),
        "layout": (
            "We are {where} with {side} on both sides. {layout_tail}",
            "Here we are {where}, and there are {side} on both sides. {layout_tail}",
            "layout side",
        ),
        "sides": same("There are {side} on both sides of the road.", "side"),
        "ego": ("We are {ego}, and {ego_tail}.", "{ego_tail}, so we are {ego}.", "ego"),
        "no lead": same("There is no vehicle ahead of us, so our lane is free.", "lead.type"),
        "lead": (
            "{a_lead} is ahead of us, and it is {lead_motion}.",
            "Ahead of us there is {a_lead} that is {lead_motion}.",
            "lead.type lead.motion",
        ),
        "coloured lead": (
            "{a_coloured_lead} is ahead of us, and it is {lead_motion}.",
            "Ahead of us there is {a_coloured_lead} that is {lead_motion}.",
            "lead.type lead.motion lead.colour",
        ),
        "lead colour": (
            "The vehicle ahead of us is {a_coloured_lead}.", "It is {a_coloured_lead}.", "lead.colour lead.type",
        ),
        "gap": same("{lead_tail}"),
        "no people": (
            "There are no people near the road.", "We can see no people near the road.", "people.count",
        ),
        "people": ("{who} {be} {action}.", "We can see {who} {action}.", "people.count people.action {people_side}"),
        "nobody": same("There are no people here.", "people.count"),
        "count": ("There {be} {who}.", "We can count {who}.", "people.count {people_side}"),
        "coat": same("This person is wearing {coats}.", "people.colour"),
        "coats": same("They are wearing {coats}.", "people.colour"),
        "no cyclist": ("There is no cyclist.", "We can see no cyclist.", "cyclist"),
        "cyclist": (
            "A cyclist on the {cyclist_side} is riding {cyclist}.",
            "We can see a cyclist on the {cyclist_side} riding {cyclist}.",
            "cyclist {cyclist_side}",
        ),
        "left": ("There {left_be} {left_thing}.", "We find {left_thing}.", "{left_slots}"),
        "right": ("There {right_be} {right_thing}.", "We find {right_thing}.", "{right_slots}"),
        "left empty": same("The left side is empty.", "left"),
        "right empty": same("The right side is empty.", "right"),
        "left vehicle": same("There is {left_thing}.", "left"),
        "right vehicle": same("There is {right_thing}.", "right"),
        "no vehicle": same("Nothing is parked or oncoming."),
        "yes": same("Yes.", "presence"),
        "no": same("No.", "presence"),
        "signals": (
            "There is {light} {joint} {sign}.", "We can see {light} {joint} {sign} beside the road.", "light sign",
        ),
        "sky": ("It is a {sky} {time}, and {sky_tail}.", "{when} this {sky} {time} {sky_tail}.", "weather time"),
        "driver": (
            "The driver should {driver}, because {because}.", "Since {because}, the driver should {driver}.",
            "driver {reason}",
        ),
    },
    phrases={
        "where": ("layout", WHERE), "layout_tail": ("layout", _LAYOUT_TAIL), "side": ("side", SIDE),
        "ego": ("ego", _EGO), "ego_tail": ("ego", _EGO_TAIL),
        "lead_motion": ("lead_motion", LEAD), "lead_tail": ("lead_motion", _LEAD_TAIL),
        "action": ("people_action", _ACTION),
        "sky": ("weather", SKY), "sky_tail": ("weather", _SKY_TAIL), "when": ("time", _WHEN),
    },
    reasons={
        "light": "the light is {light_colour}",
        "lead.motion": "the {lead} ahead is getting closer",
        "people.action": "{number} {be} {action}",
        "sign": "there is a {sign_kind} sign",
        "weather": "we cannot see far in the fog",
        "none": "nothing is in our way",
    },
    preposition="on",
)  # fmt: skip


def _say(scene: Scene, style: Style, *parts: str) -> Answer:
    return [Sentence(capital(one.text), one.slots) for one in PHRASING.say(scene, style, *parts)]


def _of(*parts: str) -> Callable[[Scene, Style, str], Answer]:
    """Make a kind of question whose answer is always about the same parts."""
    return lambda scene, style, item: _say(scene, style, *parts)


def _key_elements(scene: Scene, style: Style, item: str) -> Answer:
    words = PHRASING.words(scene)
    things: list[tuple[str, str]] = []
    if scene.lead != "none":
        things.append((f"{words['a_coloured_lead']} ahead", "lead.type lead.colour"))
    things += [
        (words[f"{side}_thing"], words[f"{side}_slots"])
        for side in ("left", "right")
        if scene.thing_at(side) != "empty"
    ]
    things += [(words[name], name) for name in ("light", "sign") if getattr(scene, name) != "none"]
    *others, last = [noun for noun, _ in things]
    listed = f"{', '.join(others)} and {last}" if others else last
    text = f"The key elements are {listed}." if style == "a" else f"We can see {listed}."
    slots = tuple(slot for _, some in things for slot in some.split())
    return [Sentence(text, slots), *_say(scene, style, "layout")]


def _count(scene: Scene, style: Style, item: str) -> Answer:
    return _say(scene, style, "count" if scene.people else "nobody")


def _presence(scene: Scene, style: Style, item: str) -> Answer:
    there = item in (scene.left, scene.right)
    more = item
    if item not in ("people", "cyclist"):
        more = f"{'left' if scene.left == 'vehicle' else 'right'} vehicle" if there else "no vehicle"
    return _say(scene, style, "yes" if there else "no", more)


def _colour(scene: Scene, style: Style, item: str) -> Answer:
    return _say(scene, style, *(("coats", "people") if item == "people" else ("lead colour",)))


ANSWERS: AnswerTable = {
    "key elements": _key_elements,
    "layout": _of("layout", "signals", "sky"),
    "ego motion": _of("ego", "lead", "layout"),
    "lead motion": _of("lead", "gap", "road", "driver"),
    "watch for": _of("people", "cyclist", "lead", "driver"),
    "conditions": _of("sky", "sides", "road"),
    "people": _of("people", "coats", "cyclist", "driver"),
    "cyclist": _of("cyclist", "people", "ego"),
    "count": _count,
    "direction": _of("people", "cyclist", "lead", "road"),
    "order": _of("left", "lead", "right", "signals"),
    "presence": _presence,
    "colour": _colour,
    "signals": _of("signals", "driver", "lead"),
    "action": _of("driver", "road", "lead", "people"),
    "describe": _of("road", "sky", "coloured lead", "someone"),
}
