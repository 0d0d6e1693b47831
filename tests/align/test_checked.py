"""Speculative prefill with checks: which requests are read how, and where the threshold goes."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossdraft.errors import CrossdraftError
from crossdraft_lab.align.checked import PrefillController, QualityBudget, Read, rouge_l

PREDICTED, CHECKED, WHOLE = Read.PREDICTED, Read.CHECKED, Read.WHOLE


def go_through(made, losses, confidences):
    """How each of these requests is read, one after the other; a checked one loses what it does."""
    reads = []
    for loss, confidence in zip(losses, confidences, strict=True):
        reads.append(made.choose(confidence))
        if reads[-1] is CHECKED:
            made.learn(loss)
    return reads


def lost(reads, losses):
    """What predicted tokens lose of each request; a checked one's, too, though it has the target's own answer."""
    return [0.0 if read is WHOLE else loss for read, loss in zip(reads, losses, strict=True)]


@pytest.mark.parametrize(
    ("found", "wanted", "score"),
    [((1, 2, 3), (1, 2, 3), 1), ((1, 2), (3, 4), 0), ((), (), 1), ((), (1,), 0), ((1, 2, 1), (1, 1, 2), 2 / 3),
     ((1, 9, 2, 9, 3), (1, 2, 3), 0.75)],
)  # fmt: skip
def test_rouge_l_by_hand(found, wanted, score):
    assert rouge_l(found, wanted) == rouge_l(wanted, found) == pytest.approx(score)


def _lcs(found, wanted):
    """The longest common subsequence, as it is defined."""
    if not found or not wanted:
        return 0
    if found[0] == wanted[0]:
        return 1 + _lcs(found[1:], wanted[1:])
    return max(_lcs(found[1:], wanted), _lcs(found, wanted[1:]))


@given(st.lists(st.integers(0, 3), max_size=7), st.lists(st.integers(0, 3), max_size=7))
def test_rouge_l_is_of_the_longest_common_subsequence(found, wanted):
    total = len(found) + len(wanted)
    assert rouge_l(found, wanted) == (2 * _lcs(found, wanted) / total if total else 1)


def test_a_clip_that_the_gate_is_not_sure_of_is_read_whole():
    made = PrefillController(QualityBudget(0.1, check=0.5, rate=0.2), 0.5)
    assert made.choose(0.4) is WHOLE
    assert made.threshold == pytest.approx(0.5 - 0.2 * 0.1 * 0.5)


@pytest.mark.parametrize("loss", [0.0, 0.1, 0.3])
def test_a_check_moves_the_threshold(loss):
    made = PrefillController(QualityBudget(0.1, check=1.0, rate=0.2), 0.5)
    assert made.choose(0.6) is CHECKED
    assert made.threshold == 0.5
    made.learn(loss)
    assert made.threshold == pytest.approx(0.5 + 0.2 * (loss - 0.1))


def test_the_status_by_hand():
    made = PrefillController(QualityBudget(0.1, check=1.0, rate=1e-6), 0.5)
    assert made.status.to_json() == {
        "budget": 0.1, "threshold": 0.5, "predicted": 0, "checked": 0, "whole": 0, "unpredictable": 0, "compared": 0,
        "mean_loss": None,
    }  # fmt: skip
    for confidence in (0.6, 0.4, 0.7, 0.8):
        made.choose(confidence)
    made.learn(0.1)
    made.learn(0.4)  # the third check is still under way
    found = made.status
    assert (found.reads, found.compared) == ({PREDICTED: 0, CHECKED: 3, WHOLE: 1}, 2)
    made.count_unpredictable()
    assert made.status == replace(found, unpredictable=1)
    assert found.mean_loss == pytest.approx(0.25)
    made = PrefillController(QualityBudget(0.1, check=1e-9), 0.5)
    assert made.choose(0.6) is PREDICTED
    assert made.status.reads == {PREDICTED: 1, CHECKED: 0, WHOLE: 0}


def test_what_is_no_number_is_read_whole_and_moves_nothing():
    """However often, and however low the threshold."""
    made = PrefillController(QualityBudget(0.5, check=1.0, rate=1.0), 0.0)
    assert {made.choose(float("nan")) for _ in range(1000)} == {WHOLE}
    assert made.threshold == 0
    assert sum(made.status.reads.values()) == 0


def test_a_look_at_the_threshold_changes_nothing():
    """The same requests, alone and with ten looks before each: the same ways and threshold."""
    rng, count = np.random.default_rng(0), 300
    losses, confidences = rng.integers(0, 11, count) / 10, rng.random(count).tolist()
    alone, between = (PrefillController(QualityBudget(0.2, check=0.5), 0.5) for _ in range(2))
    found, mixed = go_through(alone, losses, confidences), []
    for loss, confidence in zip(losses, confidences, strict=True):
        looks = {between.would_read(confidence) for _ in range(10)}
        assert looks == {PREDICTED if confidence >= between.threshold else WHOLE}
        mixed += go_through(between, [loss], [confidence])
    assert found == mixed
    assert alone.status == between.status


def test_the_threshold_stays_between_0_and_1_by_hand():
    """Nothing is lost: it ends at 0, and a loss moves it up at once. All is lost: at 1 nothing is predicted."""
    made, seen = PrefillController(QualityBudget(0.5, check=1.0, rate=0.2), 0.5), []
    for _ in range(20):
        go_through(made, [0.0], [0.6])
        seen.append(made.threshold)
    assert seen == pytest.approx([0.4, 0.3, 0.2, 0.1, *[0] * 16])
    go_through(made, [1.0], [0.6])
    assert made.threshold == pytest.approx(0.1)
    made = PrefillController(QualityBudget(0.5, check=1.0, rate=1.0), 0.9)
    go_through(made, [1.0], [1.0])  # 1.4
    assert made.threshold == 1
    assert made.choose(1.0) is WHOLE  # 0.9 again
    assert made.threshold == pytest.approx(0.9)
    assert made.choose(1.0) is CHECKED


@pytest.mark.parametrize("threshold", [-0.1, 1.1, float("nan")])
def test_a_threshold_that_is_none_is_refused(threshold):
    with pytest.raises(CrossdraftError, match="A threshold of confidence is a number from 0 to 1"):
        PrefillController(QualityBudget(), threshold)


@pytest.mark.parametrize("confidence", [1.0, 0.999])
def test_a_gate_that_is_always_sure_does_not_break_the_budget(confidence):
    """What was lost above a threshold of 1 is paid for; a threshold that is only cut off at 1 loses 0.2 here."""
    rng, count = np.random.default_rng(1), 6000
    losses = rng.integers(0, 11, count) / 10
    made = PrefillController(QualityBudget(0.05, check=0.5, rate=0.02), 1.0)
    reads = go_through(made, losses, [confidence] * count)
    assert np.mean(lost(reads, losses)) == pytest.approx(0.05, abs=0.015)


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
    made = PrefillController(YieldingBudget(0.0, check=1.0, rate=1 / 1600), 0.25)
    if not locked:
        made._lock = nullcontext()
    with ThreadPoolExecutor(8) as pool:
        reads = list(pool.map(lambda _: go_through(made, [1.0], [1.0]), range(count)))
    assert (made.threshold == pytest.approx(0.75)) == locked
    assert all(found == [CHECKED] for found in reads)
    if locked:
        assert (made.status.compared, made.status.loss) == (count, count)


def test_requests_are_answered_side_by_side():
    """Two checks are under way at once: a lock from the choice to what is learned would never end."""
    both = threading.Barrier(2)
    made = PrefillController(QualityBudget(check=1.0), 0.5)

    def answer(_):
        assert made.choose(1.0) is CHECKED
        both.wait(timeout=10)
        made.learn(0.0)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(answer, range(2)))
    assert made.status.compared == 2


def test_a_share_is_checked_and_the_others_teach_nothing():
    count = 400
    made = PrefillController(QualityBudget(0.5, check=0.25, rate=1e-9), 0.5)
    reads = go_through(made, [0.5] * count, [0.6] * count)
    assert 70 < reads.count(CHECKED) < 130  # a quarter
    assert reads.count(PREDICTED) + reads.count(CHECKED) == count
    assert made.status.compared == reads.count(CHECKED)
    assert made.threshold == pytest.approx(0.5)


@pytest.mark.parametrize("informed", [True, False])
@pytest.mark.parametrize("budget", [0.05, 0.2])
def test_the_budget_is_kept_however_well_the_gate_knows(informed, budget):
    """Losses from 0 to 1; a gate that knows them, and one that says anything: the mean loss nears the budget."""
    rng, count = np.random.default_rng(0), 4000
    losses = rng.integers(0, 11, count) / 10
    confidences = 1 - losses if informed else rng.random(count)
    made = PrefillController(QualityBudget(budget, check=0.5, rate=0.02), 0.5)
    reads = go_through(made, losses, confidences + 1e-3 * rng.random(count))[count // 2 :]
    assert np.mean(lost(reads, losses[count // 2 :])) == pytest.approx(budget, abs=0.02)
    assert np.mean([read is not WHOLE for read in reads]) > (0.25 if informed else 0.05)


def test_a_threshold_that_does_not_move_would_be_noticed():
    """The planted bug: checks teach nothing, and the losses stay what they are."""
    rng = np.random.default_rng(0)
    losses = rng.integers(0, 11, 1000) / 10
    made = PrefillController(QualityBudget(0.05, check=0.5, rate=1e-9), 0.5)
    assert np.mean(lost(go_through(made, losses, np.ones(1000)), losses)) > 0.4


@pytest.mark.parametrize(
    ("values", "part"),
    [({"loss": 1.5}, "1.5 is none"), ({"loss": -0.1}, "-0.1 is none"), ({"loss": float("nan")}, "nan is none"),
     ({"check": 0.0}, "0.0 is not"), ({"check": 2.0}, "2.0 is not"), ({"rate": 0.0}, "0.0 is not")],
)  # fmt: skip
def test_a_budget_without_sense_is_refused(values, part):
    with pytest.raises(CrossdraftError, match=part):
        QualityBudget(**values)
