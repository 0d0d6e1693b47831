"""Scores worked by hand, and against the packages that define them."""

import math

import numpy as np
import pytest
from sacrebleu import corpus_bleu

from crossdraft.errors import CrossdraftError
from crossdraft_lab.bench.quality import (
    ScoredAnswer,
    accuracies,
    bleu,
    bleu_of,
    cider,
    cider_scores,
    contains,
    facts,
    literal,
    matches,
    normalised,
    rouge_l,
    text_scores,
    vqa_accuracy,
)

TEXTS = (
    "A red car is ahead of us.",
    "Two people cross the road.",
    "there is no car",
    "a blue bus pulls away to the left lane",
)
REFERENCES = (
    ("a red car is ahead", "The red car ahead of us is slow."), ("two people are crossing the road",),
    ("There is a car ahead.", "no car is there"), ("a bus is moving to the left lane",),
)  # fmt: skip


def answers():
    return [ScoredAnswer(i, text, of) for i, (text, of) in enumerate(zip(TEXTS, REFERENCES, strict=True))]


def test_bleu_by_hand():
    # "the cat sat on the mat ." against "the cat sat on a mat .": 6 of 7, 4 of 6, 2 of 5, 1 of 4.
    sums = np.array([6, 4, 2, 1, 7, 6, 5, 4, 7, 7], dtype=float)
    expected = 100 * (6 / 7 * 4 / 6 * 2 / 5 * 1 / 4) ** 0.25
    assert bleu_of(sums) == pytest.approx(expected)
    one = [ScoredAnswer("a", "the cat sat on the mat .", ("the cat sat on a mat .",))]
    assert bleu(one).value == pytest.approx(expected)
    assert bleu_of(np.array([6, 4, 2, 0, 7, 6, 5, 4, 7, 7], dtype=float)) == 0
    short = np.array([3, 2, 1, 1, 3, 2, 1, 1, 3, 6], dtype=float)
    assert bleu_of(short) == pytest.approx(100 * math.exp(1 - 6 / 3)), "brevity"


def test_bleu_is_sacrebleus_corpus_bleu():
    most = max(map(len, REFERENCES))
    columns = [[of[min(i, len(of) - 1)] for of in REFERENCES] for i in range(most)]
    expected = corpus_bleu(list(TEXTS), columns, smooth_method="none").score
    found = bleu(answers())
    assert found.value == pytest.approx(expected)
    assert "tok:13a" in found.note
    assert found.n == 4


def test_rouge_by_hand():
    # Longest common subsequence of 3 words; 4 in the answer, 5 in the reference.
    found = rouge_l([ScoredAnswer("a", "red car turns left", ("the red car goes left",))])
    assert found.value == pytest.approx(100 * 2 * (3 / 4) * (3 / 5) / (3 / 4 + 3 / 5))
    best = rouge_l([ScoredAnswer("a", "red car turns left", ("nothing here", "red car turns left"))])
    assert best.value == pytest.approx(100)


def test_cider_by_hand():
    # Two answers, so ln 2 for what one has and 0 for what both have. "red" alone: its vectors are (red: ln 2, car: 0).
    found = cider_scores(["red car", "blue car"], [["red car"], ["blue car"]])
    # Orders 1 and 2 are the same vectors: cosine 1 each; orders 3 and 4 are empty; the mean of four, times ten.
    assert found == pytest.approx([5.0, 5.0])
    wrong = cider_scores(["blue car", "blue car"], [["red car"], ["blue car"]])
    assert wrong[0] == 0


def test_cider_is_that_of_pycocoevalcap():
    # Computed with pycocoevalcap 1.2 from the same tokens.
    expected = [5.416484442004727, 2.764175571563185, 2.9617598216842356, 3.870477733396184]
    assert cider_scores(TEXTS, REFERENCES) == pytest.approx(expected, abs=1e-12)
    found = cider(answers())
    assert found.value == pytest.approx(3.753224392162083)
    assert "our own tokenizer" in str(found)


def test_normalisation_by_hand():
    assert normalised(" The Two  dogs!") == "2 dogs"
    assert normalised("None.") == "0"
    assert normalised("a an the") == ""
    assert matches("", ("",)) == 0
    assert matches("A dog.", ("dog",)) == 1
    assert literal("A dog.", ("dog",)) == 0
    assert contains("There are two dogs ahead.", ("2",)) == 1
    assert contains("a hotdog", ("dog",)) == 0


def test_vqa_accuracy_by_hand():
    for equal, expected in ((0, 0.0), (1, 0.3), (2, 0.6), (3, 0.9), (4, 1.0), (10, 1.0)):
        references = ["red"] * equal + ["blue"] * (10 - equal)
        assert vqa_accuracy("Red.", references) == pytest.approx(expected)
    with pytest.raises(CrossdraftError, match="10 answers"):
        vqa_accuracy("red", ["red"])


def test_accuracies_by_kind_with_n_and_interval():
    some = [
        ScoredAnswer("s1", "Yes.", ("yes",), "yes/no"), ScoredAnswer("s1", "no", ("yes",), "yes/no"),
        ScoredAnswer("s2", "red", ("red",), "colour"),
    ]  # fmt: skip
    found = {figure.name: figure for figure in accuracies(some)}
    assert {name: round(figure.value, 3) for name, figure in found.items()} == {
        "exact match": 0.333, "normalised match": 0.667, "contains": 0.667, "normalised match, yes/no": 0.5,
        "normalised match, colour": 1.0,
    }  # fmt: skip
    assert found["normalised match"].n == 2, "scenes, not answers"
    ten = [ScoredAnswer("s", "red", ("red",) * 10)]
    assert accuracies(ten)[-1].name == "VQA accuracy"


def test_equal_answers_have_equal_scores_and_others_less():
    """Lossless rows must be equal; one token that differs shows."""
    same = [figure.to_json() for figure in text_scores(answers())]
    assert [figure.to_json() for figure in text_scores(answers())] == same
    other = [*answers()[:3], ScoredAnswer(3, TEXTS[3].replace("left", "right"), REFERENCES[3])]
    assert all(a.value > b.value for a, b in zip(text_scores(answers()), text_scores(other), strict=True))


def test_facts_are_pooled_over_scenes():
    found = facts([[True, False], [True], [True, True]], ["a", "a", "b"])
    assert (found.value, found.n) == (0.8, 2)


def test_what_cannot_be_scored():
    for some in ([], [ScoredAnswer("a", "red", ())]):
        with pytest.raises(CrossdraftError, match="There are no answers"):
            text_scores(some)
