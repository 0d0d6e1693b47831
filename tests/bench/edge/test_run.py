"""What the edge's bench says of its answers: they are the engine's own, or they are not."""

import json
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import pytest

from crossdraft.cli.main import main
from crossdraft.edge.client import EdgeAnswer
from crossdraft.edge.frames import OFF
from crossdraft.engine.request import Request
from crossdraft.errors import CrossdraftError
from crossdraft_lab.bench.edge import run as edge_run
from crossdraft_lab.bench.edge.proxy import Network
from crossdraft_lab.bench.edge.run import (
    CLOUD,
    CLOUD_TOO,
    CLOUD_WAYS,
    EDGE,
    POLICY,
    RECORDING,
    WAYS,
    EdgePlan,
    EdgeWay,
    network_json,
    results_table,
)

OWN = ((1, 2, 3), (4, 5))


def answer(tokens, seconds=0.2, policy="rounds") -> EdgeAnswer:
    metrics = {"speculative_decoding": {"num_spec_steps": 2}, "hidden_accepted_tokens": 1}
    report = {"metrics": metrics, "edge": {"policy": policy, "mbit_s": None}}
    sent = Counter(draft=100)
    return EdgeAnswer(
        tuple(tokens), first_s=0.1, total_s=seconds, cuts=1, sent=sent, frames=Counter(draft=2), report=report
    )


def figures(changed: str | None = None, **given) -> dict:
    """All ways answer as the engine does, but for the first question in one of them; or these do."""
    answers = {
        way: [answer((9,) if way == changed and not number else tokens, 0.4 if way == "off" else 0.2)
              for number, tokens in enumerate(OWN)]
        for way in WAYS
    }  # fmt: skip
    cut = [(answer((9,) if changed == "cut" else OWN[1]), 1)]
    return network_json(Network(0.02, 0.002, 1e8), OWN, {**answers, **given}, cut)


def column(found: dict, head: str) -> list[str]:
    """Of the table."""
    shown = results_table([found])
    return [row[shown.heads.index(head)] for row in shown.rows]


def test_all_are_the_engines_own():
    assert (figures()["identical"], figures()["answers"]) == (7, 7)


@pytest.mark.parametrize("changed", [*WAYS, "cut"])
def test_an_answer_that_is_not_the_engines_own_is_seen_in_every_way(changed):
    """Also where nothing was drafted: two wrong answers that agree are still wrong."""
    found = figures(changed)
    assert (found["identical"], found["answers"]) == (6, 7)


def test_all_ways_agreeing_on_a_wrong_answer_is_no_identity():
    wrong = {way: [answer((9,)), answer(OWN[1])] for way in WAYS}
    assert network_json(Network(), OWN, wrong, [])["identical"] == len(WAYS)


def test_the_report_is_json_with_intervals():
    found = json.loads(json.dumps(figures()))
    policy = found["ways"][POLICY]
    assert policy["speedup"]["ratio"] == pytest.approx(2.0)
    assert policy["e2e"]["ms"] == pytest.approx(200.0)
    assert policy["policies"] == {"rounds": 2}
    assert len(results_table([figures()]).rows) == len(WAYS)


def test_a_time_that_there_is_not_is_no_zero():
    """The mean is of the answers that have a token; where none has, there is no mean."""
    answers = {way: [replace(answer(tokens), first_s=None) for tokens in OWN] for way in WAYS}
    answers[OFF][1] = replace(answers[OFF][1], first_s=0.3)
    found = figures(**answers)
    ways = found["ways"]
    assert (ways[OFF]["first"]["ms"], ways[OFF]["first"]["n"]) == (pytest.approx(300), 1)
    assert ways[POLICY]["first"] is None
    assert column(found, "first ms") == ["300 [no interval; n=1]", "none", "none"]


def test_the_table_shows_the_bytes_that_are_sent_up_drafts_or_the_recording():
    for one in (recorded := [answer(tokens) for tokens in OWN]):
        one.sent = Counter({RECORDING: 570_000})
    found = figures(**{RECORDING: recorded})
    assert column(found, "bytes up") == ["100", "100", "100", "570,000"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"drafter": "nonsense"}, "no drafter 'nonsense'"),
        ({"drafter": "eagle2"}, "not at the edge"),
        ({"jitter": -1.0}, "jitter is -1"),
        ({"jitter": float("nan")}, "jitter is nan"),
        ({"max_new_tokens": 0}, "max_new_tokens is 0"),
        ({"cloud": "nonsense"}, "no drafter 'nonsense'"),
        ({"cloud": "eagle2"}, "does not join 'edge' with one of its own"),
        ({"cloud": "edge"}, "does not join 'edge' with one of its own"),
    ],
)
def test_a_plan_that_cannot_be_measured_is_refused_before_anything_runs(tmp_path, given, words):
    with pytest.raises(CrossdraftError, match=words):
        EdgePlan(tmp_path, (0.0,), (100.0,), **given)


