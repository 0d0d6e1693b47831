"""Captions with the answers' facts in other words, as an event model says that never read the target's answers.

Every kind of question has a caption that states what the answer of `answers` states, in sentences of its own and in
another order. A caption opens as EventGPT's do: "In the scene, there is …".
"""

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
    people_side,
    same,
)

_OPENING: dict[Style, str] = {"a": "In the scene, ", "b": "In the clip, "}
_ROAD = {layout: where.split(" ", 1)[1] for layout, where in WHERE.items()}
_ROAD_TAIL = {
    "two-lane": "which has one lane for each way",
    "three-lane": "with two other lanes beside this one",
    "crossroads": "where another street and a crosswalk come through",
    "left bend": "and what comes next is not in view",
    "right bend": "and what comes next is not in view",
}
_EGO = {
    "stopped": "not moving",
    "slow": "going slowly",
    "fast": "going fast",
    "turning left": "turning left",
    "turning right": "turning right",
}
_EGO_TAIL = {
    "stopped": "the ground stays in place",
    "slow": "the ground moves by slowly",
    "fast": "the ground rushes by",
    "turning left": "all things move to the right",
    "turning right": "all things move to the left",
}
_LEAD_TAIL = {
    "keeping": "the distance is the same in the whole clip",
    "closer": "the distance is going down",
    "away": "the distance is going up",
    "left lane": "it is on its way out of this lane",
    "right lane": "it is on its way out of this lane",
    "none": "the way in front is free",
}
_ACTION = {
    "to the right": "going from left to right",
    "to the left": "going from right to left",
    "standing": "standing still",
    "waving": "waving at the driver",
}
_SKY_TAIL = {
    "clear": "far things are in view",
    "rain": "the ground is wet",
    "fog": "far things are out of view",
    "snow": "the road is white",
}

PHRASING = Phrasing(
    clauses={
        "road": ("the driver is {ego} {where}", "{where}, the driver is {ego}", "ego layout"),
        "layout": (
            "there are {side} on each side of {road}, {road_tail}", "the layout is {road} near {side}, {road_tail}",
            "layout side",
        ),
        "sides": ("there are {side} near the road", "{side} are near the road", "side"),
        "ego": (
            "the driver is {ego}, so {ego_tail}", "{ego_tail}, which means that the driver is {ego}", "ego",
        ),
        "no lead": (
            "there is no vehicle ahead in the open lane", "the lane is open with no vehicle ahead", "lead.type",
        ),
        "lead": (
            "there is {a_lead} in front, which is {lead_motion}", "{a_lead} is in front, now {lead_motion}",
            "lead.type lead.motion",
        ),
        "coloured lead": (
            "there is {a_coloured_lead} in front, which is {lead_motion}",
            "{a_coloured_lead} is in front, now {lead_motion}",
            "lead.type lead.motion lead.colour",
        ),
        "lead colour": (
            "there is {a_coloured_lead} in front", "what we see in front is {a_coloured_lead}", "lead.colour lead.type",
        ),
        "gap": same("{lead_tail}"),
        "no people": ("no people are in view", "there are no people in view", "people.count"),
        "people": (
            "there {be} {who}, {action}", "{who} {be} now {action}", "people.count people.action {people_side}",
        ),
        "coat": ("the person has {coats}", "{coats} is what we see this person in", "people.colour"),
        "coats": ("the people have {coats}", "{coats} are what we see them in", "people.colour"),
        "no cyclist": ("no cyclist is in view", "there is no cyclist in view", "cyclist"),
        "cyclist": (
            "there is a cyclist on the {cyclist_side}, riding {cyclist}",
            "a cyclist on the {cyclist_side} is now riding {cyclist}",
            "cyclist {cyclist_side}",
        ),
        "left": ("there {left_be} {left_thing}", "{left_thing} {left_be} in view", "{left_slots}"),
        "right": ("there {right_be} {right_thing}", "{right_thing} {right_be} in view", "{right_slots}"),
        "left empty": ("the left side is empty", "we see that the left side is empty", "left"),
        "right empty": ("the right side is empty", "we see that the right side is empty", "right"),
        "no vehicle": same("both sides are free of any vehicle"),
        "yes": same("so we say yes", "presence"),
        "no": same("so we say no", "presence"),
        "signals": (
            "there is {sign} near the road, with {light}", "{sign} and {light} are near the road", "light sign",
        ),
        "sky": (
            "the weather is {sky} at this time of {time}, so {sky_tail}", "{sky_tail} in the {sky} {time}",
            "weather time",
        ),
        "driver": (
            "{because}, so one should {driver}", "one should {driver} because {because}", "driver {reason}",
        ),
    },
    phrases={
        "where": ("layout", WHERE), "road": ("layout", _ROAD), "road_tail": ("layout", _ROAD_TAIL),
        "side": ("side", SIDE), "ego": ("ego", _EGO), "ego_tail": ("ego", _EGO_TAIL),
        "lead_motion": ("lead_motion", LEAD), "lead_tail": ("lead_motion", _LEAD_TAIL),
        "action": ("people_action", _ACTION), "sky": ("weather", SKY), "sky_tail": ("weather", _SKY_TAIL),
    },
    reasons={
        "light": "there is a {light_colour} light",
        "lead.motion": "the {lead} in front is getting closer",
        "people.action": "{number} {be} {action}",
        "sign": "a {sign_kind} sign is near",
        "weather": "far things are out of view in the fog",
        "none": "the whole way is free",
    },
    preposition="to",
)  # fmt: skip


