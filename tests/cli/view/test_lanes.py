"""The timeline as text, cell by cell."""

import pytest

from crossdraft.cli.view.lanes import axis, cells, draw, end_of, labels, ticks, timeline_text
from crossdraft.engine.timeline import Span, Timeline

SPANS = [
    Span("target", "prefill", 10.0, 10.6),
    Span("drafter", "hidden draft", 10.1, 10.6),
    Span("target", "verify", 10.8, 11.0),
]


def test_a_cell_belongs_to_the_span_that_fills_most_of_it():
    spans = [Span("target", "prefill", 0.0, 1.4), Span("target", "verify", 1.4, 3.0)]
    assert cells(spans, 0.0, 1.0, 4) == ["prefill", "verify", "verify", ""]


def test_a_cell_that_is_hardly_busy_is_idle():
    spans = [Span("target", "verify", 0.0, 0.2), Span("target", "verify", 1.0, 1.3)]
    assert cells(spans, 0.0, 1.0, 2) == ["", "verify"]


def test_short_spans_fill_a_cell_together():
    spans = [Span("target", "verify", 0.1 * i, 0.1 * i + 0.05) for i in range(10)]
    assert cells(spans, 0.0, 1.0, 1) == ["verify"]


@pytest.mark.parametrize(
    ("row", "line"),
    [
        (["read"] * 8, "░░read░░"),
        (["read"] * 5, "░░░░░"),  # no room for the name
        (["", "verify", "verify", ""], " ██ "),
        (["hidden draft"] * 2 + ["draft"] * 2, "▓▓▒▒"),
        (["unheard of"], "▚"),
    ],
)
def test_a_lane_is_drawn_by_meaning(row, line):
    assert draw(row).plain == line


@pytest.mark.parametrize(
    ("seconds", "most", "expected"),
    [
        (0.17, 4, ["0", "50", "100", "150 ms"]),
        (0.012, 3, ["0", "5", "10 ms"]),
        (1.0, 10, ["0", *(str(100 * i) for i in range(1, 10)), "1000 ms"]),
        (9.0, 5, ["0", "2", "4", "6", "8 s"]),
        (0.5, 1, ["0", "500 ms"]),
        (0.7, 1, ["0 ms"]),
    ],
)
def test_an_axis_has_round_marks(seconds, most, expected):
    assert labels(ticks(seconds, most), seconds) == expected


def test_marks_stand_where_their_times_are():
    assert axis(0.1, 40) == "0" + " " * 19 + "50" + " " * 18 + "100 ms"


def test_both_lanes_on_one_axis():
    shown = timeline_text(Timeline(SPANS), 35).plain.splitlines()
    # 22 cells a second: the draft fills cells 2.2 to 13.2, the verify pass 17.6 to 22.
    assert shown == [
        "         0          500        1000 ms",
        "drafter    ▓▓▓▓▓▓▓▓▓▓▓",
        "target   ░░░prefill░░░    █████",
        "         ░ reads   ▓ drafts while the target reads   █ verifies",
    ]


def test_nothing_recorded_is_nothing_drawn():
    assert timeline_text(Timeline(), 80).plain == ""
    assert end_of(Timeline()) == 0
