"""The shipped wordings, and the little format they are written in."""

import re

import pytest

from crossdraft.errors import CrossdraftError
from crossdraft.scenes import KINDS
from crossdraft.scenes.questions import HELD_OUT, TRAIN, Wording, parse

TEXT = """
# a remark
[count]
a || How many people?

[colour]
b | lead | Can you tell the colour?
a|people|Which colour?
"""


def test_a_text_worked_by_hand():
    assert dict(parse(TEXT, "text")) == {
        "count": (Wording("a", "", "How many people?"),),
        "colour": (Wording("b", "lead", "Can you tell the colour?"), Wording("a", "people", "Which colour?")),
    }


@pytest.mark.parametrize(
    ("line", "number"),
    [
        ("c || Why?", 2),
        ("a | Why?", 2),
        ("a ||", 2),
        ("a || Why? | because", 2),
        ("why?", 2),
        ("a || How many?\na || How many?", 3),
        ("a || Why?\n[count]", 3),
        ("a || Why?\n[order]\nb || Why?", 4),
    ],
)
def test_a_line_of_another_form_is_named(line: str, number: int):
    with pytest.raises(CrossdraftError, match=f"Line {number} of wordings.txt is wrong"):
        parse(f"[count]\n{line}\n", "wordings.txt")


def test_a_question_without_a_kind_and_a_kind_without_a_question():
    with pytest.raises(CrossdraftError, match="Line 1 of x is wrong"):
        parse("a || Why?", "x")
    with pytest.raises(CrossdraftError, match=r"x has no question of the kind \[order\]"):
        parse("[count]\na || Why?\n[order]", "x")


def test_what_is_shipped_is_whole():
    """Scenes' questions are drawn by number, so even the order is part of every published figure."""
    assert tuple(TRAIN) == tuple(HELD_OUT) == KINDS
    assert [len(TRAIN[kind]) for kind in KINDS] == [
        33, 32, 33, 32, 33, 32, 33, 31, 32, 33, 33, 45, 38, 33, 32, 32
    ]  # fmt: skip
    assert [len(HELD_OUT[kind]) for kind in KINDS] == [3 if kind == "presence" else 2 for kind in KINDS]
    first, last = TRAIN["key elements"][0], TRAIN["describe"][-1]
    assert first.question == "What are the key elements in this scene?"
    assert last.question == "Would you write a full description of this clip?"


def test_held_out_wordings_are_held_out():
    trained = {wording.question for asked in TRAIN.values() for wording in asked}
    held_out = {wording.question for asked in HELD_OUT.values() for wording in asked}
    assert len(trained) == sum(map(len, TRAIN.values()))
    assert len(held_out) == sum(map(len, HELD_OUT.values()))
    assert not trained & held_out


@pytest.mark.parametrize("table", [TRAIN, HELD_OUT])
def test_the_style_can_be_told_from_the_question(table):
    asks_us = re.compile(r"\b((can|could|would) (you|we)|do we)\b", re.IGNORECASE)
    for wording in (wording for asked in table.values() for wording in asked):
        assert (asks_us.search(wording.question) is not None) == (wording.style == "b"), wording
