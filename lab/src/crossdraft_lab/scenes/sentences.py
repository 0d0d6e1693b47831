"""Sentences about one part of a scene, each with the facts that it states.

Wording depends on the style (a or b, which the question decides) and on what is to be seen, never on chance:
a model that sees the scene can learn to write exactly this.
"""

from dataclasses import dataclass
from typing import Literal

from crossdraft_lab.scenes.scene import Scene, attributes, driver_action

Style = Literal["a", "b"]

WHERE = {
    "two-lane": "on a two-lane street",
    "three-lane": "on a three-lane road",
    "crossroads": "at a crossroads",
    "left bend": "on a road that bends to the left",
    "right bend": "on a road that bends to the right",
}
_LAYOUT_TAIL = {
    "two-lane": "One lane goes each way.",
    "three-lane": "There is a lane on each side of ours.",
    "crossroads": "Another street crosses ours, and there is a crosswalk.",
    "left bend": "We cannot see what comes after the bend.",
    "right bend": "We cannot see what comes after the bend.",
}
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
LEAD = {
    "keeping": "keeping its distance",
    "closer": "getting closer",
    "away": "pulling away",
    "left lane": "moving to the left lane",
    "right lane": "moving to the right lane",
}
_LEAD_TAIL = {
    "keeping": "The gap stays the same.",
    "closer": "The gap is shrinking quickly.",
    "away": "The gap is growing.",
    "left lane": "Our lane will soon be free.",
    "right lane": "Our lane will soon be free.",
}
NUMBER = ("no people", "one person", "two people", "three people")
_ACTION = {
    "to the right": "walking from left to right",
    "to the left": "walking from right to left",
    "standing": "standing still",
    "waving": "waving with both arms",
}
SKY = {"clear": "clear", "rain": "rainy", "fog": "foggy", "snow": "snowy"}
_SKY_TAIL = {
    "clear": "we can see far ahead",
    "rain": "the road is wet",
    "fog": "we cannot see far ahead",
    "snow": "the ground is white",
}
SIDE = {"buildings": "buildings", "trees": "trees", "fields": "open fields"}


@dataclass(frozen=True, slots=True)
class Sentence:
    """Text of at most two sentences, and the slots of the facts it states."""

    text: str
    slots: tuple[str, ...]


def capital(text: str) -> str:
    """The text with its first letter in upper case."""
    return text[:1].upper() + text[1:]


def with_article(noun: str) -> str:
    """A noun after its article: a bus, an orange bus."""
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def people_side(scene: Scene) -> str:
    """The side with the people: "left", "right" or "none"."""
    return "left" if scene.left == "people" else "right" if scene.right == "people" else "none"


def road(scene: Scene, style: Style) -> Sentence:
    """Say how we move, and on what road."""
    we, where = f"we are {_EGO[scene.ego]}", WHERE[scene.layout]
    text = capital(f"{we} {where}.") if style == "a" else f"Right now {we} {where}."
    return Sentence(text, ("ego", "layout"))


def layout(scene: Scene, style: Style) -> Sentence:
    """The road and what stands beside it."""
    where, side = WHERE[scene.layout], f"{SIDE[scene.side]} on both sides"
    text = f"We are {where} with {side}." if style == "a" else f"Here we are {where}, and there are {side}."
    return Sentence(f"{text} {_LAYOUT_TAIL[scene.layout]}", ("layout", "side"))


def ego(scene: Scene, style: Style) -> Sentence:
    """Say how we move, and how that shows."""
    we, tail = f"we are {_EGO[scene.ego]}", _EGO_TAIL[scene.ego]
    text = f"{we}, and {tail}." if style == "a" else f"{tail}, so {we}."
    return Sentence(capital(text), ("ego",))


def lead(scene: Scene, style: Style, colour: bool = False) -> Sentence:
    """The vehicle ahead and what it does."""
    if scene.lead == "none":
        return Sentence("There is no vehicle ahead of us, so our lane is free.", ("lead.type",))
    noun = with_article(f"{scene.lead_colour} {scene.lead}" if colour else scene.lead)
    slots = ("lead.type", "lead.motion", *(("lead.colour",) if colour else ()))
    if style == "a":
        return Sentence(f"{capital(noun)} is ahead of us, and it is {LEAD[scene.lead_motion]}.", slots)
    return Sentence(f"Ahead of us there is {noun} that is {LEAD[scene.lead_motion]}.", slots)


