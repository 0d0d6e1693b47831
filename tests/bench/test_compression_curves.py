"""Curves of quality against the share of the prefill that is saved."""

from dataclasses import replace

import pytest

from crossdraft.drawing.charts import below_one_another
from crossdraft.drawing.shapes import Box, Drawing, Line, TextLine, TextRun
from crossdraft_lab.bench.compression import CompressionResult
from crossdraft_lab.bench.compression_curves import ACROSS, QUALITIES, _curve, quality_curves
from crossdraft_lab.bench.statistics import Interval


def exactly(value):
    return Interval(value, value, value, 8)


def row(target, saved, facts, drafter=None):
    return CompressionResult(
        target, drafter, 100.0, exactly(1.0), Interval(facts, facts - 0.1, facts + 0.1, 8), exactly(0.0), exactly(0.5),
        2, exactly(saved), None, 8, 8,
    )  # fmt: skip


FOUND = [
    row("target", 0.0, 0.9),
    row("target", 0.2, 0.9, "eaglevlm"),
    row("fastv:keep=0.25", 0.3, 0.6),
    row("fastv:keep=0.5", 0.1, 0.8),
    row("visionzip", 0.5, 0.7),
    row("predicted:dir=x within 0.1", 0.4, 0.7),
]


def test_points_of_a_curve_by_hand():
    """Two of FastV, by what they save; of eight answers two are the target's own."""
    of_facts, of_share = QUALITIES["facts right"], QUALITIES["share of the target's own answers"]
    points = _curve("fastv", FOUND[2:4], of_facts).points
    assert points == (pytest.approx((10, 0.8, 0.7, 0.9)), pytest.approx((30, 0.6, 0.5, 0.7)))
    assert _curve("fastv", FOUND[2:3], of_share).points == (pytest.approx((30, 0.25, 0.25, 0.25)),)


def test_each_quality_has_a_field_with_each_compression():
    drawing = quality_curves(FOUND)
    texts = [shape.text for shape in drawing.shapes if isinstance(shape, TextLine)]
    assert [texts.count(text) for text in (ACROSS, *QUALITIES)] == [3, 1, 1, 1]
    tips = [shape.tip for shape in drawing.shapes if isinstance(shape, Box) and shape.tip]
    assert len(tips) == 3 * 5  # the row with a drafter is left out
    assert [tip.split(":")[0] for tip in tips[:5]] == ["target", "fastv", "fastv", "visionzip", "predicted, checked"]
    assert tips[1:3] == ["fastv: 10 → 0.8 [0.7, 0.9]", "fastv: 30 → 0.6 [0.5, 0.7]"]
    moved = quality_curves([replace(FOUND[0], agreed=8)])
    marks = [shape for shape in moved.shapes if isinstance(shape, Box) and shape.tip]
    assert [mark.tip for mark in marks][2] == "target: 0 → 1 [1, 1]"


def test_drawings_stand_below_one_another_by_hand():
    one = Drawing("one", 10, 20, (Box(1, 2, 3, 4, "ink"), Line(1, 2, 3, 4), TextLine(1, 2, (TextRun("a", "ink"),))))
    found = below_one_another("both", [one, one])
    assert (found.title, found.width, found.height) == ("both", 10, 40)
    assert found.shapes[:3] == one.shapes
    box, line, text = found.shapes[3:]
    assert (box.y, line.y1, line.y2, text.y) == (22, 22, 24, 22)
