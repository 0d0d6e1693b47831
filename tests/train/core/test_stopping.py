"""When a run stops, by hand."""

import math

import pytest

from crossdraft.errors import CrossdraftError
from crossdraft.train.core.stopping import Standing, watched


def test_the_best_is_kept_and_the_misses_are_counted_anew():
    standing = Standing()
    seen = []
    for step, value in [(2, 1.0), (4, 0.5), (6, 1.0), (8, 1.5), (10, math.nan)]:
        standing = standing.after(step, value)
        seen.append((standing.best, standing.best_step, standing.missed, standing.checked))
    assert seen == [(1.0, 2, 0, 2), (1.0, 2, 1, 4), (1.0, 2, 2, 6), (1.5, 8, 0, 8), (1.5, 8, 1, 10)]


@pytest.mark.parametrize(("missed", "patience", "over"), [(1, 2, False), (2, 2, True), (3, 2, True), (9, 0, False)])
def test_patience_ends(missed, patience, over):
    assert Standing(missed=missed).is_over(patience) is over


def test_a_minus_turns_a_figure_round():
    assert watched({"tau": 2.5}, "tau") == 2.5
    assert watched({"loss": 2.5}, "-loss") == -2.5


def test_a_figure_that_nobody_measures_is_told():
    with pytest.raises(CrossdraftError, match=r"no figure 'taw', which optim\.watch names; did you mean 'tau'"):
        watched({"tau": 1.0, "loss": 2.0}, "taw")