def test_with_a_drafter_of_the_clouds_own_there_are_two_ways_more(tmp_path):
    alone = EdgePlan(tmp_path, (0.0, 0.1), (100.0,), pairs=3, cuts=1)
    assert (alone.runs, alone.cut_ways) == (2 * (3 * 3 + 1), [POLICY])
    plan = EdgePlan(tmp_path, (0.0, 0.1), (100.0,), pairs=3, cuts=1, cloud="phased:edge,eagle2")
    assert (plan.runs, plan.cut_ways) == (2 * (3 * 5 + 2), [POLICY, CLOUD_TOO])
    assert [name for name, way in plan.ways.items() if way.server == CLOUD] == list(CLOUD_WAYS)
    assert plan.servers == {EDGE: "edge", CLOUD: "phased:edge,eagle2"}


def test_the_recording_is_sent_to_a_server_that_drafts_as_the_edge_would(tmp_path):
    plan = EdgePlan(tmp_path, (0.0, 0.1), (100.0,), pairs=3, cuts=1, drafter="event:words=2", recording=True)
    assert (plan.runs, plan.cut_ways) == (2 * (3 * 4 + 1), [POLICY])
    assert plan.servers == {EDGE: "edge", RECORDING: "union:edge,(event:words=2)"}


def test_sending_the_recording_is_in_the_time_and_in_the_bytes(tmp_path, monkeypatch):
    asked, deleted, now = [], [], [0.0]

    class Client:
        def ask(self, chat, request, drafter, *, mode):
            asked.append((chat["messages"][0]["content"], mode))
            return answer(OWN[0], 0.2)

    @contextmanager
    def uploaded(address, key, path):
        now[0] += 0.05
        yield "file-1"
        now[0] += 0.3  # deleting is of nobody's answer
        deleted.append(path)

    (tmp_path / "a.h5").write_bytes(bytes(570))
    monkeypatch.setattr(edge_run, "uploaded", uploaded)
    monkeypatch.setattr(edge_run, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    link = object.__new__(edge_run._EdgeLink)
    link.client, link.drafter, link.model = Client(), None, "reference"
    link.proxy = SimpleNamespace(address="ws://x")
    item = SimpleNamespace(request=Request("?", str(tmp_path / "a.mp4"), str(tmp_path / "a.h5"), max_new_tokens=4))
    found = link.ask(item, EdgeWay(OFF, RECORDING))
    assert (found.total_s, found.first_s) == (pytest.approx(0.25), pytest.approx(0.15))
    assert found.sent[RECORDING] == 570
    assert [part["type"] for part in asked[0][0]] == ["video_url", "event_url", "text"]
    assert asked[0][0][1]["event_url"]["url"] == "file-1"
    assert deleted == [tmp_path / "a.h5"]
    assert link.ask(item, EdgeWay(None)).total_s == 0.2
    assert [part["type"] for part in asked[1][0]] == ["video_url", "text"]


def test_prompts_in_words_are_asked_without_a_clip(tmp_path, capsys):
    (tmp_path / "asked.jsonl").write_text('{"prompt": "Say a."}\n' * 3)
    plan = EdgePlan(
        tmp_path, (0.1,), (100.0,), pairs=1, drafter="ngram", target="some/text", prompts=tmp_path / "asked.jsonl"
    )
    asked = []

    class Client:
        def ask(self, chat, request, drafter, *, mode):
            asked.append(chat)
            return answer(OWN[0], 0.2)

    link = object.__new__(edge_run._EdgeLink)
    link.client, link.drafter, link.model = Client(), None, plan.model
    for item in edge_run.items(plan.work):
        link.ask(item, WAYS[OFF])
    said = [{"role": "user", "content": [{"type": "text", "text": "Say a."}]}]
    assert [(chat["model"], chat["messages"]) for chat in asked] == [("text", said)] * 3
    with pytest.raises(CrossdraftError, match="leave --recording out"):
        replace(plan, recording=True)
    (tmp_path / "asked.jsonl").write_text('{"prompt": "Say a.", "regex": "a+"}\n' * 3)
    assert main(["bench", "edge", f"--prompts={tmp_path / 'asked.jsonl'}", "--target=nowhere"]) == 2
    assert "leave out prompts with a schema" in capsys.readouterr().err  # before a model is looked for
