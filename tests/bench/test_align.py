"""The alignment bench: controls and figures by hand, and a run on a tiny pair."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from crossdraft.cli.main import main
from crossdraft.drafters.event.load import load_drafter
from crossdraft.errors import CrossdraftError
from crossdraft.heads.files import save_head
from crossdraft.load import target_fingerprint
from crossdraft_lab import scenes
from crossdraft_lab.bench.align import AlignBench, list_tests, run_align, scene_questions, taught_questions
from crossdraft_lab.bench.align_features import figures_of
from crossdraft_lab.bench.align_rows import (
    CONTROLS,
    HELD_OUT,
    IDENTITY,
    TRAINED,
    UNTRAINED,
    KeptRows,
    accepted,
    best_text,
    ladder,
    lines,
    row_of,
    templates,
)
from crossdraft_lab.bench.assembly import Models
from crossdraft_lab.bench.specs import spec_of
from crossdraft_lab.bench.statistics import Interval
from crossdraft_lab.bench.workload import Workload, items
from crossdraft_lab.train.capture.sources import PromptedClip
from tests.align.small import some_adapter


def test_the_best_text_is_the_one_of_which_most_is_accepted():
    answers = [(1, 2, 3), (1, 2, 4), (1, 2, 4, 5), (6, 7, 8, 9, 9, 9)]
    best = best_text(answers)
    assert best == (1, 2, 4, 5)  # 2 + 3 + 4 + 0 of 9, more than any other
    totals = {text: sum(accepted(text, answer) for answer in answers) for text in answers}
    assert max(totals.values()) == totals[best] == 9
    assert best_text([]) == ()
    assert templates([("a", (1, 2)), ("a", (1, 3)), ("b", (4,)), ("a", (1, 3))]) == {"a": (1, 3), "b": (4,)}


def test_figures_along_answers_by_hand():
    """Three features of one answer, two of another; the LM head reads each feature's largest part."""
    own = [torch.eye(3), torch.eye(3)[:2]]
    predicted = [torch.tensor([[1.0, 0, 0], [0, 1, 0.6], [1, 0, 0]]), torch.tensor([[0.6, 0.8, 0.0], [0, 1, 0]])]
    found = figures_of(list(zip(predicted, own, strict=True)), torch.eye(3), [(0, 1, 2), (0, 1)], [0, 1])
    cosines = [1, 1 / 1.36**0.5, 0, 0.6, 1]  # 1/√1.36 = 0.857
    assert found["cosine"]["value"] == pytest.approx(sum(cosines) / 5, abs=1e-6)
    assert [found[f"acceptance@{one}"]["value"] for one in ("0.80", "0.90")] == pytest.approx([3 / 5, 2 / 5])
    assert (found["consecutive@0.90"]["value"], found["consecutive@0.90"]["n"]) == ((1 + 0) / 2, 2)
    assert found["same_position"]["value"] == pytest.approx(3 / 5)  # 0, 1, not 2; not 0, 1
    # After 0 comes 1, after 1 comes 2; what stands there: 0, 1 | 1
    assert found["shifted"]["value"] == pytest.approx(1 / 3, abs=1e-6)


def test_training_wordings_can_be_asked_of_test_clips():
    held, seen = (list(items(Workload(4, questions=2, trained_wordings=flag))) for flag in (False, True))
    assert [item.seed for item in held] == [item.seed for item in seen]
    assert [item.kind for item in held] == [item.kind for item in seen]
    assert all(a.request.prompt != b.request.prompt for a, b in zip(held, seen, strict=True))


