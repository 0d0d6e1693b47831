"""What to say to each kind of question: which sentences, in which order."""

from collections.abc import Callable

from crossdraft.scenes import sentences as say
from crossdraft.scenes.scene import Scene
from crossdraft.scenes.sentences import Sentence, Style

Answer = list[Sentence]


def _key_elements(scene: Scene, style: Style, item: str) -> Answer:
    parts: list[str] = []
    slots: list[str] = []
    if scene.lead != "none":
        parts.append(f"{say.with_article(f'{scene.lead_colour} {scene.lead}')} ahead")
        slots += ["lead.type", "lead.colour"]
    for side in ("left", "right"):
        if getattr(scene, side) != "empty":
            parts.append(say.side_thing(scene, side))
            slots.append(side)
    if scene.people:
        slots.append("people.count")
    if scene.light != "none":
        parts.append(f"a {scene.light} light")
        slots.append("light")
    if scene.sign != "none":
        parts.append(f"a {scene.sign} sign")
        slots.append("sign")
    listed = f"{', '.join(parts[:-1])} and {parts[-1]}" if len(parts) > 1 else parts[0]
    text = f"The key elements are {listed}." if style == "a" else f"We can see {listed}."
    return [Sentence(text, tuple(slots)), say.layout(scene, style)]


def _layout(scene: Scene, style: Style, item: str) -> Answer:
    return [say.layout(scene, style), say.signals(scene, style), say.sky(scene, style)]


def _ego_motion(scene: Scene, style: Style, item: str) -> Answer:
    return [say.ego(scene, style), say.lead(scene, style), say.layout(scene, style)]


def _lead_motion(scene: Scene, style: Style, item: str) -> Answer:
    return [say.lead(scene, style), say.lead_gap(scene), say.road(scene, style), say.driver(scene, style)]


def _watch_for(scene: Scene, style: Style, item: str) -> Answer:
    return [
        say.people(scene, style),
        say.cyclist(scene, style),
        say.lead(scene, style),
        say.driver(scene, style),
    ]


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
    return [
        say.people(scene, style),
        say.cyclist(scene, style),
        say.lead(scene, style),
        say.road(scene, style),
    ]


def _order(scene: Scene, style: Style, item: str) -> Answer:
    told: Answer = []
    for side in ("left", "right"):
        if getattr(scene, side) == "empty":
            told.append(Sentence(f"The {side} side is empty.", (side,)))
            continue
        slots = (side, "people.count") if getattr(scene, side) == "people" else (side,)
        be = "are" if getattr(scene, side) == "people" and scene.people > 1 else "is"
        text = (
            f"There {be} {say.side_thing(scene, side)}."
            if style == "a"
            else f"We find {say.side_thing(scene, side)}."
        )
        told.append(Sentence(text, slots))
    return [told[0], say.lead(scene, style), told[1], say.signals(scene, style)]


def _presence(scene: Scene, style: Style, item: str) -> Answer:
    if item == "people":
        there, more = scene.people > 0, say.people(scene, style)
    elif item == "cyclist":
        there, more = scene.cyclist != "none", say.cyclist(scene, style)
    else:
        side = "left" if scene.left == "vehicle" else "right"
        there = "vehicle" in (scene.left, scene.right)
        slots = (side,) if there else ()
        more = Sentence(
            f"There is {say.side_thing(scene, side)}." if there else "Nothing is parked or oncoming.", slots
        )
    return [Sentence("Yes." if there else "No.", ("presence",)), more]


def _colour(scene: Scene, style: Style, item: str) -> Answer:
    if item == "people":
        return (
            [_coats(scene, style), say.people(scene, style)] if scene.people else [say.people(scene, style)]
        )
    if scene.lead == "none":
        return [say.lead(scene, style)]
    noun = say.with_article(f"{scene.lead_colour} {scene.lead}")
    text = f"The vehicle ahead of us is {noun}." if style == "a" else f"It is {noun}."
    return [Sentence(text, ("lead.colour", "lead.type"))]


def _signals(scene: Scene, style: Style, item: str) -> Answer:
    return [say.signals(scene, style), say.driver(scene, style), say.lead(scene, style)]


def _action(scene: Scene, style: Style, item: str) -> Answer:
    return [
        say.driver(scene, style),
        say.road(scene, style),
        say.lead(scene, style),
        say.people(scene, style),
    ]


def _describe(scene: Scene, style: Style, item: str) -> Answer:
    last = say.people(scene, style) if scene.people else say.cyclist(scene, style)
    return [say.road(scene, style), say.sky(scene, style), say.lead(scene, style, colour=True), last]


ANSWERS: dict[str, Callable[[Scene, Style, str], Answer]] = {
    "key elements": _key_elements,
    "layout": _layout,
    "ego motion": _ego_motion,
    "lead motion": _lead_motion,
    "watch for": _watch_for,
    "conditions": _conditions,
    "people": _people,
    "cyclist": _cyclist,
    "count": _count,
    "direction": _direction,
    "order": _order,
    "presence": _presence,
    "colour": _colour,
    "signals": _signals,
    "action": _action,
    "describe": _describe,
}
