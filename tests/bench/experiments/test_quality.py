"""What the experiment `quality` says of planted answers: which rows are worse, what is counted, and on which cores."""

import pytest

from crossdraft.errors import CrossdraftError
from crossdraft_lab.bench.experiments.quality import SHORT, QualityConfig, studies, summarise
from crossdraft_lab.bench.study import ALL
from crossdraft_lab.scenes import KINDS, ask, make_scene, split_seeds, stated
from tests.bench.experiments.planted import block, run

CONFIG = QualityConfig(
    drafters=("event",),
    compressions=("frames:count=1", "frames:count=2"),
    rules=("typical:eps=0.3",),
    pairs=12,
    block=12,
)
RIGHT, WRONG = "There are three people.", "There are two people."


def planted(answers):
    """A block of each kind of answers: 12 scenes, and what each method says about each; right unless it says not."""
    units = []
    for plan in studies(CONFIG):
        runs = {variant.name: [[run(2.0)]] * 12 for variant in plan.variants}
        unit = block(f"{plan.prefix} 0", runs)
        for pair in unit.found["pairs"]:
            pair.update(kind="count", facts={"people.count": "3"}, reference=RIGHT)
        unit.found["answers"].update(
            {variant.name: answers.get(variant.name, [RIGHT] * 12) for variant in plan.variants}
        )
        units.append(unit)
    return units


def test_fewer_facts_need_the_corrected_test_and_not_the_interval_alone():
    few, all_wrong = [WRONG] * 5 + [RIGHT] * 7, [WRONG] * 12
    found = summarise(CONFIG, planted({"frames:count=1": all_wrong, "frames:count=2": few}))
    row = found.figures["greedy"]["frames:count=2"]
    assert row["facts_gained"]["ci95"][1] < 0, "its interval lies below 0"
    assert row["p_wilcoxon"] == pytest.approx(2 / 2**5), "five differences of one sign"
    assert row["p_holm"] == pytest.approx(2 * 2 / 2**5), "the second of three tests"
    assert found.figures["greedy"]["frames:count=1"]["p_holm"] == pytest.approx(3 * 2 / 2**12)
    assert "Of 3 lossy rows 1 get significantly fewer facts right" in found.found
    assert found.negative == ("Fewer facts right than the target's own answers: frames:count=1.",)
    assert found.figures["greedy"]["event"]["p_holm"] is None, "nothing is tested of lossless rows"
    assert "scenes cannot show it" not in found.sure


def test_too_few_scenes_are_said():
    units = planted({})
    for unit in units:
        for number, pair in enumerate(unit.found["pairs"]):
            pair["scene"] = number % 4
    assert "4 scenes cannot show it of 3 rows; 7 can." in summarise(CONFIG, units).sure


def test_the_target_is_not_counted_as_equal_to_itself():
    assert summarise(CONFIG, planted({})).found.startswith("All 2 lossless rows"), "target-all and event"


def test_compressed_targets_have_the_cores_of_what_they_are_compared_with():
    methods = {one.name: one.drafts for plan in studies(QualityConfig()) for one in plan.variants if one.compress}
    assert len(methods) == 10
    assert set(methods.values()) == {ALL}


def test_vqa_accuracy_is_of_the_short_answers():
    found = summarise(CONFIG, planted({"frames:count=1": [WRONG] * 3 + ["Three people, or two people."] + [RIGHT] * 8}))
    exact, *_ = found.figures["greedy"]["frames:count=1"]["short_answers"]
    assert (exact["name"], exact["value"], exact["n"]) == ("exact match", pytest.approx(8 / 12, abs=1e-6), 12)
    table = found.tables[0]
    assert dict(zip(table.heads, table.rows[-2], strict=True))["VQA accuracy"].startswith("0.67 [")
    units = planted({})
    for unit in units:
        for pair in unit.found["pairs"]:
            pair["kind"] = "describe"  # no short answer is right for it
    assert summarise(CONFIG, units).tables[0].rows[0][6] == "–"


def test_right_answers_state_what_was_asked():
    assert SHORT.keys() <= set(KINDS)
    scenes = [make_scene(seed) for seed in split_seeds("test")[:20]]
    for kind, slot in SHORT.items():
        asked = [ask(scene, kind, 0, held_out=True) for scene in scenes]
        known = [one for one in asked if slot in one.facts]
        assert known, kind
        assert all(stated(slot, one.answer) == one.facts[slot] for one in known)
    with pytest.raises(CrossdraftError, match="no slot 'wheels'"):
        stated("wheels", "four")
