"""One answer as a picture: the text by origin, both models on one axis of time, the target alone below it."""

from base64 import b64encode
from collections.abc import Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING

from crossdraft.drawing.figures import Baseline, counted, hidden_draft, ms, origins
from crossdraft.drawing.kinds import (
    DECODE,
    KINDS,
    ORIGINS,
    OTHER,
    Kind,
    end_of,
    kind_of,
    labels,
    lanes_of,
    plain,
    ticks,
)
from crossdraft.drawing.shapes import Box, Drawing, Line, TextLine, TextRun, clean, flow, width_of, wrap
from crossdraft.drawing.svg import to_svg

if TYPE_CHECKING:
    from crossdraft.engine.request import Answer
    from crossdraft.engine.timeline import Span

WIDTH, MARGIN, LEFT = 960, 28, 148  # width of the card; room around everything, left of the lanes
LINE, LANE, GAP = 22, 34, 12
SMALL = 12
TOUCH = 2.0  # spans of one kind that are closer than this many pixels share a label
ALONE = "target alone"

Lane = tuple[str, "Sequence[Span]", float]  # name, spans, when its answer was begun


def timeline_drawing(question: str, answer: "Answer", baseline: Baseline | None = None) -> Drawing:
    """Draw an answer's picture: question, answer by origin, lanes on one axis, figures.

    Args:
        question: the question; a long one is wrapped, an empty one is left out.
        answer: the answer.
        baseline: answer of the target alone, for a lane below the pair's lanes.
    """
    width = int((WIDTH - 2 * MARGIN) / width_of("x"))
    y = MARGIN + 14.0
    shapes: list[Box | Line | TextLine] = []
    for line in wrap([TextRun(question, "faint")], width):
        shapes.append(TextLine(MARGIN, y, line))
        y += LINE
    for line in wrap([TextRun(piece.text, piece.origin.value) for piece in answer.pieces], width):
        shapes.append(TextLine(MARGIN, y, line, bold=True))
        y += LINE
    items = [
        (TextRun("■ ", name), TextRun(f"{name}: {what}", "faint"))
        for name, what in ORIGINS.items()
        if name in {origin for origin, count in origins(answer) if count}
    ]
    texts, y = flow(items, MARGIN, y + 2, WIDTH - MARGIN, LINE, SMALL)
    body, y = _lanes(answer, baseline, y + GAP)
    texts, y = [*texts, *body], y + GAP
    figures, y = flow(_figures(answer, baseline), MARGIN, y + LINE, WIDTH - MARGIN, LINE, 14, gap=30)
    return Drawing(clean(question) or "answer", WIDTH, y + MARGIN - 8, (*shapes, *texts, *figures))


def timeline_svg(question: str, answer: "Answer", baseline: Baseline | None = None) -> str:
    """Return the picture as the text of an SVG file."""
    return to_svg(timeline_drawing(question, answer, baseline))


def timeline_img(answer: "Answer") -> str:
    """Return the picture as an HTML `img` with the SVG inside, so that its styles touch nothing else on a page."""
    encoded = b64encode(timeline_svg("", answer).encode()).decode()
    return f'<img alt="{escape(answer.text.strip())}" src="data:image/svg+xml;base64,{encoded}"/>'


def _lanes(answer: "Answer", baseline: Baseline | None, top: float) -> tuple[list[Box | Line | TextLine], float]:
    """Draw axis, lanes and their legend from `top` on; also return the baseline of the last line."""
    alone = None if baseline is None else baseline.answer
    seconds = max(end_of(one.timeline) for one in (answer, alone) if one is not None)
    if not seconds:
        return [], top
    scale = (WIDTH - LEFT - MARGIN) / seconds
    lanes = list(_lanes_of(answer, alone))
    bottom = top + LINE + len(lanes) * (LANE + GAP)
    shapes: list[Box | Line | TextLine] = list(_axis(seconds, scale, top, bottom))
    rows = [top + LINE + GAP / 2 + row * (LANE + GAP) for row in range(len(lanes))]
    if alone is not None and len(rows) > 1:
        shapes += _saved(answer, alone, scale, rows, bottom)
    for y, (name, spans, start) in zip(rows, lanes, strict=True):
        where = baseline.where if baseline is not None and name == ALONE else ""
        shapes.append(TextLine(MARGIN, y + LANE / 2 + (-1 if where else 5), (TextRun(name, "ink"),)))
        if where:
            shapes.append(TextLine(MARGIN, y + LANE / 2 + 14, (TextRun(where, "faint"),), SMALL))
        shapes += _lane(spans, start, scale, y)
    used = {kind_of(span) for _, spans, _ in lanes for span in spans}
    items = [
        (TextRun("■ ", kind.style), TextRun(kind.meaning, "faint")) for kind in (*KINDS, DECODE, OTHER) if kind in used
    ]
    legend, y = flow(items, LEFT, bottom + 16, WIDTH - MARGIN, LINE - 4, SMALL, gap=18)
    return [*shapes, *legend], y


