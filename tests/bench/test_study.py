"""What blocks of runs say, worked by hand; `test_planted` has faults in methods that run."""

import json
from collections import Counter

import pytest
from PIL import Image

from crossdraft_lab import scenes
from crossdraft_lab.bench.study import (
    FigureColumn,
    Study,
    figure_table,
    name_column,
    pooled,
    rows_json,
    speed_columns,
    sure,
)
from crossdraft_lab.bench.variants import Variant
from crossdraft_lab.bench.workload import Workload
from crossdraft_lab.bench.workload import questions as questions_of
from tests.bench.experiments.planted import TOKENS, block, run

SPEED = speed_columns("× the target alone")


def row_of(found, name):
    (row,) = figure_table("", (name_column(), *SPEED), [(found, name)]).rows
    return row


class Noting:
    """A method that notes when it is asked."""

    cores = None

    def __init__(self, name, asked):
        self.name, self.asked = name, asked

    def answer(self, item):
        self.asked.append(self.name)
        return run(1.0)


class ByTokens:
    """What decodes answers."""

    def decode(self, tokens):
        return str(tokens)


def through_json(unit):
    """As it comes back from the file."""
    return type(unit)(unit.key, unit.seeds, json.loads(json.dumps(unit.found)))


def test_ratios_are_of_sums_over_all_blocks():
    first = block("pairs 0", {"target": [[run(4.0)], [run(2.0)]], "event": [[run(1.0)], [run(2.0)]]})
    second = block("pairs 2", {"target": [[run(6.0)]], "event": [[run(1.0)]]})
    found = pooled([through_json(first), through_json(second)])
    assert found.speedup("event").value == pytest.approx(12 / 4)  # a mean of ratios would be 3.67
    assert found.results.tau("event").value == pytest.approx(1.0)
    assert found.mean("event", "total_s").value == pytest.approx(4 / 3)


def test_the_baseline_is_the_faster_of_the_target_alone():
    methods = {"target": [[run(4.0)]], "target-all": [[run(3.0)]], "event": [[run(1.5)]]}
    found = pooled([block("pairs 0", methods)])
    assert found.alone == "target-all"
    assert found.speedup("event").value == pytest.approx(2.0)
    assert found.speedup("target").value == pytest.approx(0.75)


def test_stages_are_means_over_runs():
    one = [[run(4.0, prefill=1.0), run(4.0, prefill=3.0)], [run(4.0, prefill=5.0), run(4.0, prefill=5.0)]]
    found = pooled([block("pairs 0", {"target": one})])
    assert found.stage("target", "prefill").value == pytest.approx(3.5)
    assert found.stage("target", "prefill", "verify").value == pytest.approx(4.0)


def test_questions_about_one_clip_are_one_scene_to_every_interval():
    """Two clips, four questions each: within a clip nothing varies, and the interval reaches from clip to clip."""
    methods = {"target": [[run(4.0)]] * 8, "event": [[run(1.0)]] * 4 + [[run(2.0, rounds=2)]] * 4}
    found = pooled([block("pairs 0", methods, scenes=(7, 7, 7, 7, 8, 8, 8, 8))])
    for one in (found.speedup("event"), found.speedup("event", per_token=True)):
        assert (one.value, one.low, one.high, one.n) == (pytest.approx(8 / 3), 2.0, 4.0, 2)
    assert (found.tau("event").low, found.tau("event").high, found.tau("event").n) == (1.0, 2.0, 2)
    assert (found.mean("event", "total_s").value, found.mean("event", "total_s").n) == (1.5, 2)
    assert found.stage("event", "verify").n == 2
    assert "8 held-out pairs" in sure(found, 1)
    assert "Fewer than 10 scenes" in sure(found, 1)


def test_no_time_in_a_row_or_its_json_is_without_interval_and_n():
    found = pooled([block("pairs 0", {"target": [[run(4.0)], [run(2.0)]]})])
    assert row_of(found, "target") == (
        "target", "2/2", "1.00 [1.00, 1.00; n=2]", "1500.0 [1000.0, 2000.0; n=2]", "3000.0 [2000.0, 4000.0; n=2]",
        "1.00 [1.00, 1.00; n=2]",
    )  # fmt: skip
    figures = rows_json(SPEED, found, "target")
    assert figures["e2e_ms"] == {"value": 3000.0, "ci95": [2000.0, 4000.0], "n": 2}
    assert all({"value", "ci95", "n"} == figures[name].keys() for name in ("tau", "ttft_ms", "e2e_ms", "speedup"))


def test_a_leak_of_one_token_is_found():
    leaked = (*TOKENS[:-1], 9)
    methods = {"target": [[run(1.0), run(1.0)], [run(1.0), run(1.0)]],
               "event": [[run(1.0), run(1.0)], [run(1.0), run(1.0, leaked)]]}  # fmt: skip
    found = pooled([block("pairs 0", methods)])
    assert found.equal("event") == (3, 4)
    assert row_of(found, "event")[1] == "3/4"


