"""What `ask` shows: provisional and final text, the timeline cell by cell, the record of an answer."""

import json
from dataclasses import replace

import pytest

from crossdraft.cli.view import STYLES, PartialAnswer, axis, cells, draw, legend, record, timeline_text
from crossdraft.drawing.figures import Baseline, figures
from crossdraft.drawing.kinds import DECODE, KINDS, OTHER, end_of, kind_of, labels, ticks
from crossdraft.engine.request import Answer, Finish, Origin, Piece
from crossdraft.engine.stats import Stats
from crossdraft.engine.timeline import Span, Timeline


def growing(*pieces: tuple[Origin, tuple[int, ...], str]) -> PartialAnswer:
    shown = PartialAnswer()
    for origin, tokens, text in pieces:
        shown.add(Piece(tokens, text, origin))
    return shown


DRAFT = [(Origin.PROVISIONAL, (1,), " A"), (Origin.PROVISIONAL, (2,), " red"), (Origin.PROVISIONAL, (3,), " car")]


def test_before_the_target_all_is_provisional():
    shown = growing(*DRAFT).text()
    assert shown.plain == "A red car"
    assert {span.style for span in shown.spans} == {STYLES[Origin.PROVISIONAL]}


def test_what_the_target_accepted_is_final_and_the_rest_still_provisional():
    shown = growing(*DRAFT, (Origin.HIDDEN, (1, 2), " A red"))
    assert shown.draft == " car"
    assert shown.text().plain == "A red car"


def test_a_token_of_the_target_takes_the_rest_back():
    shown = growing(*DRAFT, (Origin.HIDDEN, (1,), " A"), (Origin.TARGET, (9,), " blue"))
    assert shown.draft == ""
    assert shown.text().plain == "A blue"


def test_a_target_that_agrees_takes_nothing_back():
    assert growing(*DRAFT, (Origin.TARGET, (1,), " A")).draft == " red car"


def test_an_answer_longer_than_the_draft_has_nothing_provisional():
    assert growing(*DRAFT, (Origin.HIDDEN, (1, 2, 3), " A red car"), (Origin.TARGET, (4,), ".")).draft == ""


def test_every_origin_has_its_own_style():
    shown = growing((Origin.HIDDEN, (1,), "a"), (Origin.DRAFTED, (2,), "b"), (Origin.TARGET, (3,), "c")).text()
    assert [(shown.plain[span.start], span.style) for span in shown.spans] == [
        ("a", STYLES[Origin.HIDDEN]),
        ("b", STYLES[Origin.DRAFTED]),
        ("c", STYLES[Origin.TARGET]),
    ]
    assert len(set(STYLES.values())) == len(Origin)


def test_the_legend_names_the_origins_that_the_answer_has():
    pieces = (Piece((1,), "a", Origin.HIDDEN), Piece((2,), "b", Origin.TARGET))
    shown = legend(Answer("ab", (1, 2), pieces, Finish.EOS, Stats(), Timeline())).plain
    assert shown == "■ hidden: drafted during the prefill   ■ target: the target's own"


PIECES = (
    Piece((5, 6), " A red", Origin.HIDDEN),
    Piece((7,), " car", Origin.TARGET),
    Piece((8,), " ahead", Origin.DRAFTED),
    Piece((9,), ".", Origin.TARGET),
)
STATS = Stats(
    new_tokens=5,
    rounds=2,
    drafted=6,
    accepted=3,
    hidden_drafted=4,
    hidden_accepted=2,
    ttft_s=0.08,
    total_s=0.1,
    first_provisional_s=0.02,
)
TIMELINE = Timeline([Span("target", "verify", 2.5, 2.6, 3), Span("drafter", "read", 2.0, 2.25)])


def made(stats: Stats, logprobs: tuple[float, ...] | None = None) -> Answer:
    tokens = tuple(token for piece in PIECES for token in piece.tokens)
    return Answer(" A red car ahead.", tokens, PIECES, Finish.EOS, stats, TIMELINE, logprobs, ("a note",))


def test_figures():
    assert dict(figures(made(STATS))) == {
        "first provisional text": "20 ms",
        "time to first token (TTFT)": "80 ms",
        "total time (E2E)": "100 ms, 5 tokens, 50 tokens/s",
        "mean acceptance length τ": "2.50, 2 verify passes",
        "hidden draft": "4 tokens, 2 accepted",
        "tokens by origin": "2 hidden, 1 drafted, 2 target",
    }


def test_the_target_alone_stands_with_the_times():
    alone = made(Stats(new_tokens=5, rounds=5, ttft_s=0.07, total_s=0.3))
    shown = dict(figures(made(STATS), Baseline(alone)))
    assert shown["time to first token (TTFT)"] == "80 ms (target alone 70 ms)"
    assert shown["total time (E2E)"].startswith("100 ms (target alone 300 ms), ")


def test_a_target_that_wrote_alone_has_no_figures_of_drafting():
    shown = dict(figures(made(Stats(new_tokens=5, rounds=5, total_s=1.0))))
    assert shown.keys() == {"time to first token (TTFT)", "total time (E2E)"}


def test_a_lossy_rule_shows_and_a_lossless_one_does_not():
    lossy = replace(STATS, rule="relaxed:r=3", lossless=False)
    assert dict(figures(made(lossy)))["rule"] == "lossy: relaxed:r=3"
    assert "rule" not in dict(figures(made(replace(STATS, rule="greedy"))))
    found = record(made(lossy))["stats"]
    assert (found["rule"], found["lossless"]) == ("relaxed:r=3", False)


def test_the_hidden_draft_says_what_became_of_it_and_how_much_of_its_time_was_free():
    hidden = Stats(
        rounds=1, drafted=2, hidden_drafted=2, hidden_accepted=1, hidden_drafting_s=0.04, hidden_inside_s=0.03
    )
    hidden.total_s = 12.5
    shown = dict(figures(made(hidden)))
    assert shown["hidden draft"] == "2 tokens, 1 accepted, 75% of its time while the target read"
    assert shown["total time (E2E)"].startswith("12.50 s, ")
    assert dict(figures(made(Stats(rounds=1, drafted=1))))["hidden draft"] == "none"


def test_the_record_is_plain_and_complete():
    found = json.loads(json.dumps(record(made(STATS, (-0.1, -0.25, -1.0, -2.0, -3.0)), list("abcde"))))
    assert found["text"] == " A red car ahead."
    assert found["finish"] == "eos"
    assert found["tokens"] == [5, 6, 7, 8, 9]
    assert found["pieces"][0] == {"origin": "hidden", "text": " A red", "tokens": [5, 6]}
    assert found["notes"] == ["a note"]
    assert found["stats"]["tau"] == 2.5
    assert found["logprobs"] == [-0.1, -0.25, -1.0, -2.0, -3.0]
    assert found["words"] == list("abcde")
    assert found["timeline"] == [
        {"lane": "drafter", "name": "read", "start_ms": 0.0, "end_ms": 250.0, "tokens": 0},
        {"lane": "target", "name": "verify", "start_ms": 500.0, "end_ms": 600.0, "tokens": 3},
    ]


def test_without_log_probabilities_the_record_has_none():
    assert not {"logprobs", "words"} & record(made(STATS)).keys()


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


def test_without_colour_kinds_still_differ():
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
