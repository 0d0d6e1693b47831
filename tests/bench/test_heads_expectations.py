"""τ of heads and the papers' order, by hand."""

import pytest

from crossdraft.drafters.evaluate import AcceptanceStats
from crossdraft.heads.registry import HEADS
from crossdraft_lab.bench.heads import EXPECTATIONS, DraftSetting, check_expectations, figures_of


def test_figures_by_hand():
    # 6/2 and 3/3 tokens a pass: 9/5 in all, not the mean of 3 and 1.
    found = figures_of([AcceptanceStats(2, 6, (2, 2), (2, 2)), AcceptanceStats(3, 3, (2,), (0,))], ["layout", "count"])
    assert found.tau.value == pytest.approx(9 / 5)
    assert {kind: tau.value for kind, tau in found.by_kind.items()} == pytest.approx({"layout": 3, "count": 1})
    assert found.per_position == pytest.approx((0.5, 1.0))
    assert found.depth == pytest.approx((2 + 2 + 2) / 5)
    assert (found.tau.low, found.tau.high) == (1, 3)  # either pair may be drawn twice
    assert found.to_json()["tau"] == 1.8


def test_answers_without_a_pass_do_not_become_nothing():
    found = figures_of(
        [AcceptanceStats(0, 0), AcceptanceStats(0, 0), AcceptanceStats(1, 4)], ["count", "count", "layout"]
    )
    assert {kind: tau.value for kind, tau in found.by_kind.items()} == {"count": 1, "layout": 4}
    assert found.tau.value == 4
    assert found.tau.low == 1


def test_the_order_of_the_papers():
    found = {
        "eagle3": [AcceptanceStats(2, 8), AcceptanceStats(2, 8)],
        "eagle2": [AcceptanceStats(2, 8), AcceptanceStats(2, 8)],
        "eagle1": [AcceptanceStats(2, 9), AcceptanceStats(2, 9)],
        "medusa": [AcceptanceStats(3, 9), AcceptanceStats(3, 9)],
        "hydra": [AcceptanceStats(3, 9), AcceptanceStats(3, 9)],
    }
    expectations = {finding.expectation.text: finding for finding in check_expectations(found, {})}
    assert {text: finding.holds for text, finding in expectations.items()} == {
        "EAGLE-3 ≥ EAGLE-2": True,  # as good is good enough
        "EAGLE-2 ≥ EAGLE-1": False,
        "EAGLE-1 > Medusa": True,
        "Hydra > Medusa": False,  # as good is not better
    }
    assert expectations["EAGLE-2 ≥ EAGLE-1"].ratio.value == pytest.approx(8 / 9)
    assert expectations["EAGLE-1 > Medusa"].ratio.value == pytest.approx(4.5 / 3)
    assert expectations["Hydra > Medusa"].sentence({"hydra": "hydra", "medusa": "Medusa"}) == (
        "Hydra > Medusa: does not hold, τ of hydra / Medusa = 1.00 [1.00, 1.00; n=2]"
    )


def test_the_interval_draws_the_same_pairs_for_both():
    """Both are three times as good on the first pair: drawn separately, the ratio would look uncertain."""
    found = {
        "hydra": [AcceptanceStats(1, 6), AcceptanceStats(1, 2)],
        "medusa": [AcceptanceStats(1, 3), AcceptanceStats(1, 1)],
    }
    (finding,) = check_expectations(found, {})
    assert (finding.ratio.low, finding.ratio.value, finding.ratio.high) == (2, 2, 2)


def test_the_best_of_two_stands_for_both_and_specs_for_their_methods():
    found = {
        "hivis": [AcceptanceStats(1, 2)],
        "vispec:dir=x": [AcceptanceStats(1, 5)],
        "eaglevlm:dir=y": [AcceptanceStats(1, 4)],
    }
    methods = {"hivis": "hivis", "vispec:dir=x": "vispec", "eaglevlm:dir=y": "eaglevlm"}
    (finding,) = check_expectations(found, methods)
    assert (finding.better, finding.worse, finding.holds) == ("vispec:dir=x", "eaglevlm:dir=y", True)
    assert finding.to_json()["ratio"] == {"value": 1.25, "ci95": [1.25, 1.25], "n": 1}


def test_expectations_are_about_methods_that_exist():
    assert {name for each in EXPECTATIONS for name in (*each.better, each.worse)} <= HEADS.keys()


def test_a_settings_name():
    assert DraftSetting("tree", 60, 0.0).name == "tree of 60, T=0"
    assert DraftSetting("chain", 5, 0.7).name == "chain of 5, T=0.7"
