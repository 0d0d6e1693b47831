"""What acceptance rules keep, and what they do to answers."""

import pytest

from crossdraft.errors import CrossdraftError
from crossdraft_lab.bench.assembly import Models
from crossdraft_lab.bench.rules import rules_study
from crossdraft_lab.bench.workload import Workload, items


def test_every_pair_says_what_a_right_answer_says(monkeypatch):
    monkeypatch.setattr("crossdraft_lab.bench.workload._clip", lambda scene, work: (None, None))
    work = Workload(pairs=9, max_new_tokens=4)
    assert all(pair.facts for pair in items(work))


def test_the_shipped_classifier_is_for_the_reference_target_alone():
    ours, theirs = (
        {one.options["rule"] for one in rules_study(Models(name), Workload(2, temperature=1.0)).variants[1:]}
        for name in ("reference", "a/folder")
    )
    assert ours - theirs == {"judge"}


@pytest.mark.parametrize(
    ("rules", "temperature", "part"),
    [
        (["greedy"], 1.0, "does not fit temperature"),
        (["ears", "ears"], 1.0, "named twice"),
        (["judy"], 1.0, "did you mean 'judi'"),
        (["rejection"], 0.0, "does not fit temperature 0"),
    ],
)
def test_what_cannot_be_compared_is_refused_first(rules, temperature, part):
    with pytest.raises(CrossdraftError, match=part):
        rules_study(Models("nowhere"), Workload(2, temperature=temperature), rules)


def test_a_lossy_rule_keeps_more_and_is_named(pair):
    models = Models(str(pair.target), str(pair.event), str(pair.blind), device="cpu", dtype="float32")
    plan = rules_study(models, Workload(pairs=3, max_new_tokens=24, temperature=1.0), ["rejection", "ears:tolerance=1"])
    ticks = []
    alone, exact, lossy = plan.rows(plan.run(models.load_target(), tick=ticks.append))
    assert len(ticks) == plan.runs == 9
    rows = alone, exact, lossy
    assert [row["rule"] for row in rows] == ["target", "rejection", "ears:tolerance=1.0"]
    assert [row["lossless"] for row in rows] == [True, True, False]
    assert alone["tau"]["value"] == 1 < exact["tau"]["value"] < lossy["tau"]["value"]
    assert alone["facts_gained"]["value"] == 0