@pytest.mark.parametrize(("questions", "size", "firsts"), [(1, 3, [0, 3, 6]), (4, 4, [0, 1])])
def test_blocks_part_the_pairs_and_never_a_clip(questions, size, firsts):
    plan = Study((Variant("target"),), Workload(8, questions=questions), block=size)
    parts = [plan.work_of(key) for key in plan.keys]
    assert [part.first for part in parts] == firsts
    assert sum(part.pairs for part in parts) == 8


def test_over_all_blocks_each_method_is_first_and_second_equally_often(monkeypatch):
    """Each block alone would begin with the same orders."""
    monkeypatch.setattr("crossdraft_lab.bench.workload._clip", lambda scene, work: (None, None))  # nobody looks at it
    names = ("target", "a", "b", "c")
    plan = Study(tuple(map(Variant, names)), Workload(8), block=2, repeats=2, warm_ups=0)
    asked: list[str] = []
    made = {name: Noting(name, asked) for name in names}
    for key in plan.keys:
        plan.answer_block(key, list(plan.asked(plan.work_of(key))), made, ByTokens(), [], lambda name: None)
    turns = [asked[first : first + 4] for first in range(0, len(asked), 4)]
    assert len(turns) == 16
    for place in range(4):
        assert Counter(turn[place] for turn in turns) == dict.fromkeys(names, 4)


@pytest.mark.parametrize(("questions", "size"), [(1, 3), (4, 8)])
def test_blocks_together_ask_what_the_whole_workload_asks(questions, size):
    """Kinds and wordings go on in turn from block to block: 20 pairs meet all kinds, and some in another wording."""
    work = Workload(20, questions=questions)
    plan = Study((Variant("target"),), work, block=size)

    def asked(part):
        return [(scene.seed, qa) for scene, every in questions_of(part) for qa in every]

    whole = asked(work)
    assert [one for key in plan.keys for one in asked(plan.work_of(key))] == whole
    assert {qa.kind for _, qa in whole} == set(scenes.KINDS)
    assert len({qa.question for _, qa in whole if qa.kind == scenes.KINDS[0]}) == 2


def test_facts_are_shares_over_scenes_and_against_another_row():
    unit = block("pairs 0", {"target": [[run(1.0)]] * 2, "lossy": [[run(1.0)]] * 2})
    first, second = unit.found["pairs"]
    first["facts"], second["facts"] = {"light": "red"}, {"light": "green", "sign": "none"}
    unit.found["answers"]["target"] = ["A green light.", "A green light, and no sign."]
    unit.found["answers"]["lossy"] = ["A red light.", "A red light."]
    found = pooled([unit])
    assert (found.right_facts("target"), found.right_facts("lossy")) == ([0, 2], [1, 0])
    assert (found.facts("target").value, found.facts("lossy").value) == (pytest.approx(2 / 3), pytest.approx(1 / 3))
    gained = found.facts("lossy", "target")
    assert (gained.value, gained.low, gained.high) == (pytest.approx(-1 / 3), -1, 1)


def test_a_column_is_in_the_table_under_its_head_and_in_the_json_under_its_key():
    found = pooled([block("pairs 0", {"target": [[run(4.0)]], "event": [[run(1.0)]]})])
    seconds = FigureColumn("s", "", lambda found, name: found.mean(name, "total_s").value)
    faster = FigureColumn("", "faster", lambda found, name: found.speedup(name))
    columns = (name_column("method", "name"), seconds, faster, FigureColumn("none", "none", lambda *_: None))
    study = Study((Variant("target"), Variant("event")), Workload(1), columns, title="t", note="n")
    shown = study.table(found)
    assert (shown.title, shown.heads, shown.note) == ("t", ("method", "faster", "none"), "n")
    assert shown.rows[1] == ("event", "4.00 [no interval; n=1]", "–")
    assert study.rows(found)[1] == {"name": "event", "s": 1.0, "none": None}


def test_warm_ups_are_of_another_split_and_nothing_is_learned_of_them():
    study = Study((Variant("target"),), Workload(2), warm_ups=1)
    (warm,) = study.warm_up_items
    assert warm.request.namespace is None
    assert warm.seed not in {scene.seed for scene, _ in questions_of(study.work)}
    assert study.runs == 1 * (1 + 2)


def test_prompts_that_warm_up_are_behind_those_that_are_asked(tmp_path):
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": text, "image": "a.png"}) + "\n" for text in "abc"))
    for pairs, expected in ((1, "bc"), (2, "ca"), (3, "ab")):
        study = Study((Variant("target"),), Workload(pairs, prompts=path), warm_ups=2)
        assert [item.request.prompt for item in study.warm_up_items] == [*expected]
