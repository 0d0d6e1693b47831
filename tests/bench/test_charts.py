"""Charts: lengths and places worked by hand, colours for both pages, and nothing that breaks the SVG."""

from xml.etree import ElementTree as ET

import pytest

from crossdraft.drawing.save import save_drawing
from crossdraft.drawing.shapes import Box, Drawing, Line, TextLine
from crossdraft.drawing.svg import to_svg
from crossdraft_lab.bench.charts import (
    BarPart,
    ChartCurve,
    IntervalBar,
    LaneBar,
    StackedBar,
    curves,
    interval_bars,
    lanes,
    stacked_bars,
)

HOSTILE = '<a href="x">&\x07'


def boxes(drawing: Drawing) -> list[Box]:
    return [shape for shape in drawing.shapes if isinstance(shape, Box)]


def test_parts_of_a_bar_follow_one_another_to_scale():
    first, second, other = boxes(
        stacked_bars("t", [StackedBar("a", (BarPart("x", "draft", 1.0), BarPart("y", "verify", 3.0))),
                           StackedBar("b", (BarPart("x", "draft", 2.0),))], "ms")
    )  # fmt: skip
    assert second.width == pytest.approx(3 * first.width)
    assert second.x == pytest.approx(first.x + first.width)
    assert other.width == pytest.approx(2 * first.width)
    assert other.x == first.x


def test_an_interval_lies_across_its_bar():
    drawing = interval_bars("t", [IntervalBar("a", 2.0, 1.0, 3.0, 9)], "×")
    (bar,) = boxes(drawing)
    arm = next(shape for shape in drawing.shapes if isinstance(shape, Line) and shape.style == "ink")
    assert arm.x1 - bar.x == pytest.approx(bar.width / 2)
    assert arm.x2 - bar.x == pytest.approx(bar.width * 1.5)


def test_a_logarithmic_axis_has_equal_steps_for_equal_factors():
    points = tuple((float(x), 1.0, 1.0, 1.0) for x in (1, 8, 64))
    low, middle, high = boxes(curves("t", [ChartCurve("c", points)], "frames", "×", log_x=True))
    assert middle.x - low.x == pytest.approx(high.x - middle.x)


def test_a_larger_value_lies_higher():
    points = ((1.0, 1.0, 0.5, 1.5), (2.0, 2.0, 2.0, 2.0))
    below, above = boxes(curves("t", [ChartCurve("c", points)], "x", "y"))
    assert above.y < below.y


def test_a_lane_shows_when_something_ran():
    early, late = boxes(lanes("t", [LaneBar("a", ((0.0, 1.0, "draft", "x"), (3.0, 4.0, "verify", "y")))], "ms"))
    assert late.x - early.x == pytest.approx(3 * early.width)


@pytest.mark.parametrize(
    "drawing",
    [
        stacked_bars(HOSTILE, [StackedBar(HOSTILE, (BarPart(HOSTILE, "draft", 1.0),), HOSTILE)], HOSTILE),
        interval_bars(HOSTILE, [IntervalBar(HOSTILE, 1.0, 0.5, 2.0, 9)], HOSTILE),
        curves(HOSTILE, [ChartCurve(HOSTILE, ((1.0, 1.0, 1.0, 1.0),), dashed=True)], HOSTILE, HOSTILE, log_y=True),
        lanes(HOSTILE, [LaneBar(HOSTILE, ((0.0, 1.0, "draft", HOSTILE),))], HOSTILE),
        stacked_bars("nothing", [], "ms"),
        curves("nothing", [], "x", "y"),
    ],
    ids=["stacked", "intervals", "curves", "lanes", "no bars", "no curves"],
)
def test_the_svg_is_whole_whatever_texts_hold(drawing, tmp_path):
    root = ET.fromstring(to_svg(drawing))
    assert not [node for node in root.iter() if node.tag.endswith("}a")]
    save_drawing(drawing, tmp_path / "chart.png")
    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")


def test_lines_of_a_colour_have_one_for_each_page():
    svg = to_svg(interval_bars("t", [IntervalBar("a", 2.0, 1.0, 3.0, 9)], "×"))
    assert svg.count(".line-ink{stroke:") == 2
    assert 'class="line-ink"' in svg


def test_texts_stay_on_the_card():
    drawing = interval_bars("t", [IntervalBar("a long name of a drafter", 2.0, 1.0, 3.0, 9)], "×")
    assert all(0 <= shape.x <= drawing.width for shape in drawing.shapes if isinstance(shape, TextLine))
