"""The same facts in other wordings: what an event model says that never read the target's answers.

Every kind of question has a caption that states what the answer of `answers` states, in sentences of its own and in
another order. A caption opens as EventGPT's do: "In the scene, there is …".
"""

from collections.abc import Callable

from crossdraft_lab.scenes import sentences as say
from crossdraft_lab.scenes.answers import Answer, AnswerTable
from crossdraft_lab.scenes.scene import Scene, driver_action
from crossdraft_lab.scenes.sentences import Sentence, Style

_OPENING: dict[Style, str] = {"a": "In the scene, ", "b": "In the clip, "}
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


def _caption(style: Style, *parts: Sentence) -> Answer:
    """Sentences from clauses: the first one after the opening, the others with a capital."""
    first, *others = parts
    return [
        Sentence(f"{_OPENING[style]}{first.text}.", first.slots),
        *(Sentence(say.capital(f"{part.text}."), part.slots) for part in others),
    ]


def _road(scene: Scene, style: Style) -> Sentence:
    driver, where = f"the driver is {_EGO[scene.ego]}", say.WHERE[scene.layout]
    return Sentence(f"{driver} {where}" if style == "a" else f"{where}, {driver}", ("ego", "layout"))


def _layout(scene: Scene, style: Style) -> Sentence:
    road, side, tail = say.WHERE[scene.layout].split(" ", 1)[1], say.SIDE[scene.side], _ROAD_TAIL[scene.layout]
    text = f"there are {side} on each side of {road}, {tail}"
    return Sentence(text if style == "a" else f"the layout is {road} near {side}, {tail}", ("layout", "side"))


def _ego(scene: Scene, style: Style) -> Sentence:
    driver, tail = f"the driver is {_EGO[scene.ego]}", _EGO_TAIL[scene.ego]
    return Sentence(f"{driver}, so {tail}" if style == "a" else f"{tail}, which means that {driver}", ("ego",))


def _lead(scene: Scene, style: Style, colour: bool = False) -> Sentence:
    if scene.lead == "none":
        text = "there is no vehicle ahead in the open lane"
        return Sentence(text if style == "a" else "the lane is open with no vehicle ahead", ("lead.type",))
    noun, motion = say.with_article(f"{scene.lead_colour} {scene.lead}" if colour else scene.lead), scene.lead_motion
    text = f"there is {noun} in front, which is {say.LEAD[motion]}"
    slots = ("lead.type", "lead.motion", *(("lead.colour",) if colour else ()))
    return Sentence(text if style == "a" else f"{noun} is in front, now {say.LEAD[motion]}", slots)


def _lead_gap(scene: Scene, style: Style) -> Sentence:
    return Sentence(_LEAD_TAIL.get(scene.lead_motion, "the way in front is free"), ())


def _people(scene: Scene, style: Style) -> Sentence:
    if not scene.people:
        text = "no people are in view" if style == "a" else "there are no people in view"
        return Sentence(text, ("people.count",))
    side, action = say.people_side(scene), _ACTION[scene.people_action]
    who, be = f"{say.NUMBER[scene.people]} on the {side}", _be(scene.people)
    text = f"there {be} {who}, {action}" if style == "a" else f"{who} {be} now {action}"
    return Sentence(text, ("people.count", "people.action", side))


def _coats(scene: Scene, style: Style) -> Sentence:
    one, colour = scene.people == 1, scene.people_colour
    coats = say.with_article(f"{colour} coat") if one else f"{colour} coats"
    if style == "a":
        return Sentence(f"the {'person has' if one else 'people have'} {coats}", ("people.colour",))
    who = "this person" if one else "them"
    return Sentence(f"{coats} {_be(scene.people)} what we see {who} in", ("people.colour",))


def _cyclist(scene: Scene, style: Style) -> Sentence:
    if scene.cyclist == "none":
        return Sentence("no cyclist is in view" if style == "a" else "there is no cyclist in view", ("cyclist",))
    side = "left" if scene.left == "cyclist" else "right"
    who, riding = f"a cyclist on the {side}", f"riding {scene.cyclist}"
    return Sentence(f"there is {who}, {riding}" if style == "a" else f"{who} is now {riding}", ("cyclist", side))


def _signals(scene: Scene, style: Style) -> Sentence:
    light = "no traffic light" if scene.light == "none" else f"a {scene.light} light"
    sign = "no sign" if scene.sign == "none" else f"a {scene.sign} sign"
    text = f"there is {sign} near the road, with {light}" if style == "a" else f"{sign} and {light} are near the road"
    return Sentence(text, ("light", "sign"))


def _sky(scene: Scene, style: Style) -> Sentence:
    sky, tail = say.SKY[scene.weather], _SKY_TAIL[scene.weather]
    text = f"the weather is {sky} at this time of {scene.time}, so {tail}"
    return Sentence(text if style == "a" else f"{tail} in the {sky} {scene.time}", ("weather", "time"))


def _roadside(scene: Scene, style: Style) -> Sentence:
    side = say.SIDE[scene.side]
    return Sentence(f"there are {side} near the road" if style == "a" else f"{side} are near the road", ("side",))


