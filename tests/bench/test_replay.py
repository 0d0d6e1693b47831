"""Recorded answers: read, replayed by hand, priced."""

import json

import pytest

from crossdraft.bench.replay import (
    RecordedDrafter,
    ReplayConfig,
    StageCosts,
    Trace,
    play,
    read_traces,
    replay,
    worth_it,
    write_traces,
)
from crossdraft.cli.main import main
from crossdraft.drafters.memory.drafter import MemoryDrafter
from crossdraft.engine.drafter import Draft
from crossdraft.engine.tree import DraftTree
from crossdraft.errors import CrossdraftError

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


def test_without_the_ride_along_the_prefill_gives_one_token():
    trace = of(ANSWER)
    played = play(trace, RecordedDrafter([trace]), ReplayConfig(nodes=4, ride_along=False), FREE)
    assert (played.tokens, played.passes) == (9, 2)
    assert played.nodes == [0, 4, 4]


def test_times_by_hand():
    trace = of(ANSWER)
    played = play(trace, RecordedDrafter([trace]), ReplayConfig(nodes=4), StageCosts(draft=2.0))
    assert played.nodes == [4, 4]
    costs = StageCosts(prefill=100.0, step=10.0, verify=1.2, per_node=0.1, draft=2.0)
    alone, ours = played.times(costs)
    assert alone == 100 + 9 * 10
    assert ours == pytest.approx((100 + (1.2 + 0.3 - 1) * 10) + (1.2 + 0.3) * 10 + 2 * 2.0)


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
    assert first.tau.value == 1.0
    assert found.passes == 10 + 1 + 1
    assert found.by_question == {"?": 30 / 12}
    assert found.simulated_speedup.value > first.simulated_speedup.value == 1.0


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
    status = main(
        [
            "replay",
            str(path),
            "--drafter",
            "union:trace,memory",
            "--prefill",
            "100",
            "--step",
            "10",
            "--json-out",
            str(out),
        ]
    )
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


@pytest.mark.parametrize(
    "arguments", [["--nodes", "0"], ["--drafter", "event"], ["--drafter", "memry"], ["--step", "0"], ["--verify", "-1"]]
)
def test_bad_settings_are_one_sentence(tmp_path, capsys, arguments):
    path = tmp_path / "a.jsonl"
    write_traces([of(ANSWER)], path)
    assert main(["replay", str(path), *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.strip().splitlines()) == 1
