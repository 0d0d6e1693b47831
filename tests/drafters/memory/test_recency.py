"""How fast a stream forgets is learned from the stream."""

import json
import random
from collections import deque

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossdraft.drafters.memory import recency as module
from crossdraft.drafters.memory.recency import BEGINNING, COMPARED, DECAY, EXPONENTS, KEPT, UNLEARNED, WRONG, Recency


def drive(count, seed=0):
    """Answers of 20 tokens; each keeps most of the one before, as neighbouring scenes do."""
    rng = random.Random(seed)
    scene = [rng.randrange(1000) for _ in range(20)]
    for _ in range(count):
        scene = [rng.randrange(1000) if rng.random() < 0.15 else token for token in scene]
        yield scene


def learned(answers, question=1):
    recency = Recency()
    for answer in answers:
        recency.add(question, answer)
    return recency.exponent


def test_scores_by_hand():
    """The third answer is the first one again: ages 2 and 1, no token wrong and one wrong."""
    recency = Recency()
    for answer in ([5], [6], [5]):
        recency.add(1, answer)
    likely = np.array([2.0**-s + 0.01 for s in EXPONENTS]) / np.array([2.0**-s + 1 for s in EXPONENTS])
    assert recency._scores == pytest.approx(np.log(likely))
    assert recency.exponent == 0.0  # the older one was right
    recency.add(1, [5])  # ages 3, 2, 1: the newest and the oldest are right
    ages = np.array([3.0, 2.0, 1.0])
    more = [((ages**-s) @ np.exp(WRONG * np.array([0, 1, 0]))) / (ages**-s).sum() for s in EXPONENTS]
    assert recency._scores == pytest.approx(DECAY * np.log(likely) + np.log(more))


def converges(seed):
    """Whether it learns that neighbours resemble each other, and that shuffled answers do not."""
    answers = list(drive(150, seed))
    return learned(answers) >= 1.5 and learned(random.Random(seed).sample(answers, len(answers))) <= 0.25


@pytest.mark.parametrize("seed", range(8))
def test_a_stream_of_neighbours_forgets_fast_and_a_shuffled_one_does_not(seed):
    assert converges(seed)


def test_a_planted_bug_is_seen(monkeypatch):
    """The newest answer is kept where the oldest should be: every age is wrong."""

    class Backwards(deque):
        append = deque.appendleft

    monkeypatch.setattr(module, "deque", Backwards)
    assert not any(converges(seed) for seed in range(8))


def test_ages_are_counted_in_answers_to_the_same_question():
    """Ten answers to another one come between; the ages are 2 and 1 all the same."""
    recency = Recency()
    for question, answer in ((1, [5]), (1, [6]), *((2, [7 + at]) for at in range(10)), (1, [5])):
        before = recency._scores
        recency.add(question, answer)
    likely = np.array([2.0**-s + 0.01 for s in EXPONENTS]) / np.array([2.0**-s + 1 for s in EXPONENTS])
    assert recency._scores == pytest.approx(DECAY * before + np.log(likely))


def test_many_questions_about_every_clip_teach_too():
    """More of them than answers to one are kept."""
    streams = [list(drive(40, seed)) for seed in range(2 * KEPT)]
    recency = Recency()
    for at in range(40):
        for question, stream in enumerate(streams):
            recency.add(question, stream[at])
    assert recency.exponent >= 1.5


def test_what_is_kept_is_bounded():
    recency = Recency()
    for at in range(2 * COMPARED):
        for _ in range(2 * KEPT if at == COMPARED else 2):
            recency.add(at, [at])
    assert len(recency._beginnings) == COMPARED
    assert max(map(len, recency._beginnings.values())) == KEPT


def test_recorded_answers_of_a_drive(shared):
    """550 neighbouring clips, one question, Video-LLaVA-7B."""
    path = shared / "data" / "traces" / "one_question_dev.jsonl"
    if not path.is_file():
        pytest.skip("no recorded answers beside this checkout")
    answers = [json.loads(line)["target_tokens"] for line in path.read_text().splitlines()]
    assert learned(answers) >= 1.0
    assert learned(random.Random(0).sample(answers, len(answers))) <= 0.25


def test_only_answers_to_the_same_question_are_compared():
    alone, among = Recency(), Recency()
    for at, answer in enumerate(drive(60)):
        alone.add(1, answer)
        among.add(1, answer)
        among.add(100 + at, [at] * 5)
    assert alone.exponent == among.exponent


def test_a_stream_may_change():
    recency = Recency()
    for answer in drive(200):
        recency.add(1, answer)
    assert recency.exponent >= 1.5
    for answer in random.Random(1).sample(list(drive(400, seed=2)), 400):
        recency.add(1, answer)
    assert recency.exponent <= 0.5


def test_nothing_is_known_at_first():
    recency = Recency()
    assert recency.exponent == UNLEARNED
    recency.add(1, [1, 2])
    assert recency.exponent == UNLEARNED


@given(st.lists(st.tuples(st.integers(0, 2), st.lists(st.integers(0, 3), max_size=2 * BEGINNING)), max_size=100))
def test_whatever_comes_it_is_one_of_the_exponents(answers):
    recency = Recency()
    for question, tokens in answers:
        recency.add(question, tokens)
        assert recency.exponent in EXPONENTS
        assert np.isfinite(recency._scores).all()
