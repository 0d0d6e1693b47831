"""A bench that is cut off and goes on, prompts with what they show, and other programs as contestants."""

import json
import os
import signal
import subprocess
import time
from dataclasses import replace

import pytest

from crossdraft.cli.main import main
from crossdraft.engine.target import Target
from crossdraft.errors import CrossdraftError
from crossdraft.load import text_folder
from crossdraft_lab import scenes
from crossdraft_lab.bench.assembly import Models, options_of
from crossdraft_lab.bench.resources import PROC
from crossdraft_lab.bench.serving.process import LEASHED
from crossdraft_lab.bench.suite import Suite, run_suite
from crossdraft_lab.bench.summary import to_json
from crossdraft_lab.bench.workload import Workload, items, read_prompts
from crossdraft_lab.cli.bench_options import PeerOptions

LINES = [
    {"prompt": "What is ahead?", "kind": "scene"},
    {"prompt": "Is it dark?", "kind": "scene"},
    {"messages": [{"role": "user", "content": "Say it again."}], "kind": "repeat"},
]


def written(folder, *lines):
    path = folder / "prompts.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture
def suite(tmp_path):
    """Three prompts for the tiny text model, kept in a folder."""
    work = Workload(3, max_new_tokens=6, prompts=written(tmp_path, *LINES))
    models = Models(str(text_folder("text")), device="cpu", dtype="float32")
    return Suite(models, work, ("target", "ngram"), repeats=1, warm_ups=1, memory=False, out=tmp_path / "runs")


def keys(suite):
    return [json.loads(line)["key"] for line in (suite.out / "runs.jsonl").read_text().splitlines()]


def test_a_run_that_was_cut_off_goes_on_and_says_the_same(suite):
    left = iter(range(2 + 2 + 1))  # a warm-up and a pair of two methods, and the next one's first

    def tick(_):
        if next(left, None) is None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_suite(suite, tick)
    assert keys(suite) == ["pairs 0"]
    before = (suite.out / "runs.jsonl").read_text()
    ticks = []
    found = to_json(run_suite(suite, ticks.append))
    assert (suite.out / "runs.jsonl").read_text().startswith(before)
    assert keys(suite) == ["pairs 0", "pairs 1", "pairs 2"]
    assert len(ticks) == suite.runs
    assert [row["identical"] for row in found["methods"]] == [{"equal": 3, "total": 3}] * 2
    again = to_json(run_suite(suite))
    assert again["methods"] == found["methods"], "nothing was measured again"
    said = "In 2 runs; what a drafter learns from answers, it learned in each anew."
    assert said in again["workload"]["in_words"]


def test_drafters_of_a_bench_are_quantised_and_compiled_as_it_says():
    models = Models(quantize="int8", draft_quantize="int4", compiled=True)
    options = options_of("ngram", models, None)
    assert (options.quantize, options.draft_quantize, options.compile) == ("int8", "int4", True)


def test_a_run_ends_in_time_a_larger_one_goes_on_and_another_is_refused(suite):
    with pytest.raises(CrossdraftError, match="No pair was answered in that time"):
        run_suite(replace(suite, minutes=1e-6))
    run_suite(replace(suite, work=replace(suite.work, pairs=1)))
    found = run_suite(replace(suite, minutes=1e-6)).workload
    assert (found["pairs"], found["of_pairs"]) == (1, 3)
    assert "1 of 3 pairs so far; the same command goes on." in found["in_words"]
    with pytest.raises(CrossdraftError, match=r"another configuration \(max_new_tokens is 6, now 5\)"):
        run_suite(replace(suite, work=replace(suite.work, max_new_tokens=5)))
    path = suite.work.prompts
    path.write_text(path.read_text().replace("dark", "wet"))
    with pytest.raises(CrossdraftError, match=r"another configuration \(prompts is"):
        run_suite(suite)
    written(path.parent, *LINES)
    runs = suite.out / "runs.jsonl"
    line = json.loads(runs.read_text())
    runs.write_text(json.dumps(line | {"config": line["config"] | {"cpu": "another"}}) + "\n")
    with pytest.raises(CrossdraftError, match=r"another configuration \(cpu is another, now"):
        run_suite(suite)


