"""Structured answers in benches: structures for questions about scenes, and masks that are timed."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from crossdraft.checks import text
from crossdraft.engine.detokenize import TokenText
from crossdraft.engine.structure import Masks, MaskSource
from crossdraft.engine.tree import DraftTree
from crossdraft.errors import CrossdraftError
from crossdraft.structure.structure import Structure

COLOUR, SIDE = {"enum": ["red", "green", "blue", "white", "grey"]}, {"enum": ["left", "right", "ahead"]}
THING = {
    "type": "object",
    "properties": {"kind": {"enum": ["car", "person", "bicycle", "sign"]}, "colour": COLOUR, "where": SIDE},
    "required": ["kind", "colour", "where"],
    "additionalProperties": False,
}
SCENE = {
    "type": "object",
    "properties": {"cars": {"type": "integer"}, "dark": {"type": "boolean"}, "note": {"type": "string"}},
    "required": ["cars", "dark", "note"],
    "additionalProperties": False,
}
STRUCTURES = (
    Structure.json(THING),
    Structure.json({"type": "array", "items": THING, "minItems": 1, "maxItems": 3}),
    Structure.json(SCENE),
    Structure.json(),
    Structure.regex(r"(yes|no), there (is|are) [a-z ]{3,40}\."),
    Structure.choice(["the road is clear", "the road is blocked", "it is not clear"]),
    Structure.grammar('start: fact (" " fact)*\nfact: "the " ("car" | "person") " is " /[a-z]{2,9}/ "."'),
)
KINDS = ("schema", "regex", "choice", "grammar")


def structure_of(entry: Mapping[str, Any], where: str) -> Structure | None:
    """Read the structure of a line of prompts, which stands under one of `KINDS`; `None` = any text.

    Raises:
        CrossdraftError: several are given, or one cannot be read.
    """
    given = [kind for kind in KINDS if entry.get(kind) is not None]
    if not given:
        return None
    if len(given) > 1:
        raise CrossdraftError(f"{where} has {' and '.join(given)}; write one of them.")
    match given[0], entry[given[0]]:
        case "schema", dict() | str() | bool() as schema:
            return Structure.json(schema)
        case "choice", list() as texts:
            return Structure.choice(texts)
        case ("regex" | "grammar") as kind, value:
            return (Structure.regex if kind == "regex" else Structure.grammar)(text(f"{kind} of {where}", value, "…"))
        case kind, value:
            raise CrossdraftError(f"{where} has {value!r:.100} under {kind}; write a schema, or a list of texts.")


@dataclass
class TimedMasks:
    """The masks of an answer, and the seconds of wall time that they took.

    Args:
        masks_of: the answer's masks.
        forced_text: whether text that must come is drafted.
        seconds, nodes: time of all masks, and the places in the answer and its drafts that were asked about.
    """

    masks_of: Masks
    forced_text: bool = True
    seconds: float = 0.0
    nodes: int = 0

    def allowed(self, tree: DraftTree) -> list[int]:
        return self.masks_of.allowed(tree)

    def allows(self, path: Sequence[int], token: int) -> bool:
        start = time.perf_counter()
        found = self.masks_of.allows(path, token)
        self.seconds += time.perf_counter() - start
        self.nodes += found  # else `mask` is asked next
        return found

    def mask(self, path: Sequence[int] = ()) -> Tensor:
        start = time.perf_counter()
        found = self.masks_of.mask(path)
        self.seconds += time.perf_counter() - start
        self.nodes += 1
        return found

    def forced(self, nodes: int) -> DraftTree:
        return self.masks_of.forced(nodes) if self.forced_text else DraftTree.empty()

    def commit(self, tokens: Sequence[int]) -> None:
        self.masks_of.commit(tokens)


@dataclass
class TimedStructure:
    """A structure whose answers' masks are timed; `answers` are theirs, in the order in which they began."""

    source: MaskSource
    forced_text: bool = True
    answers: list[TimedMasks] = field(default_factory=list[TimedMasks])

    def begin(self, text: TokenText, vocabulary: int, ends: Sequence[int]) -> TimedMasks:
        self.answers.append(TimedMasks(self.source.begin(text, vocabulary, ends), self.forced_text))
        return self.answers[-1]

    @property
    def seconds(self) -> float:
        """Time of all masks."""
        return sum(one.seconds for one in self.answers)

    @property
    def nodes(self) -> int:
        """Places that were asked about."""
        return sum(one.nodes for one in self.answers)
