"""Provisional text is shown behind the final text for as long as the target agrees with it."""

from crossdraft.cli.view import STYLES, PartialAnswer, legend
from crossdraft.engine.request import Answer, Finish, Origin, Piece
from crossdraft.engine.stats import Stats
from crossdraft.engine.timeline import Timeline


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