def _caption(style: Style, parts: Answer) -> Answer:
    """Sentences from clauses: the first follows the opening, the others begin with a capital."""
    first, *others = parts
    return [
        Sentence(f"{_OPENING[style]}{first.text}.", first.slots),
        *(Sentence(capital(f"{part.text}."), part.slots) for part in others),
    ]


def _of(*parts: str) -> Callable[[Scene, Style, str], Answer]:
    """Make a kind of question whose caption is always about the same parts."""
    return lambda scene, style, item: _caption(style, PHRASING.say(scene, style, *parts))


def _key_elements(scene: Scene, style: Style, item: str) -> Answer:
    words = PHRASING.words(scene)
    things = [(words[name], name) for name in ("sign", "light") if getattr(scene, name) != "none"]
    things += [
        (words[f"{side}_thing"], words[f"{side}_slots"])
        for side in ("right", "left")
        if scene.thing_at(side) != "empty"
    ]
    if scene.lead != "none":
        things.append((f"{words['a_coloured_lead']} in front", "lead.type lead.colour"))
    listed = " and ".join(noun for noun, _ in things)
    text = f"the main things are {listed}" if style == "a" else f"in view are {listed}"
    elements = Sentence(text, tuple(slot for _, some in things for slot in some.split()))
    return _caption(style, [*PHRASING.say(scene, style, "layout"), elements])


def _count(scene: Scene, style: Style, item: str) -> Answer:
    side = people_side(scene)
    return _of("people" if side == "none" else side)(scene, style, item)


def _presence(scene: Scene, style: Style, item: str) -> Answer:
    there = item in (scene.left, scene.right)
    more = item
    if item not in ("people", "cyclist"):
        more = ("left" if scene.left == "vehicle" else "right") if there else "no vehicle"
    return _of(more, "yes" if there else "no")(scene, style, item)


def _colour(scene: Scene, style: Style, item: str) -> Answer:
    return _of(*(("people", "coats") if item == "people" else ("lead colour",)))(scene, style, item)


CAPTIONS: AnswerTable = {
    "key elements": _key_elements,
    "layout": _of("signals", "sky", "layout"),
    "ego motion": _of("lead", "layout", "ego"),
    "lead motion": _of("driver", "road", "lead", "gap"),
    "watch for": _of("driver", "lead", "cyclist", "people"),
    "conditions": _of("sides", "road", "sky"),
    "people": _of("driver", "cyclist", "people", "coats"),
    "cyclist": _of("ego", "people", "cyclist"),
    "count": _count,
    "direction": _of("road", "lead", "cyclist", "people"),
    "order": _of("signals", "right", "lead", "left"),
    "presence": _presence,
    "colour": _colour,
    "signals": _of("lead", "driver", "signals"),
    "action": _of("people", "lead", "road", "driver"),
    "describe": _of("someone", "coloured lead", "sky", "road"),
}
