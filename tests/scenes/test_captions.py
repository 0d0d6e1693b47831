"""Captions: the facts of the answers in other words, which no answer begins with."""

from itertools import pairwise

import numpy as np
import pytest
from transformers import AutoTokenizer

from crossdraft.checkpoints.locate import REFERENCE
from crossdraft.engine.tree import common_prefix
from crossdraft_lab.scenes import KINDS, ask, make_scene, score
from crossdraft_lab.scenes.captions import CAPTIONS
from crossdraft_lab.scenes.questions import TRAIN
from crossdraft_lab.train.reference.tokenizer import token_ids

SCENES = [make_scene(seed) for seed in range(300)]
# Of wordings that are answered alike one is enough.
ALIKE = {kind: {(wording.style, wording.item): i for i, wording in enumerate(TRAIN[kind])} for kind in KINDS}
ASKED = {kind: tuple(found.values()) for kind, found in ALIKE.items()}


def caption(scene, kind, index):
    return ask(scene, kind, index, answers=CAPTIONS)


def test_every_kind_has_a_caption():
    assert tuple(CAPTIONS) == KINDS


@pytest.mark.parametrize("kind", KINDS)
def test_a_caption_states_what_the_answer_states(kind):
    for scene in SCENES:
        for index in ASKED[kind]:
            stated, answered = caption(scene, kind, index), ask(scene, kind, index)
            assert stated.facts == answered.facts
            assert stated.question == answered.question
            assert all(score(answered.facts, stated.answer).values()), stated


@pytest.mark.parametrize("kind", KINDS)
def test_another_scenes_caption_is_right_only_where_the_scenes_agree(kind):
    seen_wrong = 0
    for index in ASKED[kind]:
        for scene, other in pairwise(SCENES):
            here, there = caption(scene, kind, index), caption(other, kind, index)
            for slot, right in score(here.facts, there.answer).items():
                assert right == (there.facts.get(slot) == here.facts[slot]), (slot, here, there)
                seen_wrong += not right
    assert seen_wrong > 50


def test_no_caption_is_an_answer_and_few_sentences_are_shared():
    answers, captions = set(), set()
    for scene in SCENES[:100]:
        for kind in KINDS:
            for index in ASKED[kind]:
                stated, answered = caption(scene, kind, index).answer, ask(scene, kind, index).answer
                assert stated not in answered
                assert answered not in stated
                answers |= set(answered.rstrip(".").split(". "))
                captions |= set(stated.rstrip(".").split(". "))
    assert len(captions) > 900
    # What both have to say so that it is understood: who is on a side, or that it is empty.
    assert all(text.startswith(("There is", "There are", "The left", "The right")) for text in answers & captions)
    assert len(answers & captions) <= 10


def test_captions_begin_otherwise_and_are_as_long():
    tokenizer = AutoTokenizer.from_pretrained(REFERENCE / "target")
    prefixes, lengths = [], []
    for scene in SCENES[:60]:
        for kind in KINDS:
            for index in ASKED[kind]:
                stated, answered = (
                    token_ids(tokenizer, f" {qa.answer}")
                    for qa in (caption(scene, kind, index), ask(scene, kind, index))
                )
                prefixes.append(common_prefix(stated, answered))
                lengths.append((len(stated), len(answered)))
    # "In this ... dusk" is the one answer that begins with "In", too.
    assert np.mean(np.array(prefixes) == 0) > 0.98
    assert np.mean(prefixes) < 0.05
    stated, answered = np.mean(lengths, axis=0)
    assert answered < stated < 1.3 * answered
    assert max(length for length, _ in lengths) < 80


def test_captions_worked_by_hand():
    scene = make_scene(5)
    assert caption(scene, "count", 0).answer == "In the scene, there is one person on the right."
    assert caption(scene, "describe", 0).answer == (
        "In the scene, there is one person on the right, going from right to left. There is an orange bus in front, "
        "which is moving to the right lane. The weather is clear at this time of day, so far things are in view. "
        "The driver is going fast at a crossroads."
    )
    last = len(TRAIN["lead motion"]) - 1
    assert TRAIN["lead motion"][last].style == "b"
    assert caption(scene, "lead motion", last).answer == (
        "In the clip, one should give way because one person is going from right to left. At a crossroads, the driver "
        "is going fast. A bus is in front, now moving to the right lane. It is on its way out of this lane."
    )


def test_captions_follow_from_the_arguments():
    for kind in KINDS:
        for index in ASKED[kind]:
            assert caption(make_scene(7), kind, index) == caption(make_scene(7), kind, index)
