"""Charts of measurements: stacked bars, bars with intervals, and curves, on the card of every other picture."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from crossdraft.drawing.kinds import ticks
from crossdraft.drawing.shapes import Box, Drawing, Line, TextLine, TextRun, clean, flow, width_of

WIDTH, MARGIN = 960.0, 28.0
LINE, SMALL, BAR, STEP = 20.0, 12.0, 18.0, 28.0  # heights of a text line, of small text, of a bar, from bar to bar
PLOT = 300.0  # height of a curve's field
SERIES = (
    "draft", "verify", "hidden-draft", "parallel-draft", "decode", "ride-along", "prefill", "other", "encoder",
)  # fmt: skip
"""Styles for series, in the order in which they are taken."""

Shape = Box | Line | TextLine


@dataclass(frozen=True)
class BarPart:
    """A piece of a stacked bar: its name, its style of the palette, its length."""

    name: str
    style: str
    value: float


@dataclass(frozen=True)
class StackedBar:
    """A bar of parts, from left to right, and the text that is written after it."""

    label: str
    parts: tuple[BarPart, ...]
    text: str = ""


@dataclass(frozen=True)
class IntervalBar:
    """A value with the ends of its interval, and the number `n` of independent samples behind them."""

    label: str
    value: float
    low: float
    high: float
    n: int
    style: str = "encoder"


@dataclass(frozen=True)
class LaneBar:
    """A lane of a chart; each part is (start, end, style, meaning)."""

    label: str
    parts: tuple[tuple[float, float, str, str], ...]


@dataclass(frozen=True)
class ChartCurve:
    """Points (x, value, low, high), ascending in x; dashed if the curve is a bound instead of a measurement."""

    name: str
    points: tuple[tuple[float, float, float, float], ...]
    dashed: bool = False


def stacked_bars(title: str, bars: Sequence[StackedBar], unit: str) -> Drawing:
    """Horizontal bars of parts, with a legend of the parts in their order of appearance."""
    legend = dict.fromkeys((part.name, part.style) for bar in bars for part in bar.parts if part.value > 0)
    shapes, y = _head(title, [(TextRun("■ ", style), TextRun(name, "faint")) for name, style in legend])
    left, room = _left([bar.label for bar in bars]), 120.0
    longest = max((sum(part.value for part in bar.parts) for bar in bars), default=0.0) or 1.0
    scale = (WIDTH - MARGIN - room - left) / longest
    for bar in bars:
        shapes.append(_label(bar.label, left, y))
        at = left
        for part in bar.parts:
            tip = f"{part.name}: {part.value:.3g} {unit}"
            shapes.append(Box(at, y, part.value * scale, BAR, part.style, tip))
            at += part.value * scale
        total = sum(part.value for part in bar.parts)
        shapes.append(_text(at + 6, y + BAR - 5, bar.text or f"{total:.3g} {unit}"))
        y += STEP
    return _card(title, [*shapes, *_axis(left, y, longest, scale, unit)], y + 2 * LINE)


def interval_bars(title: str, bars: Sequence[IntervalBar], unit: str, reference: float | None = 1.0) -> Drawing:
    """Horizontal bars with their intervals, and a dashed line at a reference value."""
    shapes, y = _head(title, [])
    left, room = _left([bar.label for bar in bars]), 170.0
    longest = max((max(bar.value, bar.high) for bar in bars), default=0.0) or 1.0
    longest = max(longest, reference or 0.0)
    scale = (WIDTH - MARGIN - room - left) / longest
    top = y
    for bar in bars:
        ends = "no interval" if bar.n == 1 else f"{bar.low:.2f}, {bar.high:.2f}"
        shown = f"{bar.value:.2f} [{ends}; n={bar.n:,}]"
        middle = y + BAR / 2
        shapes.append(_label(bar.label, left, y))
        shapes.append(Box(left, y, max(0.0, bar.value) * scale, BAR, bar.style, f"{bar.label}: {shown}"))
        from_x, to_x = (left + max(0.0, end) * scale for end in (bar.low, bar.high))
        shapes.append(Line(from_x, middle, to_x, middle, "ink"))
        shapes.append(_text(WIDTH - MARGIN - room + 6, y + BAR - 5, shown))
        y += STEP
    if reference is not None:
        shapes.append(Line(left + reference * scale, top - 4, left + reference * scale, y - 6, "faint", dashed=True))
    return _card(title, [*shapes, *_axis(left, y, longest, scale, unit)], y + 2 * LINE)


def lanes(title: str, bars: Sequence[LaneBar], unit: str) -> Drawing:
    """Lanes on one axis of time, with a legend of what ran."""
    legend = dict.fromkeys((what, style) for bar in bars for _, _, style, what in bar.parts)
    shapes, y = _head(title, [(TextRun("■ ", style), TextRun(what, "faint")) for what, style in legend])
    left = _left([bar.label for bar in bars])
    longest = max((end for bar in bars for _, end, _, _ in bar.parts), default=0.0) or 1.0
    scale = (WIDTH - MARGIN - 60 - left) / longest
    for bar in bars:
        shapes.append(_label(bar.label, left, y))
        for start, end, style, what in bar.parts:
            wide = max(0.8, (end - start) * scale)
            shapes.append(Box(left + start * scale, y, wide, BAR, style, f"{what}: {end - start:.3g} {unit}"))
        y += STEP
    return _card(title, [*shapes, *_axis(left, y, longest, scale, unit)], y + 2 * LINE)


def curves(
    title: str, found: Sequence[ChartCurve], across: str, upwards: str, *, log_x: bool = False, log_y: bool = False
) -> Drawing:
    """Curves with their intervals over one axis; logarithmic ones have marks at the points' own x."""
    styles = {curve.name: SERIES[number % len(SERIES)] for number, curve in enumerate(found)}
    legend = [(TextRun("– " if c.dashed else "■ ", styles[c.name]), TextRun(c.name, "faint")) for c in found]
    shapes, y = _head(title, [*legend, (TextRun(f"↑ {upwards}", "faint"),)])
    points = [point for curve in found for point in curve.points]
    xs, values = sorted({point[0] for point in points}), [value for _, *row in points for value in row]
    x_of = _axis_map(xs, MARGIN + 64, WIDTH - MARGIN - 20, log=log_x)
    y_of = _axis_map([*values, *([] if log_y else [0.0])], y + PLOT, y + 6, log=log_y)
    for curve in found:
        shapes += _curve(curve, styles[curve.name], x_of, y_of)
    marks = xs if log_x else _round_marks(xs)
    for mark in marks:
        shapes.append(_text(x_of(mark), y + PLOT + LINE, f"{mark:g}", "middle"))
    for mark in _log_marks(values) if log_y else ticks(max([*values, 1e-9]), 6):
        shapes.append(Line(MARGIN + 56, y_of(mark), WIDTH - MARGIN, y_of(mark)))
        shapes.append(_text(MARGIN + 50, y_of(mark) + 4, f"{mark:g}", "end"))
    shapes.append(_text(WIDTH - MARGIN, y + PLOT + 2 * LINE, across, "end"))
    return _card(title, shapes, y + PLOT + 2.5 * LINE)


