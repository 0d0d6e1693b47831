"""Speculative prefill with checks: which requests are read how, what is taken back, and where the threshold goes."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import pytest

from crossdraft.align.checked import CheckedPrefill, QualityBudget, rouge_l
from crossdraft.errors import CrossdraftError

OWN = tuple(range(10))


@dataclass
class Answer:
    tokens: tuple[int, ...]


def said(loss):
    """An answer whose ROUGE-L with `OWN` is 1 - loss, in tenths."""
    return Answer((*OWN[: round(10 - 10 * loss)], *[99] * round(10 * loss)))


def checked(budget, losses, confidences, threshold=0.5):
    """Over requests 0, 1, 2 …; what was asked of either way is kept."""
    asked = {"predicted": [], "true": []}

    def answer(kind, request):
        asked[kind].append(request)
        return said(losses[request]) if kind == "predicted" else Answer(OWN)

    made = CheckedPrefill(
        lambda r: (confidences[r], r), lambda r: answer("predicted", r), lambda r: answer("true", r), budget, threshold,
    )  # fmt: skip
    return made, asked


@pytest.mark.parametrize(
    ("found", "wanted", "score"),
    [((1, 2, 3), (1, 2, 3), 1), ((1, 2), (3, 4), 0), ((), (), 1), ((), (1,), 0), ((1, 2, 1), (1, 1, 2), 2 / 3),
     ((1, 9, 2, 9, 3), (1, 2, 3), 0.75)],
)  # fmt: skip
def test_rouge_l_by_hand(found, wanted, score):
    assert rouge_l(found, wanted) == rouge_l(wanted, found) == pytest.approx(score)


def test_a_clip_that_the_gate_is_not_sure_of_is_read_whole():
    made, asked = checked(QualityBudget(0.1, check=0.5, rate=0.2), [0.5], [0.4])
    found = made.answer(0)
    assert (found.answer.tokens, found.lossy, found.predicted) == (OWN, False, None)
    assert asked == {"predicted": [], "true": [0]}
    assert made.threshold == pytest.approx(0.5 - 0.2 * 0.1 * 0.5)


@pytest.mark.parametrize("loss", [0.0, 0.1, 0.3])
def test_a_checked_request_gets_the_targets_own_answer_and_moves_the_threshold(loss):
    made, asked = checked(QualityBudget(0.1, check=1.0, rate=0.2), [loss], [0.6])
    found = made.answer(0)
    assert (found.answer.tokens, found.lossy) == (OWN, False)
    assert found.predicted.tokens == said(loss).tokens
    assert found.loss == pytest.approx(loss)
    assert asked == {"predicted": [0], "true": [0]}
    assert made.threshold == pytest.approx(0.5 + 0.2 * (loss - 0.1))


@pytest.mark.parametrize("confidence", [None, float("nan")])
def test_what_cannot_be_predicted_is_read_whole_and_moves_nothing(confidence):
    """However often, and however low the threshold: it is never predicted, checked or called lossy."""
    count = 10_000
    made, asked = checked(QualityBudget(0.5, check=1.0, rate=1.0), [1.0] * count, [confidence] * count, threshold=0.0)
    answers = [made.answer(request) for request in range(count)]
    assert made.threshold == 0
    assert not any(found.lossy or found.predicted is not None or found.loss is not None for found in answers)
    assert asked["predicted"] == []


def test_requests_without_events_in_between_change_nothing():
    """The same requests, alone and with ten that cannot be predicted before each: the same ways and threshold."""
    rng, count = np.random.default_rng(0), 300
    losses, confidences = rng.integers(0, 11, count) / 10, rng.random(count).tolist()
    alone, _ = checked(QualityBudget(0.2, check=0.5), losses, confidences)
    between, _ = checked(QualityBudget(0.2, check=0.5), [*losses, 1.0], [*confidences, None])
    found = [alone.answer(request) for request in range(count)]
    mixed = []
    for request in range(count):
        for _ in range(10):
            between.answer(count)
        mixed.append(between.answer(request))
    assert [(one.lossy, one.loss) for one in found] == [(one.lossy, one.loss) for one in mixed]
    assert alone.threshold == between.threshold


def test_the_threshold_stays_between_0_and_1_by_hand():
    """Nothing is lost: it ends at 0, and a loss moves it up at once. All is lost: at 1 nothing is predicted."""
    made, _ = checked(QualityBudget(0.5, check=1.0, rate=0.2), [0.0] * 20 + [1.0] * 20, [0.6] * 40)
    seen = []
    for request in range(20):
        made.answer(request)
        seen.append(made.threshold)
    assert seen == pytest.approx([0.4, 0.3, 0.2, 0.1, *[0] * 16])
    made.answer(20)
    assert made.threshold == pytest.approx(0.1)
    made, asked = checked(QualityBudget(0.5, check=1.0, rate=1.0), [1.0] * 20, [1.0] * 20, threshold=0.9)
    made.answer(0)  # 1.4
    assert made.threshold == 1
    assert made.answer(1).predicted is None  # read whole: 0.9 again
    assert made.threshold == pytest.approx(0.9)
    made.answer(2)
    assert asked["predicted"] == [0, 2]


@pytest.mark.parametrize("threshold", [-0.1, 1.1, float("nan")])
def test_a_threshold_that_is_none_is_refused(threshold):
    with pytest.raises(CrossdraftError, match="A threshold of confidence is a number from 0 to 1"):
        checked(QualityBudget(), [], [], threshold)


@pytest.mark.parametrize("confidence", [1.0, 0.999])
def test_a_gate_that_is_always_sure_does_not_break_the_budget(confidence):
    """What was lost above a threshold of 1 is paid for; a threshold that is only cut off at 1 loses 0.2 here."""
    rng, count = np.random.default_rng(1), 6000
    losses = rng.integers(0, 11, count) / 10
    made, _ = checked(QualityBudget(0.05, check=0.5, rate=0.02), losses, [confidence] * count, threshold=1.0)
    lost = [0.0 if made.answer(request).predicted is None else losses[request] for request in range(count)]
    assert np.mean(lost) == pytest.approx(0.05, abs=0.015)


class YieldingBudget(QualityBudget):
    """Other threads run whenever its rate is looked up: after the threshold is read, before it is written."""

    def __getattribute__(self, name):
        if name == "rate":
            time.sleep(1e-5)
        return super().__getattribute__(name)


@pytest.mark.parametrize("locked", [True, False])
def test_threads_lose_no_step_of_the_threshold(locked):
    """800 checks in eight threads, each of which moves it by 1/1600: none is lost. The planted bug: no lock."""
    count = 800
    made, asked = checked(YieldingBudget(0.0, check=1.0, rate=1 / 1600), [1.0] * count, [1.0] * count, threshold=0.25)
    if not locked:
        made._lock = nullcontext()
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(made.answer, range(count)))
    assert (made.threshold == pytest.approx(0.75)) == locked
    assert sorted(asked["predicted"]) == sorted(asked["true"]) == list(range(count))
    assert all(found.loss == 1 and not found.lossy for found in answers)


def test_requests_are_answered_side_by_side():
    """Two requests wait for each other inside their answers: a lock around those would never end."""
    both = threading.Barrier(2)

    def answer(request):
        both.wait(timeout=10)
        return Answer(OWN)

    made = CheckedPrefill(lambda r: (1.0, r), answer, answer, QualityBudget(check=1.0), 0.5)
    with ThreadPoolExecutor(2) as pool:
        assert [found.loss for found in pool.map(made.answer, range(2))] == [0, 0]


def test_what_is_not_checked_is_given_as_it_is_and_teaches_nothing():
    count = 400
    made, asked = checked(QualityBudget(0.5, check=0.25, rate=1e-9), [0.5] * count, [0.6] * count)
    answers = [made.answer(request) for request in range(count)]
    assert len(asked["predicted"]) == count
    assert 70 < len(asked["true"]) < 130  # a quarter
    assert {found.lossy for found in answers if found.loss is None} == {True}
    assert made.threshold == pytest.approx(0.5)


@pytest.mark.parametrize("informed", [True, False])
@pytest.mark.parametrize("budget", [0.05, 0.2])
def test_the_budget_is_kept_however_well_the_gate_knows(informed, budget):
    """Losses from 0 to 1; a gate that knows them, and one that says anything: the mean loss nears the budget."""
    rng, count = np.random.default_rng(0), 4000
    losses = rng.integers(0, 11, count) / 10
    confidences = 1 - losses if informed else rng.random(count)
    made, _ = checked(QualityBudget(budget, check=0.5, rate=0.02), losses, confidences + 1e-3 * rng.random(count))
    answers = [made.answer(request) for request in range(count)]
    lost = [0.0 if found.predicted is None else losses[number] for number, found in enumerate(answers)]
    assert np.mean(lost[count // 2 :]) == pytest.approx(budget, abs=0.02)
    predicted = np.mean([found.predicted is not None for found in answers[count // 2 :]])
    assert predicted > (0.25 if informed else 0.05)


def test_a_threshold_that_does_not_move_would_be_noticed():
    """The planted bug: checks teach nothing, and the losses stay what they are."""
    rng = np.random.default_rng(0)
    losses = rng.integers(0, 11, 1000) / 10
    made, _ = checked(QualityBudget(0.05, check=0.5, rate=1e-9), losses, np.ones(1000))
    lost = [losses[number] for number in range(1000) if made.answer(number).predicted is not None]
    assert np.mean(lost) > 0.4


@pytest.mark.parametrize(
    ("values", "part"),
    [({"loss": 1.5}, "1.5 is none"), ({"loss": -0.1}, "-0.1 is none"), ({"loss": float("nan")}, "nan is none"),
     ({"check": 0.0}, "0.0 is not"), ({"check": 2.0}, "2.0 is not"), ({"rate": 0.0}, "0.0 is not")],
)  # fmt: skip
def test_a_budget_without_sense_is_refused(values, part):
    with pytest.raises(CrossdraftError, match=part):
        QualityBudget(**values)
