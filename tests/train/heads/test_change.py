"""What has changed is counted word for word, and the card says it."""

import pytest

from crossdraft.drafters.trees import RankCounts
from crossdraft.train.heads.measure import Accepted
from crossdraft.train.heads.medusa2 import Side, card, change
from crossdraft.train.heads.recipe import Measure


def side(answers, tau):
    return Side(answers, {"chain": Accepted(tau, (0.5,)), "medusa, T=0": Accepted(tau + 1, ())}, RankCounts())


@pytest.fixture
def figures():
    before = side([(1, 2), (3,), (4, 5)], 2.0)
    after = side([(1, 2), (3, 9), (4, 5)], 2.25)
    return change(before, after) | {"wall_s": 90.0}


def test_an_answer_is_kept_if_every_word_is(figures):
    assert (figures["kept"], figures["answers"]) == (2, 3)
    assert figures["before"]["chain"]["tau"] == 2.0
    assert figures["engine"]["medusa, T=0"]["tau"] == 3.25


def test_the_card_says_what_has_changed(figures):
    text = card("medusa", "old-" * 9, "new-" * 9, figures, Measure(nodes=7, chain=3))
    assert "**The target's words have changed.**" in text
    assert "Of 3 answers to questions about validation scenes, **2 are still the old target's word for word**" in text
    assert "| chain | 2.00 | 2.25 |" in text
    assert "trees of 7 nodes, chains of 3" in text
    assert "fingerprint new-new-new-…" in text


def test_a_card_of_what_was_not_measured_claims_nothing():
    text = card("medusa", "old", "new", {"wall_s": 1.0}, Measure(pairs=0))
    assert "was not measured" in text
    assert "τ" not in text
