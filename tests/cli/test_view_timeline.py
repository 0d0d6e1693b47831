"""The timeline as text, cell by cell."""

import pytest

from crossdraft.cli.view import axis, cells, draw, timeline_text
from crossdraft.drawing.axis import labels, ticks
from crossdraft.drawing.figures import Baseline
from crossdraft.drawing.kinds import DECODE, KINDS, OTHER, end_of, kind_of
from crossdraft.engine.request import Answer, Finish
from crossdraft.engine.stats import Stats
from crossdraft.engine.timeline import Span, Timeline

SPANS = [
    Span("target", "prefill", 10.0, 10.6),
    Span("drafter", "hidden draft", 10.1, 10.6),
    Span("target", "verify", 10.8, 11.0, 5),
]


def answer(spans, *, hidden=4):
    return Answer("", (), (), Finish.EOS, Stats(drafted=hidden, hidden_drafted=hidden), Timeline(spans))


def labelled(row):
    return ["" if kind is None else kind.label for kind in row]


def test_a_cell_belongs_to_the_span_that_fills_most_of_it():
    spans = [Span("target", "prefill", 0.0, 1.4), Span("target", "verify", 1.4, 3.0)]
    assert labelled(cells(spans, 0.0, 1.0, 4)) == ["prefill", "verify", "verify", ""]


def test_a_cell_that_is_hardly_busy_is_idle():
    spans = [Span("target", "verify", 0.0, 0.2), Span("target", "verify", 1.0, 1.3)]
    assert labelled(cells(spans, 0.0, 1.0, 2)) == ["", "verify"]


def test_short_spans_fill_a_cell_together():
    spans = [Span("target", "verify", 0.1 * i, 0.1 * i + 0.05) for i in range(10)]
    assert labelled(cells(spans, 0.0, 1.0, 1)) == ["verify"]


@pytest.mark.parametrize(
    ("row", "line"),
    [
        (["read"] * 11, "░░prefill░░"),
        (["read"] * 5, "░░░░░"),  # no room for the label
        (["", "verify", "verify", ""], " ██ "),
        (["hidden draft"] * 2 + ["draft"] * 2, "▓▓▒▒"),
        (["unheard of"], "?"),
    ],
)
def test_a_lane_is_drawn_by_meaning(row, line):
    kinds = [kind_of(Span("x", name, 0, 1)) if name else None for name in row]
    assert draw(kinds).plain == line


def test_without_colour_kinds_can_still_be_told_apart():
    assert len({kind.glyph for kind in (*KINDS, DECODE, OTHER)}) == len(KINDS) + 2


def test_a_verify_pass_over_one_token_is_a_decode_step():
    assert kind_of(Span("target", "verify", 0, 1, 1)).label == "decode steps"
    assert kind_of(Span("target", "verify", 0, 1, 2)).label == "verify"
    assert kind_of(Span("target", "unheard of", 0, 1)) == OTHER


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
    shown = timeline_text(answer(SPANS), 49).plain.splitlines()
    # 32 cells a second: the draft fills cells 3.2 to 19.2, the verify pass 25.6 to 32.
    assert shown == [
        "         0               500             1000 ms",
        "drafter     ▓▓hidden draft▓▓",
        "target   ░░░░░░prefill░░░░░░      ███████",
        "         ░ prefill",
        "         ▓ hidden draft (during the prefill)",
        "         █ verify",
    ]


def test_the_target_alone_has_a_lane_on_the_same_axis():
    alone = answer([Span("target", "prefill", 0.0, 1.0), Span("target", "verify", 1.0, 2.0, 1)], hidden=0)
    shown = timeline_text(answer(SPANS), 100, Baseline(alone)).plain.splitlines()
    assert shown[3].startswith("target alone  ")
    assert len(shown[2]) < len(shown[3])
    assert "decode step (one token)" in shown[-1]


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_no_line_is_wider_than_the_terminal_if_that_has_room_at_all(width):
    shown = timeline_text(answer(SPANS), width).plain.splitlines()
    least = max(len("         ▓ hidden draft (during the prefill)"), 0)
    assert max(map(len, shown)) <= max(width, least)


def test_nothing_recorded_is_nothing_drawn():
    assert timeline_text(answer([]), 80).plain == ""
    assert end_of(Timeline()) == 0