def below_one_another(title: str, drawings: Sequence[Drawing]) -> Drawing:
    """Join drawings to one, each below the one before."""
    shapes: list[Shape] = []
    y = 0.0
    for drawing in drawings:
        shapes += [_lowered(shape, y) for shape in drawing.shapes]
        y += drawing.height
    return Drawing(title, max((drawing.width for drawing in drawings), default=WIDTH), y, tuple(shapes))


def _lowered(shape: Shape, by: float) -> Shape:
    if isinstance(shape, Line):
        return replace(shape, y1=shape.y1 + by, y2=shape.y2 + by)
    return replace(shape, y=shape.y + by)


class _AxisMap:
    """A map from values to pixels."""

    def __init__(self, values: Sequence[float], start: float, end: float, *, log: bool) -> None:
        self.log = log
        own = [self._of(value) for value in values] or [0.0]
        self.low, span = min(own), max(own) - min(own)
        self.start, self.scale = start, (end - start) / (span or 1.0)

    def __call__(self, value: float) -> float:
        return self.start + (self._of(value) - self.low) * self.scale

    def _of(self, value: float) -> float:
        return math.log10(max(value, 1e-12)) if self.log else value


def _axis_map(values: Sequence[float], start: float, end: float, *, log: bool) -> _AxisMap:
    return _AxisMap(values, start, end, log=log)


