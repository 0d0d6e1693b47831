"""Targets that read fewer visual tokens, alone and drafted for."""

import pytest

from crossdraft.compressions import compressed
from crossdraft.errors import CrossdraftError
from crossdraft_lab.align.checked import Read
from crossdraft_lab.bench.assembly import Models
from crossdraft_lab.bench.compression import CheckedMethod, compression_study
from crossdraft_lab.bench.measure import measure
from crossdraft_lab.bench.workload import Workload, items
from tests.align.some_gate import predicted_spec


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"compressions": ["fastv", "fastv"]}, "named twice"),
        ({"compressions": ["fastw"]}, "did you mean 'fastv'"),
        ({"compressions": ["pool:factor=0"]}, "a whole number of 2 or more"),
        ({"drafter": "eaglevml"}, "did you mean 'eaglevlm'"),
        ({"nodes": 0}, "number of nodes"),
        ({"budgets": [0.1]}, "A budget is for a speculative prefill"),
        ({"compressions": ["predicted:dir=x,confidence=0.5"], "budgets": [0.1]}, "that names no confidence"),
        ({"compressions": ["predicted:dir=x,budget=0.5"]}, "names a budget; leave it out, and say --budget"),
        ({"compressions": ["predicted:dir=x"], "budgets": [2.0]}, "2.0 is none"),
        ({"compressions": ["predicted:dir=x"], "budgets": [0.1, 0.10]}, "A budget is named twice in 0.1, 0.1"),
    ],
)
def test_what_cannot_be_compared_is_refused_first(options, part):
    with pytest.raises(CrossdraftError, match=part):
        compression_study(Models("nowhere"), Workload(2), **options)


def test_drafting_is_lossless_to_each_target(pair):
    models = Models(str(pair.target), str(pair.event), str(pair.blind), device="cpu", dtype="float32")
    plan = compression_study(
        models, Workload(pairs=2, max_new_tokens=16), ["fastv:layer=1,keep=0.5", "pool"], "event", nodes=6
    )
    ticks = []
    found = plan.rows(plan.run(models.load_target(), tick=ticks.append))
    assert len(ticks) == plan.runs == 18
    assert [(row["target"], row["drafter"]) for row in found] == [
        (name, drafter) for name in ("target", "fastv:layer=1,keep=0.5", "pool") for drafter in (None, "event")
    ]
    assert [row["lossless"] for row in found] == [True, True, False, False, False, False]
    assert [row["own_answers"] for row in found] == [None, {"equal": 2, "total": 2}] * 3
    assert all(row["tau"]["value"] == 1 for row in found if row["drafter"] is None)
    prompts = [row["prompt_tokens"] for row in found]
    assert prompts[0] == prompts[2] > prompts[4]
    assert found[0]["facts_gained"]["value"] == found[0]["ttft_saved"]["value"] == 0
    assert (found[0]["rouge_l"]["value"], found[0]["agreed"]) == (1, 2)
    assert {row["predicted"] for row in found} == {None}


@pytest.fixture
def spec(pair, tmp_path):
    """Of a random adapter, whose gate says 0.5."""
    return predicted_spec(pair, tmp_path)


def test_a_speculative_prefill_is_measured_with_its_gate_and_with_checks(pair, spec):
    models = Models(str(pair.target), str(pair.event), str(pair.blind), device="cpu", dtype="float32")
    plan = compression_study(
        models,
        Workload(pairs=3, max_new_tokens=12),
        [spec, f"{spec},confidence=0.6"],
        None,
        budgets=(0.0, 1.0),
        check=1.0,
    )
    target, ticks = models.load_target(), []
    found = {row["target"]: row for row in plan.rows(plan.run(target, tick=ticks.append))}
    assert len(ticks) == plan.runs == 5 * 4
    always, gated, strict, lax = (
        found[name] for name in (spec, f"{spec},confidence=0.6", f"{spec} within 0", f"{spec} within 1")
    )
    assert (always["predicted"]["value"], gated["predicted"]["value"]) == (1, 0)
    assert gated["agreed"] == strict["agreed"] == 3  # read whole
    assert always["prompt_tokens"] < gated["prompt_tokens"] == found["target"]["prompt_tokens"]
    assert lax["agreed"] == 3  # each of its requests is checked
    assert lax["predicted"]["value"] == strict["predicted"]["value"] == 0
    assert always["rouge_l"]["value"] < 1


def test_the_shipped_adapter_needs_no_folder_and_takes_a_budget():
    """`predicted` has no settings that a budget could be added to."""
    plan = compression_study(Models("reference"), Workload(1, max_new_tokens=2), ["predicted"], None, budgets=(0.05,))
    _, always, checked = plan.rows(plan.run(plan.models.load_target()))
    assert (always["target"], always["predicted"]["value"]) == ("predicted", 1)
    assert (checked["target"], checked["predicted"]["n"]) == ("predicted within 0.05", 1)


def test_a_warm_up_teaches_nothing_and_each_check_is_asked_once(pair, spec):
    """The planted bug: the warm-up is an item like any other; the threshold then moves before the first one."""
    models = Models(str(pair.target), str(pair.event), str(pair.blind), device="cpu", dtype="float32")
    plan = compression_study(models, Workload(pairs=2, max_new_tokens=8), [spec], None, check=1.0)
    asked = list(items(plan.work))
    for warm_up, compared in ((plan.warm_up_items[0], 2), (asked[0], 3)):
        method = CheckedMethod(compressed(models.load_target(), f"{spec},budget=1.0,check=1.0"))
        try:
            measure({"checked": method}, asked, 1, [warm_up])
        finally:
            method.close()
        assert method.controller.status.compared == method.controller.status.reads[Read.CHECKED] == compared
