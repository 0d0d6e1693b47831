"""The race of the policy against fixed budgets: its figures by hand, and its loads."""

import pytest

from crossdraft.errors import CrossdraftError
from crossdraft_lab.bench.assembly import Models
from crossdraft_lab.bench.measure import Results, Run
from crossdraft_lab.bench.policy import load_json, policy_studies, requests, sentences, workload
from crossdraft_lab.bench.study import Answers


def run(seconds, tokens=3, notes=()):
    return Run((1,) * tokens, seconds, 0.5, {"draft": seconds / 4}, 2, notes=notes)


def test_the_best_fixed_budget_is_the_fastest_and_the_policy_is_not_among_them():
    runs = {
        "target": [[run(4.0)], [run(6.0)]],
        "1, hidden 64": [[run(2.0)], [run(3.0)]],
        "8, hidden 64": [[run(3.0)], [run(3.0, notes=("lost.",))]],
        "policy": [[run(1.0)], [run(3.0)]],
    }
    found = load_json("easy", Answers(({"scene": 1}, {"scene": 2}), Results(runs)))
    assert found["best_fixed"] == "1, hidden 64"
    assert (found["policy_over_best_fixed"]["value"], found["policy_over_target"]["value"]) == (1.25, 2.5)
    assert [one["speedup"] for one in found["methods"]] == pytest.approx([1, 2, 10 / 6, 2.5], abs=1e-6)
    assert found["methods"][1]["drafting_share"]["value"] == 0.25
    assert found["notes"] == ["lost."]
    assert "1.25 [" in sentences([found])[0]


def test_answers_of_other_lengths_are_compared_per_token():
    runs = {"target": [[run(4.0, tokens=4)]], "1, hidden 64": [[run(3.0, 2)]], "policy": [[run(2.0, 4)]]}
    found = load_json("hard", Answers(({"scene": 1},), Results(runs)))
    assert found["policy_over_target"]["value"] == 2
    assert found["policy_over_best_fixed"]["value"] == 3  # 1.5 s a token against 0.5


def test_half_of_a_mixed_load_is_dark():
    blank = object()
    drawn = [item.request for item in requests("mixed", blank, workload("mixed", 2))]
    assert [request.events is blank for request in drawn] == [False, True]
    assert (workload("hard", 2).temperature, workload("easy", 2).temperature) == (2.0, 0.0)


def test_bad_sweeps_are_refused_before_anything_is_loaded():
    for options, part in (
        ({"loads": ("esy",)}, "did you mean 'easy'"),
        ({"loads": ()}, "No load is named"),
        ({"repeats": 0}, "repeats is 0"),
        ({"pairs": 0}, "pairs is 0"),
    ):
        with pytest.raises(CrossdraftError, match=part):
            policy_studies(Models(), **options)
    assert policy_studies(Models(), 10, 2, ("easy",), budgets=((1, 64),))["easy"].runs == 3 * (4 + 20)