def test_prompts_come_in_turn_by_kind_with_whole_paths(tmp_path):
    (tmp_path / "a.png").write_bytes(b"")
    shown = {"role": "user", "content": [{"type": "image", "image": "a.png"}, {"type": "text", "text": "What?"}]}
    lines = [*LINES, {"messages": [shown]}, {"prompt": "And?", "image": ["a.png", "a.png"]}]
    found = read_prompts(written(tmp_path, *lines))
    assert [one.kind for one in found] == ["scene", "repeat", "any", "scene", "any"]
    assert [one.shows for one in found] == [False, False, True, False, True]
    asked = [item.request for item in items(Workload(5, prompts=tmp_path / "prompts.jsonl"))]
    assert [one.question for one in asked] == ["What is ahead?", "Say it again.", "What?", "Is it dark?", "And?"]
    assert [part.value for one in asked for part in one.visuals] == [str(tmp_path / "a.png")] * 3


def test_prompts_about_clips_with_events(models, tmp_path):
    clip = scenes.write_clip(scenes.make_scene(7), tmp_path)
    line = {"prompt": "What is ahead?", "video": clip.video.name, "events": clip.events.name}
    work = Workload(1, max_new_tokens=4, prompts=written(tmp_path, line))
    found = run_suite(Suite(models, work, ("target", "hf", "event-inline"), repeats=1, warm_ups=1, memory=False))
    assert [row["identical"] for row in found.methods] == [{"equal": 1, "total": 1}] * 3
    assert ", in words alone" not in found.workload["in_words"][0]


def test_a_program_on_a_leash_ends_with_it_even_if_it_is_stopped():
    leash = subprocess.Popen(
        [*LEASHED, "--program", "sleep", "600"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    pid = int(leash.stdout.readline())
    line, end = PROC / str(pid) / "cmdline", time.monotonic() + 30
    while not line.read_bytes() and time.monotonic() < end:  # between fork and exec it is empty
        time.sleep(0.01)
    assert b"sleep" in line.read_bytes()
    os.kill(pid, signal.SIGSTOP)
    leash.stdin.close()
    leash.wait(60)
    assert not (PROC / str(pid)).exists()


def test_options_of_llama_cpp_that_do_not_fit_are_refused(suite, tmp_path):
    with pytest.raises(CrossdraftError, match="name both, or none of its options"):
        PeerOptions(llama_speculation="--spec-type ngram-simple").check(())
    with pytest.raises(CrossdraftError, match="There is no file"):
        PeerOptions(llama_server=tmp_path / "none", gguf=suite.work.prompts).check(())
    choice = read_prompts(written(tmp_path, {"prompt": "?", "choice": ["a", "b"]}))
    for peers in (PeerOptions(None, suite.work.prompts, suite.work.prompts), PeerOptions(suite.work.prompts)):
        for asked in (choice, ()):
            with pytest.raises(CrossdraftError, match=r"in words, the latter without structures"):
                peers.check(asked)


@pytest.mark.parametrize(("options", "rows"), [([], []), (["--compile"], [(1, 33)])])
def test_compiled_passes_are_our_methods_alone(pair, tmp_path, monkeypatch, options, rows):
    """The target that our methods share is compiled once, before the clock; Hugging Face's is left as it is."""
    compiled, out = [], tmp_path / "out.json"
    monkeypatch.setattr(Target, "compile", lambda self, *sizes: compiled.append(sizes))
    command = ["bench", "--target", str(pair.target), "--event", str(pair.event), "--blind", str(pair.blind)]
    work = ["--pairs", "1", "--repeats", "1", "--warm-ups", "0", "--max-new-tokens", "2", "--no-memory"]
    status = main([*command, *work, "--methods", "target,hf", "--device", "cpu", "--json-out", str(out), *options])
    assert status == 0
    assert compiled == rows
    assert json.loads(out.read_text())["environment"]["compiled"] == bool(rows)
