"""Sentences about the parts of a scene, each with the facts that it states: tables of clauses, and how to fill them.

Wording depends on the style (a or b, which the question decides) and on what is to be seen, never on chance:
a model that sees the scene can learn to write exactly these sentences.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from crossdraft_lab.scenes.scene import Scene, attributes, driver_action

Style = Literal["a", "b"]
Clause = tuple[str, str, str]
"""Text in style a, text in style b, and the slots of the facts that both state, spaces between; words in braces."""

WHERE = {
    "two-lane": "on a two-lane street",
    "three-lane": "on a three-lane road",
    "crossroads": "at a crossroads",
    "left bend": "on a road that bends to the left",
    "right bend": "on a road that bends to the right",
}
LEAD = {
    "keeping": "keeping its distance",
    "closer": "getting closer",
    "away": "pulling away",
    "left lane": "moving to the left lane",
    "right lane": "moving to the right lane",
}
NUMBER = ("no people", "one person", "two people", "three people")
SKY = {"clear": "clear", "rain": "rainy", "fog": "foggy", "snow": "snowy"}
SIDE = {"buildings": "buildings", "trees": "trees", "fields": "open fields"}
_REASON = {"lead.motion": "lead.motion lead.type", "people.action": "people.action people.count", "none": ""}


@dataclass(frozen=True, slots=True)
class Sentence:
    """Text of at most two sentences, and the slots of the facts it states."""

    text: str
    slots: tuple[str, ...]


Answer = list[Sentence]
AnswerTable = Mapping[str, Callable[[Scene, Style, str], Answer]]
"""What to say to each kind of question about a scene, in a style, about an item."""


def same(text: str, slots: str = "") -> Clause:
    """A clause that is the same in both styles."""
    return text, text, slots


def capital(text: str) -> str:
    """The text with its first letter in upper case."""
    return text[:1].upper() + text[1:]


def with_article(noun: str) -> str:
    """A noun after its article: a bus, an orange bus."""
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def be(count: int) -> str:
    """The form of "be" for a count."""
    return "is" if count == 1 else "are"


def people_side(scene: Scene) -> str:
    """The side with the people: "left", "right" or "none"."""
    return "left" if scene.left == "people" else "right" if scene.right == "people" else "none"


@dataclass(frozen=True)
class Phrasing:
    """A style of sentences: its clauses, and its words for the things in a scene.

    Args:
        clauses: by the part of the scene; "no lead", "no people", "no cyclist", "left empty" and so on stand for what
            is not there, "coat" for the coat of one person.
        phrases: word -> the attribute of a scene that it follows, and the words for its values.
        reasons: why the driver should do what `driver_action` says, by its reason.
        preposition: in front of the side of a vehicle that does not drive ahead: "on" or "to".
    """

    clauses: Mapping[str, Clause]
    phrases: Mapping[str, tuple[str, Mapping[str, str]]]
    reasons: Mapping[str, str]
    preposition: str

    def say(self, scene: Scene, style: Style, *parts: str) -> Answer:
        """The clauses of the parts, in their order; coats are mentioned only if somebody wears one."""
        words = self.words(scene)
        chosen = (_variant(scene, part) for part in parts)
        return [self._filled(self.clauses[name], style, words) for name in chosen if name]

    def words(self, scene: Scene) -> dict[str, str]:
        """The words that clauses may hold."""
        action, reason = driver_action(scene)
        colour = scene.people_colour
        words = {
            "who": f"{NUMBER[scene.people]} on the {people_side(scene)}",
            "number": NUMBER[scene.people],
            "be": be(scene.people),
            "people_side": people_side(scene),
            "coats": with_article(f"{colour} coat") if scene.people == 1 else f"{colour} coats",
            "cyclist": scene.cyclist,
            "cyclist_side": "left" if scene.left == "cyclist" else "right",
            "lead": scene.lead,
            "a_lead": with_article(scene.lead),
            "a_coloured_lead": with_article(f"{scene.lead_colour} {scene.lead}"),
            "light_colour": scene.light,
            "light": "no traffic light" if scene.light == "none" else f"a {scene.light} light",
            "sign_kind": scene.sign,
            "sign": "no sign" if scene.sign == "none" else f"a {scene.sign} sign",
            "joint": "but" if (scene.light == "none") != (scene.sign == "none") else "and",
            "time": scene.time,
            "driver": action,
            "reason": _REASON.get(reason, reason),
        }
        for word, (attribute, values) in self.phrases.items():
            words[word] = values.get(getattr(scene, attribute), values.get("none", ""))
        for side in ("left", "right"):
            thing = scene.thing_at(side)
            words[f"{side}_thing"] = self._thing(scene, side)
            words[f"{side}_be"] = be(scene.people if thing == "people" else 1)
            words[f"{side}_slots"] = f"{side} people.count" if thing == "people" else side
        return words | {"because": self.reasons[reason].format_map(words)}

    def _thing(self, scene: Scene, side: str) -> str:
        """The thing on a side, as a noun with its side."""
        thing = scene.thing_at(side)
        if thing == "vehicle":
            return f"{'an oncoming' if side == 'left' else 'a parked'} vehicle {self.preposition} the {side}"
        return f"{NUMBER[scene.people] if thing == 'people' else 'a cyclist'} on the {side}"

    def _filled(self, clause: Clause, style: Style, words: Mapping[str, str]) -> Sentence:
        a, b, slots = clause
        return Sentence((a if style == "a" else b).format_map(words), tuple(slots.format_map(words).split()))


def _variant(scene: Scene, part: str) -> str:
    """Clause for a part of a scene; "" where nothing is said of that part."""
    if part == "coats" and scene.people < 2:
        return "coat" if scene.people else ""
    if part in ("left", "right") and scene.thing_at(part) == "empty":
        return f"{part} empty"
    if part == "someone":
        part = "people" if scene.people else "cyclist"
    there = {"people": scene.people, "cyclist": scene.cyclist != "none", "lead": scene.lead != "none"}
    kind = part.removeprefix("coloured ").removesuffix(" colour")
    return part if there.get(kind, True) else f"no {kind}"


def facts_of(scene: Scene, sentences: list[Sentence], item: str = "") -> dict[str, str]:
    """The facts that the sentences state; `item` is what a question of presence asks for."""
    truth = attributes(scene) | {"presence": "yes" if item in (scene.left, scene.right) else "no"}
    return {slot: truth[slot] for sentence in sentences for slot in sentence.slots}