def _curve(curve: ChartCurve, style: str, x_of: _AxisMap, y_of: _AxisMap) -> list[Shape]:
    """A curve's segments, then at each point the interval and a mark."""
    places = [(x_of(x), y_of(value)) for x, value, _, _ in curve.points]
    shapes: list[Shape] = [Line(*here, *there, style, dashed=curve.dashed) for here, there in pairwise(places)]
    for (x, value, low, high), (at, up) in zip(curve.points, places, strict=True):
        if high > low:
            shapes.append(Line(at, y_of(low), at, y_of(high), style))
        tip = f"{curve.name}: {x:g} → {value:.3g} [{low:.3g}, {high:.3g}]"
        shapes.append(Box(at - 3, up - 3, 6, 6, style, tip))
    return shapes


def _log_marks(values: Sequence[float]) -> list[float]:
    positive = [value for value in values if value > 0] or [1.0]
    first, last = math.floor(math.log10(min(positive))), math.ceil(math.log10(max(positive)))
    marks = [digit * 10.0**power for power in range(first, last + 1) for digit in (1, 2, 5)]
    return [mark for mark in marks if min(positive) <= mark <= max(positive)]


def _round_marks(xs: Sequence[float]) -> list[float]:
    """Round numbers between the first and the last of `xs`."""
    if len(xs) < 2:
        return list(xs)
    step = ticks(xs[-1] - xs[0], 8)[1]
    return [number * step for number in range(math.ceil(xs[0] / step), math.floor(xs[-1] / step) + 1)]


def _head(title: str, legend: Sequence[tuple[TextRun, ...]]) -> tuple[list[Shape], float]:
    """Draw title and legend; also return the y at which the rest of the drawing begins."""
    y = MARGIN + 14.0
    shapes: list[Shape] = [TextLine(MARGIN, y, (TextRun(clean(title), "ink"),), 14, bold=True)]
    if legend:
        items = [tuple(replace(run, text=clean(run.text)) for run in item) for item in legend]
        texts, y = flow(items, MARGIN, y + LINE, WIDTH - MARGIN, LINE, SMALL)
        shapes += texts
    return shapes, y + LINE


def _left(names: Sequence[str]) -> float:
    """The x at which bars begin, after their names."""
    return MARGIN + max((width_of(clean(name), SMALL) for name in names), default=0.0) + 10


def _label(name: str, left: float, y: float) -> TextLine:
    return TextLine(left - 8, y + BAR - 5, (TextRun(clean(name), "ink"),), SMALL, anchor="end")


def _text(x: float, y: float, text: str, anchor: str = "start") -> TextLine:
    return TextLine(x, y, (TextRun(clean(text), "faint"),), SMALL, anchor=anchor)


def _axis(left: float, y: float, longest: float, scale: float, unit: str) -> list[Shape]:
    """Marks below horizontal bars."""
    found: list[Shape] = [Line(left, y, left + longest * scale, y)]
    marks = ticks(longest, 6)
    for mark in marks:
        text = f"{mark:g} {unit}" if mark == marks[-1] else f"{mark:g}"
        found.append(_text(left + mark * scale, y + LINE - 4, text, "middle"))
    return found


def _card(title: str, shapes: Sequence[Shape], bottom: float) -> Drawing:
    return Drawing(title, WIDTH, bottom, tuple(shapes))
