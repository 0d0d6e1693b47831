"""The kinds of a timeline's spans, the origins of tokens, and the marks of a time axis: the same in every picture."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from crossdraft.engine.request import Answer
    from crossdraft.engine.timeline import Span, Timeline

FIRST = ("drafter", "target")  # the order of the lanes; others follow

# origin of a token: what it means
ORIGINS = {"hidden": "drafted during the prefill", "drafted": "drafted in a later round", "target": "the target's own"}


@dataclass(frozen=True)
class Kind:
    """Spans of one meaning.

    Args:
        label: text on the span itself, if there is room for it.
        meaning: text in the legend.
        style: style in pictures, a name in `shapes.PALETTE`.
        glyph, colour: character and colour in a terminal; the colour is one of rich's.
        names: the engine's names of such spans.
    """

    label: str
    meaning: str
    style: str
    glyph: str
    colour: str
    names: tuple[str, ...]


KINDS = (
    Kind("preprocess", "preprocess", "preprocess", "·", "bright_black", ("prepare",)),
    Kind("encoder", "vision encoder", "encoder", "-", "bright_black", ("encode",)),
    Kind("prefill", "prefill", "prefill", "░", "blue", ("prefill", "read")),
    Kind("hidden draft", "hidden draft (during the prefill)", "hidden-draft", "▓", "green", ("hidden draft",)),
    Kind("draft", "draft", "draft", "▒", "cyan", ("draft", "resync")),
    Kind("parallel draft", "parallel draft (for the next rounds)", "parallel-draft", "+", "magenta", ("ahead",)),
    Kind("ride-along", "ride-along (verify in the prefill's last pass)", "ride-along", "▞", "red", ("ride-along",)),
    Kind("verify", "verify", "verify", "█", "yellow", ("verify",)),
)  # fmt: skip
DECODE = Kind("decode steps", "decode step (one token)", "decode", "=", "yellow", ())
OTHER = Kind("other", "other", "other", "?", "white", ())


def kind_of(span: "Span") -> Kind:
    """Return the kind of a span; a verify pass over the root alone counts as a plain decode step."""
    if span.name == "verify" and span.tokens == 1:
        return DECODE
    return next((kind for kind in KINDS if span.name in kind.names), OTHER)


def plain(answer: "Answer") -> "list[Span]":
    """Return an answer's spans; without a hidden draft its ride-along is a prefill, and an empty one is a draft."""
    spans = answer.timeline.spans
    if answer.stats.hidden_drafted:
        return list(spans)
    names = {"ride-along": "prefill"}
    empty = names | {"hidden draft": "draft"}
    return [replace(one, name=(names if one.tokens else empty).get(one.name, one.name)) for one in spans]


def lanes_of(timeline: "Timeline") -> list[str]:
    """Return the names of the lanes in the order in which they are drawn."""
    names = {span.lane for span in timeline.spans}
    return [lane for lane in FIRST if lane in names] + sorted(names - set(FIRST))


def end_of(timeline: "Timeline") -> float:
    """Seconds from the start of the first span to the end of the last."""
    return max((span.end for span in timeline.spans), default=0.0) - timeline.start


def ticks(seconds: float, most: int) -> list[float]:
    """Round times from 0 on, at most `most` steps of 1, 2 or 5 times a power of ten.

    >>> ticks(0.17, 4)
    [0.0, 0.05, 0.1, 0.15]
    """
    power = 10.0 ** math.floor(math.log10(seconds / most))
    step = next(factor * power for factor in (1, 2, 5, 10) if seconds <= factor * power * most)
    return [round(mark * step, 9) for mark in range(int(seconds / step + 1e-9) + 1)]


def labels(marks: Sequence[float], seconds: float) -> list[str]:
    """Texts of the marks of an axis that is `seconds` long; the last text carries the unit."""
    unit, scale = ("s", 1.0) if seconds >= 5 else ("ms", 1e3)
    texts = [f"{mark * scale:g}" for mark in marks]
    return [*texts[:-1], f"{texts[-1]} {unit}"]
