"""Recorded answers: read, replayed by hand, priced."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from crossdraft.cli.main import main
from crossdraft.drafters.memory.drafter import MemoryDrafter
from crossdraft.engine.drafter import Draft
from crossdraft.engine.tree import DraftTree
from crossdraft.errors import CrossdraftError
from crossdraft_lab.bench.replay import RecordedDrafter, ReplayConfig, StageCosts, play, replay, worth_it
from crossdraft_lab.bench.traces import Trace, read_traces, shuffled, write_traces

SHIPPED = Path(__file__).parents[2] / "examples" / "reference_answers.jsonl"

ANSWER = tuple(range(10, 20))
FREE = StageCosts(draft=0.0)


def of(drafted, target=ANSWER, **more):
    return Trace("1", "What is ahead?", target, tuple(drafted), **more)


def test_rounds_by_hand():
    """The drafter's text agrees for four tokens; then its tail is never right again."""
    trace = of([10, 11, 12, 13, 99, 99, 99, 99, 99, 99])
    played = play(trace, RecordedDrafter([trace]), ReplayConfig(nodes=3), FREE)
    # 10 11 12 + 13 | 99.. + 14 | 15 | 16 | 17 | 18 | 19
    assert played.passes == 7
    assert played.tokens == 10
    assert played.nodes == [3, 3, 3, 3, 3, 2, 1]  # what is left of its text
    assert played.hidden == 3


def test_without_the_ride_along_the_prefill_gives_one_token():
    trace = of(ANSWER)
    played = play(trace, RecordedDrafter([trace]), ReplayConfig(nodes=4, ride_along=False), FREE)
    assert (played.tokens, played.passes) == (9, 2)
    assert played.hidden == 0
    assert played.nodes == [0, 4, 4]


def test_times_by_hand():
    trace = of(ANSWER)
    played = play(trace, RecordedDrafter([trace]), ReplayConfig(nodes=4), StageCosts(draft=2.0))
    assert played.nodes == [4, 4]
    costs = StageCosts(prefill=100.0, step=10.0, verify=1.2, per_node=0.1, draft=2.0)
    found = played.times(costs)
    assert found.alone == found.alone_shared == 100 + 9 * 10
    assert found.drafted == pytest.approx((100 + (1.2 + 0.3 - 1) * 10) + (1.2 + 0.3) * 10 + 2 * 2.0)


def test_a_later_question_about_a_clip_pays_for_its_text_alone():
    """V(5) = 1.2 + 3 · 0.1 = 1.5 steps for five tokens of a question; with 4 nodes V(9) = 1.9."""
    trace = of(ANSWER)
    played = play(trace, RecordedDrafter([trace]), ReplayConfig(nodes=4), FREE, clip_known=True)
    costs = StageCosts(prefill=100.0, step=10.0, verify=1.2, per_node=0.1, draft=2.0, question_tokens=5)
    found = played.times(costs)
    assert found.alone == 100 + 9 * 10
    assert found.alone_shared == pytest.approx(15 + 9 * 10)
    assert found.drafted == pytest.approx(19 + 10 * (1.2 + 0.3) + 2 * 2.0)


def test_a_question_of_one_token_rides_as_any_root_does():
    trace = of([99])
    played = play(trace, RecordedDrafter([trace]), ReplayConfig(nodes=4), FREE, clip_known=True)
    costs = StageCosts(prefill=100.0, step=10.0, verify=1.2, draft=0.0, question_tokens=1)
    assert played.times(costs).alone_shared == 10 + 9 * 10
    assert played.times(costs).drafted == pytest.approx(12 + 9 * 10)


def test_the_prefill_is_paid_once_a_clip():
    """Two clips, questions in turn: 100 ms twice, a pass of 10.5 ms twice. `trace` drafts what is never right."""
    traces = [Trace(scene, question, ANSWER, (99, 98)) for question in "ab" for scene in "12"]
    costs = StageCosts(prefill=100.0, step=10.0, draft=0.0)
    found = replay(traces, RecordedDrafter(traces), ReplayConfig(ride_along=False, shared_clip=True), costs)
    assert found["simulated_alone_ms"] == 190.0
    assert found["simulated_alone_shared_ms"] == pytest.approx((2 * 100 + 2 * 10.5) / 4 + 90, abs=0.005)
    # What is left of the wrong draft, a node, is offered after the prefill's token, and widens that pass.
    assert found["simulated_ms"] == found["simulated_alone_shared_ms"] + 0.5
    assert found["simulated_speedup"]["value"] == pytest.approx(190 / found["simulated_ms"], abs=1e-4)
    assert found["simulated_speedup_shared"]["value"] < 1
    unshared = replay(traces, RecordedDrafter(traces), ReplayConfig(ride_along=False), costs)
    assert (unshared["simulated_speedup_shared"], unshared["simulated_alone_shared_ms"]) == (None, None)
    assert unshared["simulated_speedup_shared"] is None
    assert (unshared["passes"], unshared["simulated_ms"]) == (found["passes"], 190.5)


