"""Figures of answers, worked by hand."""

import pytest

from crossdraft_lab import scenes
from crossdraft_lab.train.reference.answers import (
    ClipAnswer,
    answer_rows,
    evaluation_questions,
    facts_right,
    mean_acceptance_length,
)
from crossdraft_lab.train.reference.ship import answer_vocabulary
from crossdraft_lab.train.reference.tokenizer import EVENT, PromptCodec, train_tokenizer


@pytest.mark.parametrize(
    ("row", "chain", "tau"),
    [
        ([True, True, False, True], 8, 2.0),  # 2 + bonus; 1
        ([False, False, False], 8, 1.0),
        ([True] * 9, 8, 9.0),  # eight accepted and a bonus
        ([True] * 9, 2, 3.0),
        ([], 8, 0.0),
    ],
)
def test_tau_of_rows_worked_by_hand(row: list[bool], chain: int, tau: float) -> None:
    assert mean_acceptance_length([row], chain) == tau


def test_the_ground_truth_scores_full_marks_and_another_scenes_answers_do_not() -> None:
    by_clip = evaluation_questions("test", range(12), 4, 0, held_out=True)
    flat = [question for questions in by_clip for question in questions]
    held = {wording for kind in scenes.KINDS for wording in scenes.wordings(kind, held_out=True)}
    assert {question.question for question in flat} <= held

    def clip_answers(answers: list[str]) -> list[ClipAnswer]:
        return [ClipAnswer(q.clip, q.kind, q.question, text, whole=True) for q, text in zip(flat, answers, strict=True)]

    assert facts_right(by_clip, clip_answers([q.expected for q in flat]))["all"] == 1.0
    assert facts_right(by_clip, clip_answers([q.expected for q in reversed(flat)]))["all"] < 0.8


def test_an_answer_that_was_cut_short_is_not_given_an_end() -> None:
    codec = PromptCodec(train_tokenizer(["A red car."] * 9, 400), EVENT)
    end = codec.tokenizer.eos_token_id
    answers = [ClipAnswer(0, "colour", "What?", "A red car.", whole=whole) for whole in (True, False)]
    (_, whole), (_, cut) = answer_rows(codec, answers)
    assert whole == [*cut, end]
    assert end not in cut
    assert answer_vocabulary(codec, answers) == sorted({*whole})
    assert answer_vocabulary(codec, answers[1:]) == sorted({*cut})