def lead_gap(scene: Scene) -> Sentence:
    """Say what the lead vehicle's motion means for the gap."""
    return Sentence(_LEAD_TAIL.get(scene.lead_motion, "Nothing is close in front of us."), ())


def people(scene: Scene, style: Style) -> Sentence:
    """Say how many people there are, where, and what they do."""
    if not scene.people:
        text = "There are no people near the road." if style == "a" else "We can see no people near the road."
        return Sentence(text, ("people.count",))
    who, side = NUMBER[scene.people], people_side(scene)
    slots = ("people.count", "people.action", side)
    if style == "a":
        be = "is" if scene.people == 1 else "are"
        return Sentence(f"{capital(who)} on the {side} {be} {_ACTION[scene.people_action]}.", slots)
    return Sentence(f"We can see {who} on the {side} {_ACTION[scene.people_action]}.", slots)


def cyclist(scene: Scene, style: Style) -> Sentence:
    """Say whether there is a cyclist, where, and which way they ride."""
    if scene.cyclist == "none":
        text = "There is no cyclist." if style == "a" else "We can see no cyclist."
        return Sentence(text, ("cyclist",))
    side = "left" if scene.left == "cyclist" else "right"
    if style == "a":
        return Sentence(f"A cyclist on the {side} is riding {scene.cyclist}.", ("cyclist", side))
    return Sentence(f"We can see a cyclist on the {side} riding {scene.cyclist}.", ("cyclist", side))


def signals(scene: Scene, style: Style) -> Sentence:
    """The traffic light and the sign."""
    slots = ("light", "sign")
    light = "no traffic light" if scene.light == "none" else f"a {scene.light} light"
    sign = "no sign" if scene.sign == "none" else f"a {scene.sign} sign"
    joint = "but" if (scene.light == "none") != (scene.sign == "none") else "and"
    if style == "a":
        return Sentence(f"There is {light} {joint} {sign}.", slots)
    return Sentence(f"We can see {light} {joint} {sign} beside the road.", slots)


def sky(scene: Scene, style: Style) -> Sentence:
    """Weather and time of day."""
    when, tail = f"{SKY[scene.weather]} {scene.time}", _SKY_TAIL[scene.weather]
    text = (
        f"It is a {when}, and {tail}."
        if style == "a"
        else f"{'In' if scene.time == 'dusk' else 'On'} this {when} {tail}."
    )
    return Sentence(text, ("weather", "time"))


def side_thing(scene: Scene, side: str) -> str:
    """The thing on a side, as a noun with its side."""
    thing = scene.thing_at(side)
    if thing == "vehicle":
        return "an oncoming vehicle on the left" if side == "left" else "a parked vehicle on the right"
    return f"{NUMBER[scene.people] if thing == 'people' else 'a cyclist'} on the {side}"


def driver(scene: Scene, style: Style) -> Sentence:
    """Say what the driver should do, and why."""
    action, slot = driver_action(scene)
    reasons = {
        "light": f"the light is {scene.light}",
        "lead.motion": f"the {scene.lead} ahead is getting closer",
        "people.action": f"{NUMBER[scene.people]} {'is' if scene.people == 1 else 'are'} "
        f"{_ACTION.get(scene.people_action, '')}",
        "sign": f"there is a {scene.sign} sign",
        "weather": "we cannot see far in the fog",
        "none": "nothing is in our way",
    }
    slots = ("driver", *({"lead.motion": ("lead.motion", "lead.type"), "none": ()}.get(slot, (slot,))))
    if slot == "people.action":
        slots = (*slots, "people.count")
    because = reasons[slot]
    text = (
        f"The driver should {action}, because {because}."
        if style == "a"
        else f"Since {because}, the driver should {action}."
    )
    return Sentence(text, slots)


def facts_of(scene: Scene, sentences: list[Sentence], item: str = "") -> dict[str, str]:
    """The facts that the sentences state; `item` is what a question of presence asks for."""
    truth = attributes(scene) | {"presence": "yes" if item in (scene.left, scene.right) else "no"}
    return {slot: truth[slot] for sentence in sentences for slot in sentence.slots}