def test_a_traces_own_times_hold_for_its_later_questions_too():
    traces = [of(ANSWER, target_stage_ms=(1.0, 2.0, 30.0, 70.0, 45.0))] * 2
    found = replay(traces, MemoryDrafter(), ReplayConfig(shared_clip=True), StageCosts(1.0, 1.0, draft=0.0))
    assert found["simulated_alone_shared_ms"] == pytest.approx((100 + 5 * 1.05) / 2 + 45, abs=0.01)


def test_a_traces_own_times_come_first():
    trace = of(ANSWER, target_stage_ms=(1.0, 2.0, 30.0, 70.0, 45.0))
    assert trace.measured == (100.0, 5.0)
    assert StageCosts(prefill=1.0, step=1.0).of(trace) == (100.0, 5.0)
    assert StageCosts(prefill=1.0, step=1.0).of(of(ANSWER)) == (1.0, 1.0)
    assert StageCosts().of(of(ANSWER)) is None


def test_an_answer_is_never_known_before_it_is_over():
    traces = [Trace(str(scene), "?", ANSWER) for scene in range(3)]
    found = replay(traces, MemoryDrafter(), ReplayConfig(nodes=16), StageCosts(100, 10, draft=0.0))
    first = replay(traces[:1], MemoryDrafter(), ReplayConfig(nodes=16), StageCosts(100, 10, draft=0.0))
    assert first["tau"] == 1.0
    assert found["passes"] == 10 + 1 + 1
    (of_it,) = found["by_question"].values()
    assert (of_it["answers"], of_it["tau"]["value"], of_it["first_token_accepted"]) == (3, 30 / 12, 2)
    assert found["by_question"]["?"]["hidden_accepted"]["n"] == 3
    assert found["hidden_accepted"]["value"] == pytest.approx((0 + 9 + 9) / 3)
    assert replay(traces, MemoryDrafter(), ReplayConfig(ride_along=False), StageCosts())["hidden_accepted"] is None
    assert found["simulated_speedup"]["value"] > first["simulated_speedup"]["value"] == 1.0


def test_answers_about_one_clip_are_drawn_together():
    """Clip 1's five drafts are all right, clip 2's all wrong: over clips a draw is one of three cases, never 6 to 4."""
    drafts = {"1": ANSWER, "2": (99,)}
    traces = [Trace(scene, f"{number}?", ANSWER, drafts[scene]) for number in range(5) for scene in drafts]
    found = replay(traces, RecordedDrafter(traces), ReplayConfig(shared_clip=True), StageCosts(100, 10, draft=0.0))
    assert (found["traces"], found["n"], found["of"]) == (10, 2, "clips")
    assert found["ci95"] == [1.0, 10.0]  # each clip drawn twice in a quarter of the draws
    assert found["tau"] == pytest.approx(100 / 55, abs=1e-6)
    assert found["hidden_accepted"] == {"value": 4.5, "ci95": [0.0, 9.0], "n": 2}
    for speedup in (found["simulated_speedup"], found["simulated_speedup_shared"]):
        assert speedup["n"] == 2
        assert speedup["ci95"][0] < speedup["value"] < speedup["ci95"][1]
    one = found["by_question"]["0?"]
    assert (one["answers"], one["tau"]["n"], one["hidden_accepted"]["n"]) == (2, 2, 2)


def test_a_clip_is_the_same_one_in_every_working_directory(tmp_path, monkeypatch):
    """`memory` numbers a clip by its resolved path, and how ties between its matches fall depends on that number."""
    resolved = []

    class Noting(RecordedDrafter):
        def begin(self, requests):
            resolved.extend(Path(request.video).resolve() for request in requests)
            return super().begin(requests)

    trace = of(ANSWER)
    for folder in (tmp_path, tmp_path.parent):
        monkeypatch.chdir(folder)
        replay([trace], Noting([trace]), ReplayConfig(), FREE)
    assert resolved[0] == resolved[1]


def test_another_order_is_the_same_answers():
    traces = [Trace(str(scene), "?", (scene,)) for scene in range(20)]
    assert shuffled(traces, 1) != traces
    assert sorted(shuffled(traces, 1), key=lambda trace: int(trace.scene)) == traces
    assert shuffled(traces, 1) == shuffled(traces, 1) != shuffled(traces, 2)


