"""How fast a stream forgets is learned from the stream."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossdraft.drafters.memory.recency import BEGINNING, DECAY, EXPONENTS, UNLEARNED, WRONG, Recency


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


def test_a_stream_of_neighbours_forgets_fast_and_a_shuffled_one_does_not():
    answers = list(drive(200))
    shuffled = random.Random(1).sample(answers, len(answers))
    assert learned(answers) >= 1.5
    assert learned(shuffled) <= 0.25


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
