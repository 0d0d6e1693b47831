"""Answers to each kind of question: their sentences, in order."""

from collections.abc import Callable, Mapping

from crossdraft_lab.scenes import sentences as say
from crossdraft_lab.scenes.scene import Scene
from crossdraft_lab.scenes.sentences import Sentence, Style

Answer = list[Sentence]
AnswerTable = Mapping[str, Callable[[Scene, Style, str], Answer]]
"""What to say to each kind of question about a scene, in a style, about an item."""


def _key_elements(scene: Scene, style: Style, item: str) -> Answer:
    things: list[tuple[str, tuple[str, ...]]] = []
    if scene.lead != "none":
        noun = say.with_article(f"{scene.lead_colour} {scene.lead}")
        things.append((f"{noun} ahead", ("lead.type", "lead.colour")))
    things += [
        (say.side_thing(scene, side), (side, "people.count") if scene.thing_at(side) == "people" else (side,))
        for side in ("left", "right")
        if scene.thing_at(side) != "empty"
    ]
    if scene.light != "none":
        things.append((f"a {scene.light} light", ("light",)))
    if scene.sign != "none":
        things.append((f"a {scene.sign} sign", ("sign",)))
    *others, last = [noun for noun, _ in things]
    listed = f"{', '.join(others)} and {last}" if others else last
    text = f"The key elements are {listed}." if style == "a" else f"We can see {listed}."
    return [Sentence(text, tuple(slot for _, slots in things for slot in slots)), say.layout(scene, style)]


def _layout(scene: Scene, style: Style, item: str) -> Answer:
    return [say.layout(scene, style), say.signals(scene, style), say.sky(scene, style)]


def _ego_motion(scene: Scene, style: Style, item: str) -> Answer:
    return [say.ego(scene, style), say.lead(scene, style), say.layout(scene, style)]


def _lead_motion(scene: Scene, style: Style, item: str) -> Answer:
    return [say.lead(scene, style), say.lead_gap(scene), say.road(scene, style), say.driver(scene, style)]


def _watch_for(scene: Scene, style: Style, item: str) -> Answer:
    return [say.people(scene, style), say.cyclist(scene, style), say.lead(scene, style), say.driver(scene, style)]


def _conditions(scene: Scene, style: Style, item: str) -> Answer:
    side = Sentence(f"There are {say.SIDE[scene.side]} on both sides of the road.", ("side",))
    return [say.sky(scene, style), side, say.road(scene, style)]


def _people(scene: Scene, style: Style, item: str) -> Answer:
    coats = [_coats(scene, style)] if scene.people else []
    return [say.people(scene, style), *coats, say.cyclist(scene, style), say.driver(scene, style)]


def _coats(scene: Scene, style: Style) -> Sentence:
    colour = scene.people_colour
    if scene.people == 1:
        return Sentence(f"This person is wearing {say.with_article(f'{colour} coat')}.", ("people.colour",))
    return Sentence(f"They are wearing {colour} coats.", ("people.colour",))


def _cyclist(scene: Scene, style: Style, item: str) -> Answer:
    return [say.cyclist(scene, style), say.people(scene, style), say.ego(scene, style)]


def _count(scene: Scene, style: Style, item: str) -> Answer:
    if not scene.people:
        return [Sentence("There are no people here.", ("people.count",))]
    be = "is" if scene.people == 1 else "are"
    where = f"{say.NUMBER[scene.people]} on the {say.people_side(scene)}"
    text = f"There {be} {where}." if style == "a" else f"We can count {where}."
    return [Sentence(text, ("people.count", say.people_side(scene)))]


def _direction(scene: Scene, style: Style, item: str) -> Answer:
    return [say.people(scene, style), say.cyclist(scene, style), say.lead(scene, style), say.road(scene, style)]


def _order(scene: Scene, style: Style, item: str) -> Answer:
    return [
        _one_side(scene, style, "left"),
        say.lead(scene, style),
        _one_side(scene, style, "right"),
        say.signals(scene, style),
    ]


def _one_side(scene: Scene, style: Style, side: str) -> Sentence:
    thing = scene.thing_at(side)
    if thing == "empty":
        return Sentence(f"The {side} side is empty.", (side,))
    be = "are" if thing == "people" and scene.people > 1 else "is"
    found = f"There {be}" if style == "a" else "We find"
    slots = (side, "people.count") if thing == "people" else (side,)
    return Sentence(f"{found} {say.side_thing(scene, side)}.", slots)


def _presence(scene: Scene, style: Style, item: str) -> Answer:
    there = item in (scene.left, scene.right)
    if item == "people":
        more = say.people(scene, style)
    elif item == "cyclist":
        more = say.cyclist(scene, style)
    else:
        side = "left" if scene.left == "vehicle" else "right"
        slots = (side,) if there else ()
        more = Sentence(
            f"There is {say.side_thing(scene, side)}." if there else "Nothing is parked or oncoming.", slots
        )
    return [Sentence("Yes." if there else "No.", ("presence",)), more]


def _colour(scene: Scene, style: Style, item: str) -> Answer:
    if item == "people":
        coats = [_coats(scene, style)] if scene.people else []
        return [*coats, say.people(scene, style)]
    if scene.lead == "none":
        return [say.lead(scene, style)]
    noun = say.with_article(f"{scene.lead_colour} {scene.lead}")
    text = f"The vehicle ahead of us is {noun}." if style == "a" else f"It is {noun}."
    return [Sentence(text, ("lead.colour", "lead.type"))]


def _signals(scene: Scene, style: Style, item: str) -> Answer:
    return [say.signals(scene, style), say.driver(scene, style), say.lead(scene, style)]


def _action(scene: Scene, style: Style, item: str) -> Answer:
    return [say.driver(scene, style), say.road(scene, style), say.lead(scene, style), say.people(scene, style)]


def _describe(scene: Scene, style: Style, item: str) -> Answer:
    last = say.people(scene, style) if scene.people else say.cyclist(scene, style)
    return [say.road(scene, style), say.sky(scene, style), say.lead(scene, style, colour=True), last]


ANSWERS: AnswerTable = {
    "key elements": _key_elements, "layout": _layout, "ego motion": _ego_motion, "lead motion": _lead_motion,
    "watch for": _watch_for, "conditions": _conditions, "people": _people, "cyclist": _cyclist, "count": _count,
    "direction": _direction, "order": _order, "presence": _presence, "colour": _colour, "signals": _signals,
    "action": _action, "describe": _describe,
}  # fmt: skip