def _lanes_of(answer: "Answer", alone: "Answer | None") -> Iterator[Lane]:
    spans = plain(answer)
    for name in lanes_of(answer.timeline):
        own = [span for span in spans if span.lane == name]
        yield name, own, answer.timeline.start
    if alone is not None:
        yield ALONE, [span for span in plain(alone) if span.lane == "target"], alone.timeline.start


def _axis(seconds: float, scale: float, top: float, bottom: float) -> Iterator[Line | TextLine]:
    marks = ticks(seconds, 8)
    for mark, label in zip(marks, labels(marks, seconds), strict=True):
        x = LEFT + mark * scale
        yield Line(x, top + LINE, x, bottom)
        half = width_of(label, SMALL) / 2
        anchor = "end" if x + half > WIDTH - MARGIN else "middle"
        yield TextLine(x, top + 14, (TextRun(label, "faint"),), SMALL, anchor=anchor)


def _lane(spans: "Sequence[Span]", start: float, scale: float, y: float) -> Iterator[Box | TextLine]:
    """Yield a lane's boxes; neighbours of one kind share one label, if there is room for it."""
    ordered = sorted(spans, key=lambda span: span.start)
    groups: list[list[Box]] = []
    kinds: list[Kind] = []
    for span in ordered:
        x, kind = LEFT + (span.start - start) * scale, kind_of(span)
        tokens = f", {counted(span.tokens, 'token', 'tokens')}" if span.tokens else ""
        tip = f"{kind.label}: {span.seconds * 1e3:.2f} ms{tokens}"
        box = Box(x, y, max(span.seconds * scale - 0.5, 0.5), LANE, kind.style, tip)
        near = bool(groups) and kinds[-1] == kind and x - (groups[-1][-1].x + groups[-1][-1].width) < TOUCH
        if near:
            groups[-1].append(box)
        else:
            groups.append([box])
            kinds.append(kind)
    ends = [*(group[0].x for group in groups[1:]), float("inf")]
    for group, kind, following in zip(groups, kinds, ends, strict=True):
        yield from group
        left, right = group[0].x, min(group[-1].x + group[-1].width, following)
        wide = width_of(kind.label, SMALL) + 6
        if right - left >= wide:
            if len(group) > 1:  # a ground without gaps for the label
                yield Box((left + right - wide) / 2, y, wide, LANE, kind.style)
            yield TextLine(
                (left + right) / 2, y + LANE / 2 + 4, (TextRun(kind.label, "label"),), SMALL, anchor="middle"
            )


def _saved(
    answer: "Answer", alone: "Answer", scale: float, rows: Sequence[float], bottom: float
) -> Iterator[Line | TextLine]:
    """Mark where the pair's answer ended, and how much earlier or later than the target's alone."""
    ends = [LEFT + end_of(one.timeline) * scale for one in (answer, alone)]
    yield Line(ends[0], rows[0], ends[0], bottom, "faint", dashed=True)
    saved = end_of(alone.timeline) - end_of(answer.timeline)
    y = rows[-2] if saved > 0 else rows[-1]  # the lane that ended first
    label = f"{ms(abs(saved))} {'saved' if saved > 0 else 'lost'}"
    if max(ends) - min(ends) >= width_of(label) + 16:
        yield TextLine(sum(ends) / 2, y + LANE / 2 + 5, (TextRun(label, "ink"),), bold=True, anchor="middle")


def _figures(answer: "Answer", baseline: Baseline | None) -> list[tuple[TextRun, ...]]:
    """Return the figures that matter most, each with its name in front."""
    stats = answer.stats
    ttft, total = ms(stats.ttft_s), ms(stats.total_s)
    if baseline is None:
        found = [("TTFT", ttft), ("total", total)]
    else:
        alone = baseline.answer.stats
        speedup = f"{alone.total_s / stats.total_s:.2f}x" if stats.total_s else "none"
        found = [
            ("TTFT", f"{ttft} (alone {ms(alone.ttft_s)})"),
            ("total", f"{total} (alone {ms(alone.total_s)})"),
            ("speedup", f"{speedup}, {baseline.how_often}"),
        ]
    if stats.drafted:
        found.append(("τ", f"{stats.tau:.2f} tokens per verify pass"))
        found.append(("hidden draft", hidden_draft(answer)))
        found.append(("tokens", ", ".join(f"{count} {origin}" for origin, count in origins(answer))))
    found += [(kind, f"lossy: {name}") for kind, name in stats.lossy]
    return [(TextRun(f"{what} ", "faint"), TextRun(value, "ink")) for what, value in found]
