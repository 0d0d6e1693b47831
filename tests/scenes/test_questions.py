"""Questions: answers that state their facts, in few words, and that a blind model cannot predict."""

import re
from collections import Counter, defaultdict
from itertools import pairwise

import pytest

from crossdraft.errors import CrossdraftError
from crossdraft_lab.scenes import KINDS, ask, attributes, make_scene, score, wordings
from crossdraft_lab.scenes.questions import HELD_OUT, TRAIN, Wording, parse

SCENES = [make_scene(seed) for seed in range(70)]
EVERY = [
    (kind, held_out, index)
    for kind in KINDS
    for held_out in (False, True)
    for index in range(len(wordings(kind, held_out)))
]


def words(text):
    return re.findall(r"[\w-]+", text.lower())


def sentences(text):
    return [part for part in re.split(r"(?<=[.])\s+", text) if part]


def test_there_are_enough_kinds_and_wordings():
    assert len(KINDS) >= 12
    for kind in KINDS:
        assert len(wordings(kind)) >= 6
        assert len(wordings(kind, held_out=True)) >= 2


def test_no_question_has_two_meanings():
    asked = Counter(question for kind in KINDS for held_out in (False, True) for question in wordings(kind, held_out))
    assert max(asked.values()) == 1


def test_held_out_wordings_are_new_sentences_of_known_words():
    known = {word for kind in KINDS for question in wordings(kind) for word in words(question)}
    trained = {tuple(words(question)) for kind in KINDS for question in wordings(kind)}
    for kind in KINDS:
        for question in wordings(kind, held_out=True):
            assert set(words(question)) <= known, question
            assert tuple(words(question)) not in trained


@pytest.mark.parametrize("kind", ["presence", "colour"])
def test_every_item_is_asked_for_in_both_sets(kind):
    assert {wording.item for wording in TRAIN[kind]} == {wording.item for wording in HELD_OUT[kind]}


@pytest.mark.parametrize("kind", KINDS)
def test_every_answer_states_its_facts(kind):
    for scene in SCENES[::2]:
        for held_out in (False, True):
            for index in range(len(wordings(kind, held_out))):
                qa = ask(scene, kind, index, held_out)
                assert qa.facts
                assert all(score(qa.facts, qa.answer).values()), qa
                assert 1 <= len(sentences(qa.answer)) <= 4, qa.answer


@pytest.mark.parametrize("kind", KINDS)
def test_another_scenes_answer_is_right_only_where_the_scenes_agree(kind):
    seen_wrong = 0
    for index in range(len(wordings(kind))):
        for scene, other in pairwise(SCENES[::2]):
            here, there = ask(scene, kind, index), ask(other, kind, index)
            for slot, right in score(here.facts, there.answer).items():
                assert right == (there.facts.get(slot) == here.facts[slot]), (slot, here, there)
                seen_wrong += not right
    assert seen_wrong > 50


@pytest.mark.parametrize("kind", KINDS)
def test_facts_are_true(kind):
    for scene in SCENES:
        truth = attributes(scene)
        for index, wording in enumerate(TRAIN[kind]):
            for slot, value in ask(scene, kind, index).facts.items():
                if slot == "presence":
                    assert value == ("yes" if wording.item in (scene.left, scene.right) else "no")
                else:
                    assert truth[slot] == value


def test_wording_changes_the_words_and_not_the_facts():
    by_item = defaultdict(set)
    for kind in KINDS:
        for table, held_out in ((TRAIN, False), (HELD_OUT, True)):
            for index, wording in enumerate(table[kind]):
                facts = ask(SCENES[3], kind, index, held_out).facts
                by_item[kind, wording.item].add(frozenset(facts.items()))
    assert all(len(facts) == 1 for facts in by_item.values())


def test_both_styles_are_used_and_differ():
    for kind in KINDS:
        answers = defaultdict(set)
        for index, wording in enumerate(TRAIN[kind]):
            answers[wording.style] |= {ask(scene, kind, index).answer for scene in SCENES}
        assert set(answers) == {"a", "b"}
        assert answers["a"] != answers["b"]


def test_answers_follow_from_the_arguments():
    for kind, held_out, index in EVERY:
        assert ask(SCENES[5], kind, index, held_out) == ask(make_scene(5), kind, index, held_out)


def test_vocabulary_is_small():
    vocabulary = {
        word
        for scene in SCENES
        for kind, held_out, index in EVERY
        for word in words(ask(scene, kind, index, held_out).answer)
    }
    assert len(vocabulary) < 260


def test_long_answers_exist_and_short_ones():
    length = {kind: sum(len(words(ask(scene, kind, 0).answer)) for scene in SCENES) / len(SCENES) for kind in KINDS}
    assert sum(35 <= mean <= 60 for mean in length.values()) >= 8
    assert sum(mean < 15 for mean in length.values()) >= 3


def test_a_blind_baseline_gets_less_than_half_right():
    # The best that can be said without looking: each slot's commonest value, and whether to mention it at all.
    values = defaultdict(Counter)
    for seed in range(1500):
        scene = make_scene(seed)
        for kind in KINDS:
            for slot, value in ask(scene, kind, seed % len(wordings(kind))).facts.items():
                values[kind, slot][value] += 1
    right = defaultdict(int)
    total = defaultdict(int)
    for (kind, _), counts in values.items():
        right[kind] += max(counts.values())
        total[kind] += counts.total()
    assert sum(right.values()) / sum(total.values()) < 0.42
    assert sum(right[kind] / total[kind] for kind in KINDS) / len(KINDS) < 0.42


@pytest.mark.parametrize("index", [-1, 99])
def test_an_unknown_wording_is_refused(index):
    last = len(wordings("count")) - 1
    with pytest.raises(CrossdraftError, match=rf"'count' has wordings 0\.\.{last}"):
        ask(SCENES[0], "count", index)


def test_an_unknown_kind_is_refused():
    with pytest.raises(CrossdraftError, match="no kind of question 'poem'; choose one of key elements, layout"):
        wordings("poem")


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
def test_the_style_follows_from_the_question(table):
    asks_us = re.compile(r"\b((can|could|would) (you|we)|do we)\b", re.IGNORECASE)
    for wording in (wording for asked in table.values() for wording in asked):
        assert (asks_us.search(wording.question) is not None) == (wording.style == "b"), wording