@pytest.mark.filterwarnings("error::RuntimeWarning")  # a control that drafts nothing has no mean
def test_from_the_command_line(pair, tmp_path, capsys):
    event = load_drafter(str(pair.event), "cpu", "float64", packed=False).model
    adapter = some_adapter("l5", pair.target, pair.event, event)
    save_head(tmp_path, adapter, "l5", target_fingerprint(str(pair.target)), torch.float32)
    spec, out = f"aligned:dir={tmp_path},model={pair.event}", tmp_path / "found.json"
    where = f"--target {pair.target} --event {pair.event} --blind {pair.blind} --device cpu --dtype float32"
    sizes = "--clips 2 --questions 2 --learned 4 --nodes 4 --max-new-tokens 12"
    line = ["bench", "align", *where.split(), *sizes.split(), "--drafter", spec, "--drafter", "event"]
    assert main([*line, "--json-out", str(out)]) == 0
    text = capsys.readouterr().out
    assert "Every answer was the target's own." in text
    found = json.loads(out.read_text())["results"]
    assert set(found) == {spec, "event", "constant", "template", "memory", "blind", IDENTITY, UNTRAINED}
    assert (
        found["event"][HELD_OUT]["accepted_prefix"]["value"] > found["constant"][HELD_OUT]["accepted_prefix"]["value"]
    )
    assert found[IDENTITY][HELD_OUT]["accepted_prefix"] is None
    own = found[IDENTITY][TRAINED]["features"]
    assert (own["cosine"]["value"], own["same_position"]["value"]) == (1.0, 1.0)
    assert own["shifted"]["value"] < 1
    assert found[spec][HELD_OUT]["equal"] == 4
    assert found[spec][HELD_OUT]["features"]["cosine"]["value"] < 1
    assert found["event"][HELD_OUT]["clips"] == [seed for seed in scenes.split_seeds("test")[:2] for _ in range(2)]
    assert found["event"][HELD_OUT]["accepted_prefix"]["n"] == found[spec][TRAINED]["features"]["cosine"]["n"] == 2
    (step,) = json.loads(out.read_text())["ladder"][HELD_OUT]
    more = [b - a for a, b in zip(*(found[name][HELD_OUT]["prefixes"] for name in (spec, "event")), strict=True)]
    assert (step["drafter"], step["than"], step["n"]) == ("event", spec, 2)
    assert step["more"] == pytest.approx(sum(more) / 4, abs=1e-6)


# -- what learned from the answers to one set of questions does not answer the other -----------------------------------


def small_plan(pair, *drafters: str, one_by_one: bool = False) -> AlignBench:
    """Two questions about a clip, both sets in the same words: whoever remembers an answer has all of it."""
    models = Models(str(pair.target), str(pair.event), str(pair.blind), "cpu", "float32")
    asked = list(items(Workload(2, questions=2, max_new_tokens=12)))
    questions = taught_questions({HELD_OUT: asked, TRAINED: asked}, [("?", (1, 2))], Path(), {})
    return AlignBench(models, questions, drafters, 4, one_by_one=one_by_one)


@pytest.mark.parametrize("one_by_one", [False, True])
def test_a_drafter_that_learns_is_made_anew_for_each_set_of_questions(pair, one_by_one):
    """The same clips and the same questions twice: what differs between the sets was remembered."""

    def learn(models, target, nodes, tick):
        return [("?", (1, 2))], lambda: models.build(spec_of("memory"), target)

    names = "memory:capacity=9999", "union:event,memory"
    plan = small_plan(pair, *names, one_by_one=one_by_one)
    results = run_align(replace(plan, questions=replace(plan.questions, learn=learn)))
    for name in names:
        assert results[name][HELD_OUT]["prefixes"] == results[name][TRAINED]["prefixes"], name
    assert UNTRAINED not in results  # none of the two is an event model alone


def test_a_memory_in_a_folder_is_refused(pair, tmp_path):
    with pytest.raises(CrossdraftError, match="is kept in a folder, and would know the answers to test questions"):
        small_plan(pair, f"union:event,(memory:folder={tmp_path})").check()


@pytest.mark.parametrize("name", ["memory", "blind"])
def test_a_drafter_that_is_a_control_is_refused(pair, name):
    """Its row would be the control's."""
    with pytest.raises(CrossdraftError, match=f"'{name}' is the name of a control, which is always measured"):
        small_plan(pair, "event", name).check()


# -- the control without an adapter ------------------------------------------------------------------------------------


@pytest.fixture
def adapters(pair, tmp_path) -> dict[str, str]:
    """Specs of adapters that translate tokens, and of one that translates features."""
    event = load_drafter(str(pair.event), "cpu", "float64", packed=False).model
    for network in ("token", "token_projection", "logit_alignment", "l2"):
        adapter = some_adapter(network, pair.target, pair.event, event)
        (tmp_path / network).mkdir()
        save_head(tmp_path / network, adapter, network, target_fingerprint(str(pair.target)), torch.float32)
    return {path.name: f"aligned:dir={path},model={pair.event}" for path in tmp_path.iterdir()}


def test_no_adapter_stands_for_the_first_that_translates_features(pair, adapters):
    *of_tokens, of_features = (adapters[name] for name in ("token", "token_projection", "logit_alignment", "l2"))
    plan = small_plan(pair, *of_tokens, of_features)
    assert plan.feature_drafter == of_features
    assert small_plan(pair, *of_tokens, "event").feature_drafter == "event"
    alone = small_plan(pair, *of_tokens)
    assert alone.feature_drafter is None
    assert plan.ticks - alone.ticks == 2 * plan.questions.count  # its own row, and the control's