def _driver(scene: Scene, style: Style) -> Sentence:
    action, slot = driver_action(scene)
    reason, slots = {
        "light": (f"there is a {scene.light} light", ("light",)),
        "lead.motion": (f"the {scene.lead} in front is getting closer", ("lead.motion", "lead.type")),
        "people.action": (
            f"{say.NUMBER[scene.people]} {_be(scene.people)} {_ACTION.get(scene.people_action, '')}",
            ("people.action", "people.count"),
        ),
        "sign": (f"a {scene.sign} sign is near", ("sign",)),
        "weather": ("far things are out of view in the fog", ("weather",)),
        "none": ("the whole way is free", ()),
    }[slot]
    text = f"{reason}, so one should {action}" if style == "a" else f"one should {action} because {reason}"
    return Sentence(text, ("driver", *slots))


def _thing(scene: Scene, side: str) -> Sentence:
    """The thing on a side, as a noun."""
    thing = scene.thing_at(side)
    if thing == "vehicle":
        return Sentence(f"{'an oncoming' if side == 'left' else 'a parked'} vehicle to the {side}", (side,))
    if thing == "people":
        return Sentence(f"{say.NUMBER[scene.people]} on the {side}", (side, "people.count"))
    return Sentence(f"a cyclist on the {side}", (side,))


def _one_side(scene: Scene, style: Style, side: str) -> Sentence:
    thing = scene.thing_at(side)
    if thing == "empty":
        text = f"the {side} side is empty"
        return Sentence(text if style == "a" else f"we see that {text}", (side,))
    noun, be = _thing(scene, side), _be(scene.people if thing == "people" else 1)
    return Sentence(f"there {be} {noun.text}" if style == "a" else f"{noun.text} {be} in view", noun.slots)


def _be(count: int) -> str:
    return "is" if count == 1 else "are"


def _elements(scene: Scene, style: Style) -> Sentence:
    things: list[Sentence] = []
    if scene.sign != "none":
        things.append(Sentence(f"a {scene.sign} sign", ("sign",)))
    if scene.light != "none":
        things.append(Sentence(f"a {scene.light} light", ("light",)))
    things += [_thing(scene, side) for side in ("right", "left") if scene.thing_at(side) != "empty"]
    if scene.lead != "none":
        noun = say.with_article(f"{scene.lead_colour} {scene.lead}")
        things.append(Sentence(f"{noun} in front", ("lead.type", "lead.colour")))
    listed = " and ".join(thing.text for thing in things)
    text = f"the main things are {listed}" if style == "a" else f"in view are {listed}"
    return Sentence(text, tuple(slot for thing in things for slot in thing.slots))


def _count(scene: Scene, style: Style, item: str) -> Answer:
    side = say.people_side(scene)
    return _caption(style, _people(scene, style) if side == "none" else _one_side(scene, style, side))


def _presence(scene: Scene, style: Style, item: str) -> Answer:
    there = item in (scene.left, scene.right)
    if item == "people":
        more = _people(scene, style)
    elif item == "cyclist":
        more = _cyclist(scene, style)
    elif there:
        more = _one_side(scene, style, "left" if scene.left == "vehicle" else "right")
    else:
        more = Sentence("both sides are free of any vehicle", ())
    return _caption(style, more, Sentence(f"so we say {'yes' if there else 'no'}", ("presence",)))


def _colour(scene: Scene, style: Style, item: str) -> Answer:
    if item == "people":
        return _caption(style, _people(scene, style), *([_coats(scene, style)] if scene.people else []))
    if scene.lead == "none":
        return _caption(style, _lead(scene, style))
    noun = say.with_article(f"{scene.lead_colour} {scene.lead}")
    text = f"there is {noun} in front" if style == "a" else f"what we see in front is {noun}"
    return _caption(style, Sentence(text, ("lead.colour", "lead.type")))


def _of(*parts: Callable[[Scene, Style], Sentence]) -> Callable[[Scene, Style, str], Answer]:
    """A kind whose caption is always of the same parts."""
    return lambda scene, style, item: _caption(style, *(part(scene, style) for part in parts))


def _left(scene: Scene, style: Style) -> Sentence:
    return _one_side(scene, style, "left")


def _right(scene: Scene, style: Style) -> Sentence:
    return _one_side(scene, style, "right")


def _coloured_lead(scene: Scene, style: Style) -> Sentence:
    return _lead(scene, style, colour=True)


def _someone(scene: Scene, style: Style) -> Sentence:
    return _people(scene, style) if scene.people else _cyclist(scene, style)


def _people_kind(scene: Scene, style: Style, item: str) -> Answer:
    coats = [_coats(scene, style)] if scene.people else []
    return _caption(style, _driver(scene, style), _cyclist(scene, style), _people(scene, style), *coats)


CAPTIONS: AnswerTable = {
    "key elements": _of(_layout, _elements),
    "layout": _of(_signals, _sky, _layout),
    "ego motion": _of(_lead, _layout, _ego),
    "lead motion": _of(_driver, _road, _lead, _lead_gap),
    "watch for": _of(_driver, _lead, _cyclist, _people),
    "conditions": _of(_roadside, _road, _sky),
    "people": _people_kind,
    "cyclist": _of(_ego, _people, _cyclist),
    "count": _count,
    "direction": _of(_road, _lead, _cyclist, _people),
    "order": _of(_signals, _right, _lead, _left),
    "presence": _presence,
    "colour": _colour,
    "signals": _of(_lead, _driver, _signals),
    "action": _of(_people, _lead, _road, _driver),
    "describe": _of(_someone, _coloured_lead, _sky, _road),
}