def test_faint_nodes_do_not_repay_their_width():
    draft = Draft(DraftTree.from_paths([[1, 2], [3]]), (0.9, 0.05, 0.04))
    kept = worth_it(draft, StageCosts(verify=1.0, per_node=0.1))
    assert kept.tokens == (1,)
    assert worth_it(draft, StageCosts(verify=1.0, per_node=0.0)).tokens == (1, 2, 3)


def test_traces_come_back_as_they_were_written(tmp_path):
    traces = [of([1, 2], target_stage_ms=(0.0, 1.0, 2.0, 3.0, 4.5)), of([])]
    write_traces(traces, tmp_path / "a.jsonl")
    assert read_traces(tmp_path / "a.jsonl") == traces


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2 is not JSON"),
        ("[]", "line 2 is no JSON object"),
        ('{"scene": 1, "question": "?"}', "line 2 lacks 'target_tokens'"),
        ('{"scene": null, "question": "?", "target_tokens": [1]}', "line 2: 'scene' must be text"),
        ('{"scene": 1, "question": 2, "target_tokens": [1]}', "line 2: 'scene' must be text"),
        ('{"scene": 1, "question": "?", "target_tokens": []}', "line 2 has an empty"),
        ('{"scene": 1, "question": "?", "target_tokens": [1, -2]}', "line 2: 'target_tokens'"),
        ('{"scene": 1, "question": "?", "target_tokens": [1, true]}', "line 2: 'target_tokens'"),
        ('{"scene": 1, "question": "?", "target_tokens": [1], "target_stage_ms": [1]}', "must hold 5 times"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, message):
    path = tmp_path / "a.jsonl"
    write_traces([of([])], path)
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(CrossdraftError, match=message):
        read_traces(path)


def test_the_command_says_what_is_simulated(tmp_path, capsys):
    path, out = tmp_path / "a.jsonl", tmp_path / "out.json"
    write_traces([Trace(str(scene), "?", ANSWER, ANSWER) for scene in range(3)], path)
    settings = "--drafter union:trace,memory --prefill 100 --step 10 --draft-ms 1 --shared-clip"
    status = main(["replay", str(path), *settings.split(), "--json-out", str(out)])
    shown = capsys.readouterr().out
    assert status == 0
    assert all(
        "simulated" in line
        for line in shown.splitlines()
        if ("ms" in line and "measured" not in line) or "speedup" in line
    )
    found = json.loads(out.read_text())
    assert found["tau"] == 10.0
    assert found["simulated_speedup"]["value"] > 1.5
    assert found["simulated_speedup_shared"]["value"] > 1.5
    assert found["settings"]["shared_clip"]
    assert "n=3 clips" in shown


@pytest.mark.parametrize(
    "arguments",
    [
        ["--nodes", "0"],
        ["--drafter", "event"],
        ["--drafter", "memry"],
        ["--step", "0"],
        ["--verify", "-1"],
        ["--verify", "0.9"],
        ["--question-tokens", "0"],
    ],
)
def test_bad_settings_are_one_sentence(tmp_path, capsys, arguments):
    path = tmp_path / "a.jsonl"
    write_traces([of(ANSWER)], path)
    assert main(["replay", str(path), *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.strip().splitlines()) == 1


def test_the_shipped_recording_is_replayed(capsys):
    """Its drafter began as the target did in 28 of 32 answers."""
    assert main(["replay", str(SHIPPED), "--drafter", "trace", "--draft-ms", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["traces"], found["first_token_accepted"]) == (32, 28)
    assert found["tau"] > 2
    assert found["simulated_speedup"]["value"] > 1


def test_the_shipped_recording_is_made_by_its_command(tmp_path):
    """By the one that docs/real_pair.md says, but for the number of pairs."""
    page = (SHIPPED.parents[1] / "docs" / "real_pair.md").read_text()
    (line,) = re.findall(r"^crossdraft (bench .*--record) examples/reference_answers.jsonl ", page, re.MULTILINE)
    again = tmp_path / "again.jsonl"
    options = ["--pairs=2", "--warm-ups=0", "--in-memory", "--no-memory", "--dtype=float32", "--device=cpu"]
    assert main([*line.split(), str(again), *options]) == 0
    for made, shipped in zip(read_traces(again), read_traces(SHIPPED)[:2], strict=True):
        assert replace(made, target_stage_ms=None) == replace(shipped, target_stage_ms=None)
        assert made.measured is not None
        assert made.draft_tokens != made.target_tokens


@pytest.mark.parametrize("wrong", [["--methods=event,target-all"], ["--temperature=0.5"]])
def test_a_recording_of_nothing_is_refused_before_anything_is_loaded(wrong, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("crossdraft_lab.bench.suite.run_suite", None)
    assert main(["bench", "--record", str(tmp_path / "a.jsonl"), *wrong]) == 2
    assert capsys.readouterr().err.startswith("crossdraft: There is nothing to record: ")