def test_a_control_that_is_lacking_is_named():
    row = {HELD_OUT: row_of((1, 2), (1, 2))}
    results = dict.fromkeys(("a", *CONTROLS), row)
    assert any("The control 'no adapter' is lacking" in line for line in lines(["a"], results))
    assert not any("is lacking" in line for line in lines(["a"], {**results, UNTRAINED: row}))


# -- intervals and differences, by hand --------------------------------------------------------------------------------


def test_intervals_are_drawn_over_clips():
    """Four questions about each of two clips, all of whose answers are alike: two things are known, not eight."""
    prefix = (4,) * 4 + (0,) * 4
    mean = row_of(prefix, (7,) * 4 + (8,) * 4)["accepted_prefix"]
    assert mean == {"value": 2.0, "ci95": [0.0, 4.0], "n": 2}
    assert row_of(prefix, range(8))["accepted_prefix"]["ci95"][0] > 0
    assert row_of((), ())["accepted_prefix"] is None


def test_the_ladder_compares_neighbours_by_clip():
    clips = tuple(clip for clip in range(8) for _ in range(2))
    low, more, most = ((tuple(base + step for base in range(16))) for step in (0, 1, 3))
    results = {name: {HELD_OUT: row_of(prefix, clips)} for name, prefix in zip("abc", (low, more, most), strict=True)}
    assert ladder("abc", results, None) == [
        ("b", "a", Interval(1.0, 1.0, 1.0, 8)),
        ("c", "b", Interval(2.0, 2.0, 2.0, 8)),
    ]
    results |= dict.fromkeys(CONTROLS, results["a"])
    assert "  c accepts 2.00 [2.00, 2.00; n=8 clips] tokens more than b." in lines("abc", results)


# -- rows that are kept ------------------------------------------------------------------------------------------------


def test_rows_and_answers_are_kept_for_the_same_measurement_alone(tmp_path):
    path = tmp_path / "rows.json"
    figure = Interval(0.5, 0.25, 0.75, 2)
    row = row_of((3, 4), (1, 1), figure, 2, {"cosine": figure.to_json()})
    kept = KeptRows(path, {"nodes": 4})
    kept.add_answers(HELD_OUT, [(1, 2), (3,)])
    assert kept.add("a", HELD_OUT, row) is row
    again = KeptRows(path, {"nodes": 4})
    assert again.answers(HELD_OUT) == [(1, 2), (3,)]
    assert again.row("a", HELD_OUT) == row
    assert (again.answers(TRAINED), again.row("a", TRAINED), again.row("b", HELD_OUT)) == (None, None, None)
    other = KeptRows(path, {"nodes": 5})
    assert (other.answers(HELD_OUT), other.row("a", HELD_OUT)) == (None, None)
    path.write_text('{"config": {"nodes": 4}')
    with pytest.raises(CrossdraftError, match=r"rows\.json, which holds rows measured so far, is damaged"):
        KeptRows(path, {"nodes": 4})
    again.remove()
    assert not path.exists()


# -- questions of a list -----------------------------------------------------------------------------------------------


def test_a_question_is_held_out_if_no_captured_one_has_its_words():
    clips = [
        PromptedClip("line 1", "a.mp4", ("What is  ahead ?", "Who walks?"), "a.h5"),
        PromptedClip("line 2", "b.mp4", ("WHO WALKS",), "b.h5"),
        PromptedClip("line 3", "a.mp4", ("Is it dark?",), "a.h5"),
    ]
    asked = [request for clip in clips for request in clip.requests(8)]
    found = list_tests(asked, ["what is ahead", "Is it dark?"])
    assert [(item.seed, item.request.question) for item in found[HELD_OUT]] == [(0, "Who walks?"), (1, "WHO WALKS")]
    assert [(item.seed, item.kind) for item in found[TRAINED]] == [(0, "what is ahead"), (0, "is it dark")]
    assert len({item.kind for item in found[HELD_OUT]}) == 1  # of which the control knows one answer
    assert list(list_tests(asked[:2], ["what is ahead", "who walks"])) == [TRAINED]


@pytest.mark.parametrize("drafters", [(), ("event", "event"), ("evnt",)])
def test_what_cannot_be_compared_is_refused(drafters):
    with pytest.raises(CrossdraftError, match=r"each once|evnt"):
        AlignBench(Models(), scene_questions(Workload(2), 4), drafters).check()
    with pytest.raises(CrossdraftError, match="1 or more"):
        AlignBench(Models(), scene_questions(Workload(2), 0), ("event",)).check()
