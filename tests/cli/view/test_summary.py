"""The figures of an answer and its record."""

import json
from dataclasses import replace

from crossdraft.cli.view.summary import figures, record
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
    new_tokens=5, rounds=2, accepted=3, hidden_drafted=4, ttft_s=0.08, total_s=0.1, first_provisional_s=0.02
)
TIMELINE = Timeline([Span("target", "verify", 2.5, 2.6, 3), Span("drafter", "read", 2.0, 2.25)])


def made(stats: Stats, logprobs: tuple[float, ...] | None = None) -> Answer:
    tokens = tuple(token for piece in PIECES for token in piece.tokens)
    return Answer(" A red car ahead.", tokens, PIECES, Finish.EOS, stats, TIMELINE, logprobs, ("a note",))


def test_figures():
    assert dict(figures(made(STATS))) == {
        "first provisional text": "20 ms",
        "first final text (TTFT)": "80 ms",
        "total": "100 ms, 5 tokens, 50 tokens/s",
        "τ": "2.50 per pass (accepted and one more), 2 passes",
        "hidden share": "nothing was hidden",
        "whose tokens": "2 hidden, 1 drafted later, 2 the target's own",
    }


def test_a_lossy_rule_shows_and_a_lossless_one_does_not():
    lossy = replace(STATS, rule="relaxed:r=3", lossless=False)
    assert dict(figures(made(lossy)))["rule"] == "lossy: relaxed:r=3"
    assert "rule" not in dict(figures(made(replace(STATS, rule="greedy"))))
    told = record(made(lossy))["stats"]
    assert (told["rule"], told["lossless"]) == ("relaxed:r=3", False)


def test_hidden_drafting_shows_its_share_and_a_target_alone_has_no_provisional_text():
    hidden = Stats(rounds=1, hidden_drafted=2, hidden_drafting_s=0.04, hidden_inside_s=0.03, total_s=12.5)
    shown = dict(figures(made(hidden)))
    assert shown["hidden share"] == "75% of the hidden drafting"
    assert shown["total"].startswith("12.50 s, ")
    assert dict(figures(made(Stats(rounds=1, total_s=1.0))))["first provisional text"] == "none"


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
