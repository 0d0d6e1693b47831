"""The race of the policy against fixed budgets: its figures by hand, its loads, and one real run on a tiny pair."""

import json

import pytest

from crossdraft.cli.main import main
from crossdraft.errors import CrossdraftError
from crossdraft_lab.bench.assembly import Models
from crossdraft_lab.bench.measure import Results, Run
from crossdraft_lab.bench.policy import LOADS, Sweep, load_result, requests, sentences, workload


def run(seconds, tokens=3, notes=()):
    return Run((1,) * tokens, seconds, 0.5, {"draft": seconds / 4}, 2, notes=notes)


def test_the_best_fixed_budget_is_the_fastest_and_the_policy_is_not_among_them():
    results = Results(
        {
            "target": [[run(4.0)], [run(6.0)]],
            "1, hidden 64": [[run(2.0)], [run(3.0)]],
            "8, hidden 64": [[run(3.0)], [run(3.0)]],
            "policy": [[run(1.0)], [run(3.0)]],
        }
    )
    found = load_result("easy", results)
    assert found.best == "1, hidden 64"
    assert found.against_best.value == pytest.approx(5 / 4)
    assert found.against_target.value == pytest.approx(10 / 4)
    assert [line.speedup.value for line in found.lines] == pytest.approx([1, 2, 10 / 6, 2.5])
    assert found.lines[-1].tau.value == pytest.approx(1.5)
    assert found.to_json()["methods"][1]["drafting_share"]["value"] == 0.25
    assert "1.25 [" in sentences([found])[0]


def test_answers_of_other_lengths_are_compared_per_token():
    results = Results({"target": [[run(4.0, tokens=4)]], "1, hidden 64": [[run(3.0, 2)]], "policy": [[run(2.0, 4)]]})
    found = load_result("hard", results)
    assert found.against_target.value == pytest.approx(2.0)
    assert found.against_best.value == pytest.approx(3.0)  # 1.5 s a token against 0.5


def test_the_engines_notes_are_reported():
    results = Results({"target": [[run(4.0)]], "1, hidden 64": [[run(3.0, notes=("lost.",))]], "policy": [[run(2.0)]]})
    assert load_result("easy", results).notes == ("lost.",)


def test_half_of_a_mixed_load_is_dark():
    blank = object()
    drawn = [item.request for item in requests("mixed", workload("mixed", 2), blank)]
    assert [request.events is blank for request in drawn] == [False, True]
    assert sum(LOADS["mixed"].dark) == 2 == len(LOADS["mixed"].dark) / 2
    assert workload("hard", 2).temperature == 2.0
    assert workload("easy", 2).temperature == 0.0


def test_bad_sweeps_are_refused_before_anything_is_loaded():
    for options, part in (
        ({"loads": ("esy",)}, "did you mean 'easy'"),
        ({"loads": ()}, "No load is named"),
        ({"repeats": 0}, "repeats is 0"),
        ({"pairs": 0}, "pairs is 0"),
    ):
        with pytest.raises(CrossdraftError, match=part):
            Sweep(Models(), **options)
    sweep = Sweep(Models(), pairs=10, repeats=2, loads=("easy",), budgets=((1, 64),))
    assert sweep.runs == 3 * (4 + 20)


@pytest.mark.slow
def test_the_command(pair, tmp_path, capsys):
    out = tmp_path / "policy.json"
    models = [f"--target={pair.target}", f"--event={pair.event}", "--device=cpu", "--dtype=float32"]
    assert main(["bench", "policy", "--pairs=1", "--loads=mixed", f"--json-out={out}", *models]) == 0
    found = json.loads(out.read_text())
    assert {"environment", "pairs", "repeats", "loads"} == found.keys()
    (load,) = found["loads"]
    assert load["best_fixed"] in {line["name"] for line in load["methods"]} - {"target", "policy"}
    assert set(load["policy_over_best_fixed"]) == {"value", "ci95", "n"}
    assert "\nmixed: the policy is " in capsys.readouterr().out
