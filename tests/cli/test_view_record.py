"""The figures of an answer and its record."""

import json
from dataclasses import replace

from crossdraft.cli.view import record
from crossdraft.drawing.figures import Baseline, figures
from crossdraft.engine.request import Answer, Finish, Origin, Piece
from crossdraft.engine.stats import Stats
from crossdraft.engine.timeline import Span, Timeline

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


def test_the_target_alone_stands_beside_the_times():
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
    told = record(made(lossy))["stats"]
    assert (told["rule"], told["lossless"]) == ("relaxed:r=3", False)


def test_the_hidden_draft_says_what_became_of_it_and_how_much_of_its_time_was_free():
    hidden = Stats(
        rounds=1, drafted=2, hidden_drafted=2, hidden_accepted=1, hidden_drafting_s=0.04, hidden_inside_s=0.03
    )
    hidden.total_s = 12.5
    shown = dict(figures(made(hidden)))
    assert shown["hidden draft"] == "2 tokens, 1 accepted, 75% of its time inside the prefill"
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
