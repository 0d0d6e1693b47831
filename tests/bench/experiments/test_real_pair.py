"""The page of the real pair: accepted prefixes, times and bound of planted recordings, worked by hand."""

import json

import pytest

from crossdraft.errors import CrossdraftError
from crossdraft_lab.bench.experiments.real_pair import EVERY, question_row, real_pair
from crossdraft_lab.bench.experiments.report import has_experiments, write_real_pair
from crossdraft_lab.bench.replay import ReplayConfig, StageCosts, TraceReplay
from crossdraft_lab.bench.traces import Trace

STAGES = (0.0, 0.0, 20.0, 80.0, 40.0)  # load, preprocess, encode, prefill, decode: 100 ms, then 4 steps of 10


def line(question: str, draft: list[int]) -> str:
    found = {"scene": "1", "question": question, "target_tokens": [1, 2, 3, 4, 5], "draft_tokens": draft}
    return json.dumps(found | {"target_stage_ms": list(STAGES)})


def test_a_row_worked_by_hand():
    trace = Trace("1", "?", (1, 2, 3, 4, 5), (1, 2), STAGES)
    # Two nodes ride along and are kept: 3 tokens of the prefill's pass, then two plain passes.
    played = TraceReplay(trace, tokens=5, passes=3, hidden=2, nodes=[2, 0, 0], seconds=[0.0, 0.0, 0.0])
    row = question_row("?", "trace", [played], {1.0: StageCosts(verify=1.0), 2.0: StageCosts(verify=2.0)})
    assert row[:3] == ("?", "trace", "1")
    assert row[3].startswith("2.00 ")
    assert row[4].startswith("1.67 ")
    assert row[5].startswith(f"{140 / 120:.2f} ")
    assert row[6].startswith(f"{140 / 130:.2f} ")  # the ride-along's pass is one step wider
    assert row[7] == "1.40"  # 140 ms, of which the prefill is 100


def test_questions_have_rows_of_their_own_and_the_page_says_what_is_simulated(tmp_path):
    path = tmp_path / "recorded.jsonl"
    path.write_text("\n".join([line("What <b>?", [1, 2]), line("Where?", [9])]))
    page = real_pair([path])
    _, (table,) = page
    by_name = {(row[0], row[1]): row for row in table.rows}
    assert by_name["What <b>?", "trace"][3].startswith("2.00 ")
    assert by_name["Where?", "trace"][3].startswith("0.00 ")
    assert by_name[EVERY, "trace"][3] == "1.00 [no interval; n=1 clip]"  # two answers, one clip
    html, text = (one.read_text() for one in write_real_pair(page, tmp_path))
    for content in (html, text):
        assert "SIMULATED" in content
        assert "<b>" not in content.replace("**", "")
    assert not has_experiments(tmp_path)
    assert ReplayConfig().ride_along


def test_files_that_hold_nothing_are_refused(tmp_path):
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(CrossdraftError):
        real_pair([tmp_path / "empty.jsonl"])
