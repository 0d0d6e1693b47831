"""`crossdraft watch` and `crossdraft bench watch` on the tiny pair."""

import json
import os

import pytest

from crossdraft.api import Engine
from crossdraft.cli.main import main
from crossdraft.events import read_events, write_events
from tests.align.some_gate import predicted_spec
from tests.forked import interrupt, start_command
from tests.support import encodes_clips


@pytest.fixture
def watch(pair, clip, capsys):
    """Run `watch`; returns its status, standard output and standard error."""

    def run(*arguments: str, video=clip.video, events=clip.events) -> tuple[int, str, str]:
        files = ["--video", str(video), *(["--events", str(events)] if events else [])]
        models = ["--target", str(pair.target), "--drafter", str(pair.event), "--placement", "inline"]
        options = ["--device", "cpu", "--max-new-tokens", "6"]
        status = main(["watch", *files, *models, *options, *arguments])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


SHORT = ("--every", "300ms", "--window", "0.4s")


@encodes_clips
def test_each_window_is_a_line_of_json_and_the_last_line_the_summary(watch):
    status, shown, errors = watch("--ask", "What is ahead?", "--ask", "Why?", "--json", *SHORT)
    assert (status, errors) == (0, "")
    *windows, last = map(json.loads, shown.splitlines())
    summary = last["summary"]
    assert summary["windows_due"] == 3  # at 0.4, 0.7 and 1 s
    assert summary["windows_answered"] == len(windows) == 3 - summary["windows_dropped"]
    assert [len(one["answers"]) for one in windows] == [2] * len(windows)
    assert [one["question"] for one in windows[0]["answers"]] == ["What is ahead?", "Why?"]
    assert windows[0]["end_s"] == pytest.approx(10 / 24, abs=1e-3)
    assert summary["last_frame_to_first_token_ms"]["p50"] <= summary["last_frame_to_whole_answer_ms"]["p50"]
    answers = [answer for one in windows for answer in one["answers"]]
    rounds = sum(len(answer["tokens"]) / answer["tau"] for answer in answers)
    assert summary["tau"] == pytest.approx(sum(len(answer["tokens"]) for answer in answers) / rounds, abs=2e-3)
    assert summary["seconds"] > 0.9  # in real time


@encodes_clips
def test_the_summary_says_how_a_budget_is_kept(watch, pair, tmp_path):
    """By JSON, with a budget alone; each window is a request, and what warms the engine up is none."""
    spec = f"{predicted_spec(pair, tmp_path)},budget=0.5,check=1.0,confidence=0.4"
    status, shown, errors = watch("--ask", "What is ahead?", "--json", "--lossy-prefill", spec, *SHORT)
    assert (status, errors) == (0, "")
    *windows, last = map(json.loads, shown.splitlines())
    found = last["summary"]["speculative_prefill"]
    assert (found["budget"], found["checked"], found["compared"]) == (0.5, len(windows), len(windows))


def test_people_get_a_line_an_answer_and_bounds_end_it(watch):
    status, shown, _ = watch("--ask", "What is ahead?", "--windows", "1", "--speed", "10", *SHORT)
    assert status == 0
    assert shown.startswith("    0.42 s ")
    assert "1 window in" in shown
    assert "\x1b" not in shown
    assert "! " not in shown


def test_a_changed_answer_is_a_marked_line(watch, monkeypatch):
    from crossdraft.streams.watch import QuestionAnswer

    monkeypatch.setattr(QuestionAnswer, "text", property(lambda self: str(id(self))))
    status, shown, _ = watch("--ask", "What is ahead?", *SHORT)
    assert status == 0
    alerts = [line for line in shown.splitlines() if line.startswith("!")]
    assert alerts
    assert all("What is ahead? changed, it was: " in line for line in alerts)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--ask", "What?", "--every", "0"), "--every is '0'; it must be a time above 0"),
        (("--ask", "What?", "--window", "soon"), "--window is 'soon'"),
        (("--ask", "What?", "--window", "2s"), "a window is 2 s long; give a longer clip"),
        (("--ask", "What?", "--seconds", "0.5"), "the first window is due after 1 s"),
        (("--ask", "What?", "--speed", "0"), "--speed is 0"),
        (("--ask", "What?", "--windows", "0"), "--windows is 0"),
        (("--ask", " ",), "The prompt is empty"),
        ((), "There is no question; add one with --ask"),
        (("What is ahead?",), "'What is ahead?' is no option; a standing question follows --ask"),
        (("--ask", "What?", "Why?"), "'Why?' is no option; a standing question follows --ask"),
    ],
)  # fmt: skip
def test_bad_values_cost_one_sentence_and_no_loading(watch, monkeypatch, arguments, sentence):
    monkeypatch.setattr(Engine, "load", classmethod(lambda *_: pytest.fail("it was loaded")))
    status, shown, errors = watch(*arguments)
    assert (status, shown) == (2, "")
    assert len(errors.splitlines()) == 1
    assert sentence in errors


def test_bad_files_cost_one_sentence(watch, clip, tmp_path):
    status, _, errors = watch("--ask", "What?", video=tmp_path / "no.mp4")
    assert (status, errors.count("\n")) == (2, 1)
    assert "no video file at" in errors
    short = tmp_path / "short.h5"
    write_events(short, read_events(clip.events, end_us=300_000))
    status, _, errors = watch("--ask", "What?", *SHORT, events=short)
    assert (status, errors.count("\n")) == (2, 1)
    assert "ends at 0.2" in errors
    assert "begins at 0.600 s" in errors
    status, _, _ = watch("--ask", "What?", *SHORT, "--seconds", "0.6", "--speed", "9", events=short)
    assert status == 0


def test_ctrl_c_ends_it_with_the_summary(patient, clip):
    models = ["--target", str(patient), "--drafter", "none", "--device", "cpu", "--max-new-tokens", "18000"]
    command = ["watch", "--video", str(clip.video), "--ask", "What is ahead?", *SHORT, *models]
    ours, theirs = os.pipe()
    process, shown = start_command(command, [0, theirs, theirs]), b""
    while b"    0.42 s " not in shown and (part := os.read(ours, 1)):
        shown += part  # an answer has begun
    interrupt(process)
    with open(ours, "rb") as stream:
        rest = stream.read()
    process.join()
    assert process.exitcode == 0, rest
    assert b"0 answered" in rest
    assert b"unfinished" in rest
