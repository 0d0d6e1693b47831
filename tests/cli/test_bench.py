"""`crossdraft bench` from the command line, on a tiny pair: two pairs, one repeat, every method."""

import json
import os
import re
from html import unescape
from pathlib import Path

import pytest
import torch

from crossdraft.cli.main import main
from crossdraft.events import write_events
from crossdraft.load import text_folder
from crossdraft_lab.bench import events
from crossdraft_lab.bench.specs import ALL_METHODS, UNDRAFTED, usual_methods
from crossdraft_lab.cli.bench_options import python_at
from tests.bench.some_heads import random_head
from tests.support import encodes_clips

TWO = len(os.sched_getaffinity(0)) > 1
METHODS = list(usual_methods(shipped=False, more_cores=TWO))
FIELDS = (
    "name lossless identical first_provisional_ms ttft_ms total_ms tokens_per_s speedup tau tau_ci95 "
    "accepted_per_position hidden_share prefill_slowdown overhead_share stage_ms cores memory"
)
QUICK = ["--pairs=1", "--repeats=1", "--warm-ups=0", "--in-memory", "--no-memory"]
QUARTILES = {"median", "q1", "q3"}


@pytest.fixture(scope="module")
def models(pair):
    return [f"--target={pair.target}", f"--event={pair.event}", f"--blind={pair.blind}", "--device=cpu"]


@pytest.fixture(scope="module")
def report(models, tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench")
    sizes = ["--pairs=2", "--repeats=1", "--warm-ups=1", "--max-new-tokens=16", "--dtype=float32"]
    where = [f"--json-out={folder / 'bench.json'}", f"--plot={folder / 'bench.png'}"]
    assert main(["bench", *sizes, *models, *where]) == 0
    assert (folder / "bench.png").read_bytes().startswith(b"\x89PNG")
    return json.loads((folder / "bench.json").read_text())


def test_the_report_has_every_field(report):
    assert {"environment", "workload", "methods", "memory"} <= report.keys()
    assert [method["name"] for method in report["methods"]] == METHODS
    for method in report["methods"]:
        assert set(FIELDS.split()) <= method.keys()
        assert set(method["ttft_ms"]) == set(method["total_ms"]) == QUARTILES
        assert all(set(times) == QUARTILES for times in method["stage_ms"].values())
        assert set(method["speedup"]) == {"value", "ci95", "n", "against", "per"}
        assert method["speedup"]["per"] == "answer"
        assert method["speedup"]["against"] in UNDRAFTED
        assert [row["against"] for row in method["speedups"]] == METHODS[: METHODS.index("blind")]
        low, high = method["speedup"]["ci95"]
        assert low <= method["speedup"]["value"] <= high
        low, high = method["tau_ci95"]
        assert low <= method["tau"] <= high


def test_all_are_identical_to_the_target(report):
    for method in report["methods"]:
        assert method["lossless"]
        assert method["identical"] == {"equal": 2, "total": 2}
        assert method["notes"] == []


def test_drafters_draft_and_the_target_does_not(report):
    by_name = {method["name"]: method for method in report["methods"]}
    assert by_name["target"]["tau"] == by_name["hf"]["tau"] == 1
    assert by_name["target"]["hidden_share"] is None
    # On a busy machine the cost model may find that ours do not pay; nothing stops transformers' own drafting.
    for ours in (by_name["event"], by_name["event-inline"]):
        assert ours["tau"] == 1 or any(ours["accepted_per_position"])
    assert by_name["hf-assisted"]["tau"] > 1
    assert 0 <= (by_name["event"]["hidden_share"] or 0) <= 1  # None if each hidden draft came without a token


def test_all_of_a_bench_are_quantised_alike(models, tmp_path):
    out = tmp_path / "bench.json"
    sizes = [*QUICK, "--max-new-tokens=8", "--methods=target,hf,event-inline", "--quantize=int8", f"--json-out={out}"]
    assert main(["bench", *sizes, *models]) == 0
    found = json.loads(out.read_text())
    assert (found["environment"]["quantize"], found["environment"]["dtype"]) == ("int8", "bfloat16")
    assert [method["identical"] for method in found["methods"]] == [{"equal": 1, "total": 1}] * 3


def test_quantised_models_are_not_timed_in_other_precisions(models, capsys):
    assert main(["bench", *QUICK, "--quantize=int4", "--dtype=float32", "--methods=target", *models]) == 2
    assert "computes in bfloat16" in capsys.readouterr().err
    assert main(["bench", "identity", "--quantize=int5", *models]) == 2
    assert "--quantize" in capsys.readouterr().err


def test_who_has_a_process_of_its_own_says_what_both_take(report):
    for method in report["methods"]:
        in_process, used = method["name"] in ("blind", "event"), method["memory"]
        assert used["target_mib"] > 100
        assert (used["drafter_mib"] is not None) is in_process
        assert used["total_mib"] == pytest.approx(used["target_mib"] + (used["drafter_mib"] or 0))
        assert bool(method["cores"]["drafter"]) is in_process
        # None, too, of a drafter that comes too late each time, as on a busy machine.
        assert in_process or method["first_provisional_ms"] is None or method["name"] not in ("target", "hf")
    assert "loads this method alone" in report["memory"]["how"]


@pytest.mark.skipif(not TWO, reason="needs two cores")
def test_all_cores_are_those_of_the_pair(report):
    cores = {method["name"]: method["cores"] for method in report["methods"]}
    pair = sorted(cores["event"]["target"] + cores["event"]["drafter"])
    assert cores["target-all"]["target"] == cores["hf-all"]["target"] == pair
    assert cores["target"]["target"] == cores["hf"]["target"] == cores["event"]["target"]
    assert len(pair) == 2


def test_the_workload_says_what_it_was(report):
    work = report["workload"]
    assert (work["pairs"], work["repeats"], work["split"], work["held_out_wordings"]) == (2, 1, "test", True)
    assert (work["answers"], work["files"]) == ("any", True)
    assert "files are read inside the clock" in work["timed"]
    words = " ".join(work["in_words"])
    assert "2 of 16 kinds of question in turn" in words
    assert f"{work['mean_tokens']} tokens on average" in words
    assert "the clip's files are read inside the clock" in words
    assert "target" in words.partition("Cores")[2]


def test_json_to_stdout_is_nothing_but_json(models, capsys):
    assert main(["bench", "--methods=target,hf", *QUICK, *models, "--json"]) == 0
    captured = capsys.readouterr()
    assert [method["name"] for method in json.loads(captured.out)["methods"]] == ["target", "hf"]
    assert "× target" in captured.err or "× hf" in captured.err  # the tables: against the faster of the two
    assert "not measured: target-all, hf-all, hf-lookup, blind" in captured.err
    assert "read and decoded beforehand, outside the clock" in " ".join(captured.err.split())


def test_sampled_answers_are_compared_per_token_and_called_neither_identical_nor_not(models, capsys):
    sizes = [*QUICK, "--max-new-tokens=8"]
    assert main(["bench", "--methods=target,event-inline", "--temperature=1", *sizes, *models, "--json"]) == 0
    captured = capsys.readouterr()
    for method in json.loads(captured.out)["methods"]:
        assert method["identical"] is method["lossless"] is None
        assert method["speedup"]["per"] == "token"
    assert "time per token of the baseline" in captured.err
    assert "1/1" not in captured.err


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--methods=target,medusa"], "medusa"),
        (["--methods=target,target"], "twice"),
        (["--pairs=0"], "pairs"),
        (["--kinds=weather"], "weather"),
        (["--target-cores=4096"], "4096"),
        (["--target=nowhere"], "nowhere"),
        (["--methods=evnt"], "did you mean 'event'?"),
        (["--methods=target,union:event,memory"], "write --drafter union:event,memory."),
        (["--drafter=union:ngram,memry"], "did you mean 'memory'?"),
        (["--methods=event", "--drafter=event"], "named twice"),
        (["identity", "--drafters=memry"], "did you mean 'memory'?"),
        (["identity", "--drafters=all", "--drafters=blind"], "named twice"),
        (["--methods="], "No method is named"),
        (["--repeats=0"], "repeats is 0"),
        (["--warm-ups=-1"], "warm-ups is -1"),
        (["--max-new-tokens=0"], "--max-new-tokens is 0"),
        (["--temperature=-1"], "temperature is -1"),
        (["--json-out=."], "Cannot write ."),
        (["--plot=bars.pdf"], "written as .svg or .png"),
    ],
)
def test_bad_input_is_one_sentence_and_nothing_else_is_drawn(arguments, part, models, capsys):
    command = ["bench", "identity"] if arguments[0] == "identity" else ["bench"]
    rest = [argument for argument in arguments if argument != "identity"]
    assert main([*command, "--pairs=1", *models, *rest]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("crossdraft: ")
    assert captured.err.count("\n") == 1
    assert part in captured.err


def test_a_wrong_method_is_refused_before_a_model_is_looked_for(capsys):
    assert main(["bench", "--methods=foo", "--target=nowhere", "--event=nowhere"]) == 2
    assert "Unknown method 'foo'; `crossdraft bench --help` lists them." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--target", "referense"], "did you mean 'reference'?"),
        (["--event", "evnt"], "did you mean 'event'?"),
        (["identity", "--event", "glance"], "'glance' cannot be aligned, tuned or built upon"),
    ],
)
def test_a_model_that_is_not_there_is_refused_before_clips_are_made(arguments, part, capsys, monkeypatch):
    monkeypatch.setattr("crossdraft_lab.scenes.clip.write_clip", None)
    assert main(["bench", *arguments]) == 2
    said = capsys.readouterr().err
    assert part in said
    assert len(said.splitlines()) == 1


def test_the_help_names_every_method(capsys):
    assert main(["bench", "--help"]) == 0
    shown = capsys.readouterr().out.replace("│", " ").split()
    assert {f"{method}," for method in METHODS[:-1]} < set(shown)
    words = {word.strip(",;.") for word in shown}
    assert words >= set(ALL_METHODS)


def test_a_drafter_of_ones_own_races_under_its_spec(models, capsys):
    sizes = [*QUICK, "--max-new-tokens=16"]
    drafters = ["--methods=target", "--drafter=union:ngram,memory", "--drafter=memory"]
    assert main(["bench", *drafters, *sizes, *models, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["methods"]
    assert [method["name"] for method in found] == ["target", "union:ngram,memory", "memory"]
    assert all(method["lossless"] for method in found)


@encodes_clips
@pytest.mark.parametrize("pairs", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_all_methods_race_and_lose_nothing(models, tmp_path, pairs):
    out = tmp_path / "bench.json"
    names = [name for name in ALL_METHODS if name != "glance"]  # made for the shipped pair
    sizes = [*QUICK, f"--pairs={pairs}", "--max-new-tokens=16", "--dtype=float32"]
    assert main(["bench", f"--methods={','.join(names)}", *sizes, *models, f"--json-out={out}"]) == 0
    found = json.loads(out.read_text())
    assert [method["name"] for method in found["methods"]] == names
    assert all(method["lossless"] for method in found["methods"])
    assert found["environment"]["drafters"]["phased"] == "phased:event,(union:event,memory)"


def test_options_in_front_of_a_subcommand_are_not_lost(capsys):
    assert main(["bench", "--pairs=3", "identity"]) == 2
    assert "--pairs stands before 'identity'" in capsys.readouterr().err


def test_events(monkeypatch, tmp_path, capsys):
    window = events.synthetic_window(rate_mev_s=0.2)
    monkeypatch.setattr(events, "SIMULATED", ())
    monkeypatch.setattr(events, "real_size", lambda *_: ())
    write_events(tmp_path / "a.h5", window)
    options = [f"--recording={tmp_path / 'a.h5'}", "--seconds=1.5", "--repeats=1"]
    assert main(["bench", "events", *options, "--json"]) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert [row["events"] for row in found["timings"]] == [10_000, 200_000]
    assert found["environment"]["cpus"] == os.cpu_count()
    assert found["environment"]["torch"] == torch.__version__
    assert "to reach 400" in captured.err
    assert main(["bench", "events", "--repeats=0"]) == 2
    assert "repeats is 0" in capsys.readouterr().err


def test_scale_says_why_weights_are_random(capsys):
    assert main(["bench", "scale", "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "times do not depend on them" in shown


KEPT = Path(__file__).parents[2] / "docs/results/bench"


def keys_as_kept(found: dict, kept: str) -> None:
    """A file that is kept has the keys of what its command writes, in its first row too; see the changelog."""
    left = {"cosines"}
    other = json.loads((KEPT / f"{kept}.json").read_text())
    assert other.keys() - left == found.keys()
    for name in other.keys() - left:
        if isinstance(other[name], list):
            assert set().union(*map(dict.keys, other[name])) == set().union(*map(dict.keys, found[name]))


def test_rules(models, tmp_path):
    out = tmp_path / "rules.json"
    arguments = ["--pairs=2", "--rule=judi", "--drafter=blind", "--max-new-tokens=16", f"--json-out={out}"]
    assert main(["bench", "rules", *arguments, *models]) == 0
    found = json.loads(out.read_text())
    assert [(row["rule"], row["lossless"]) for row in found["rules"]] == [
        ("target", True),
        ("judi:threshold=0.4,confidence=0.9", False),
    ]
    keys_as_kept(found, "rules")


@encodes_clips
def test_compression(models, tmp_path):
    out = tmp_path / "compression.json"
    arguments = ["--pairs=1", "--compress=pool", "--drafter=ngram", "--max-new-tokens=12", f"--json-out={out}"]
    only = [one for one in models if not one.startswith("--blind")]
    plot = tmp_path / "quality.svg"
    assert main(["bench", "compression", *arguments, *only, f"--plot={plot}"]) == 0
    assert "share of the target's own answers" in unescape(plot.read_text())
    found = json.loads(out.read_text())["targets"]
    assert [(row["target"], row["drafter"], row["lossless"]) for row in found] == [
        ("target", None, True),
        ("target", "ngram", True),
        ("pool", None, False),
        ("pool", "ngram", False),
    ]
    keys_as_kept(json.loads(out.read_text()), "compression")


def test_recordings(models, tmp_path):
    out = tmp_path / "recordings.json"
    sizes = ["--seconds=1,2", "--clips=1", "--questions=1", "--nodes=4", "--max-new-tokens=8"]
    drafters = ["--drafter=event", "--drafter=event:slices=10"]
    assert main(["bench", "recordings", *sizes, *drafters, f"--json-out={out}", *models]) == 0
    found = json.loads(out.read_text())["recordings"]
    assert [(row["seconds"], row["way"]) for row in found[::2]] == [
        (1, "spread"), (2, "spread"), (2, "at its own speed"),
    ]  # fmt: skip
    keys_as_kept(json.loads(out.read_text()), "recordings")


def test_questions(models, tmp_path):
    out = tmp_path / "questions.json"
    sizes = ["--clips=2", "--questions=2", "--drafter=memory", "--max-new-tokens=4", f"--json-out={out}"]
    assert main(["bench", "questions", *sizes, *models]) == 0
    found = json.loads(out.read_text())
    assert {row["identical"] for row in found["methods"]} == {"4/4"}
    keys_as_kept(found, "questions")


@pytest.mark.slow
def test_policy(models, tmp_path, capsys):
    out = tmp_path / "policy.json"
    only = [one for one in models if not one.startswith("--blind")]
    assert main(["bench", "policy", "--pairs=1", "--loads=mixed", f"--json-out={out}", *only]) == 0
    found = json.loads(out.read_text())
    (load,) = found["loads"]
    assert load["best_fixed"] in {line["name"] for line in load["methods"]} - {"target", "policy"}
    assert "\nmixed: the policy is " in capsys.readouterr().out


@encodes_clips
def test_heads(pair, models, tmp_path, capsys):
    head = random_head(pair.target, tmp_path / "eagle", "eagle")
    out, drawn = tmp_path / "heads.json", tmp_path / "heads.png"
    sizes = ["--pairs=1", "--nodes=6", "--chain=3", "--temperatures=0", "--timed=1", "--max-new-tokens=12"]
    arguments = [f"--drafter=eagle2:dir={head}", *sizes, f"--json-out={out}", f"--plot={drawn}", "--dtype=float32"]
    assert main(["bench", "heads", *arguments, *models]) == 0
    (row,) = json.loads(out.read_text())["drafters"]
    assert row["identical"] == {"equal": 2, "total": 2}
    assert [part["shape"] for part in row["accepted"]] == ["tree", "chain"]
    assert drawn.read_bytes().startswith(b"\x89PNG")
    assert "fewer than 10 pairs" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--methods=eagel3"], "did you mean 'eagle3'?"),
        (["--drafter=eagle2:dir=nowhere"], "nowhere holds no head for 'eagle2'"),
        (["--drafter=ngram", "--drafter=ngram"], "named twice"),
        (["--drafter=ngram", "--temperatures=hot"], "--temperatures is 'hot', no list of numbers"),
        (["--drafter=ngram", "--temperatures="], "Name each temperature once"),
        (["--drafter=ngram", "--nodes=0"], "at least 1 node"),
        (["--drafter=ngram", "--pairs=0"], "pairs is 0"),
        (["--drafter=ngram", "--plot=bars.pdf"], "written as .svg or .png"),
        (["--drafter=ngram", "--json-out=."], "Cannot write ."),
        (["--drafter=ngram", "--target=nowhere"], "nowhere"),
    ],
)
def test_heads_that_cannot_be_measured_are_one_sentence(arguments, part, models, capsys):
    assert main(["bench", "heads", "--pairs=1", *models, *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("crossdraft: ")
    assert captured.err.count("\n") == 1
    assert part in captured.err


@pytest.mark.parametrize("pairs", [1, pytest.param(5, marks=pytest.mark.slow)])
def test_identity_of_every_placement(models, tmp_path, pairs):
    out, sizes = tmp_path / "identity.json", [f"--pairs={pairs}", "--max-new-tokens=16"]
    assert main(["bench", "identity", *sizes, f"--json-out={out}", *models]) == 0
    checks = json.loads(out.read_text())["checks"]
    assert len(checks) == 9
    assert all(check["identical"] == {"equal": pairs, "total": pairs} for check in checks)


@pytest.mark.slow
def test_identity_of_a_drafter_that_is_named(models, tmp_path):
    out = tmp_path / "identity.json"
    drafters = ["--drafters=union:ngram,memory", "--drafters=phased:event,blind"]
    sizes = ["--pairs=3", "--max-new-tokens=16"]
    assert main(["bench", "identity", *drafters, *sizes, f"--json-out={out}", *models]) == 0
    checks = json.loads(out.read_text())["checks"]
    assert [check["drafter"] for check in checks] == ["union:ngram,memory"] * 3 + ["phased:event,blind"] * 3
    assert all(check["identical"] == {"equal": 3, "total": 3} for check in checks)
    assert all(check["drafted"] > 0 for check in checks)


PROMPTS = '{"prompt": "What is ahead?", "kind": "scene"}\n\n{"prompt": "Is there a bus?"}\n'


@pytest.fixture
def prompts(tmp_path):
    (tmp_path / "prompts.jsonl").write_text(PROMPTS)
    return f"--prompts={tmp_path / 'prompts.jsonl'}"


def test_a_text_model_is_asked_prompts(prompts, tmp_path):
    language, out = [f"--target={text_folder('text')}", "--device=cpu"], tmp_path / "bench.json"
    sizes = ["--warm-ups=3", "--repeats=1", "--no-memory", "--max-new-tokens=8", f"--assistant={text_folder('text')}"]
    assert main(["bench", prompts, *sizes, *language, f"--json-out={out}"]) == 0
    found = json.loads(out.read_text())
    assert [method["name"] for method in found["methods"]] == [
        *usual_methods(shipped=False, more_cores=TWO, in_words=True), "hf-assisted"
    ]  # fmt: skip
    assert found["methods"][-1]["tau"] > 2, "the target drafts for itself"
    assert all(method["identical"] == {"equal": 2, "total": 2} for method in found["methods"])
    assert (found["workload"]["prompts"], found["workload"]["held_out_wordings"]) == ("prompts.jsonl", None)
    assert "2 prompts of prompts.jsonl, in words alone, of 2 kinds" in found["workload"]["in_words"][0]
    sizes = ["--max-new-tokens=16", "--kinds=scene", f"--json-out={out}", "--force"]
    assert main(["bench", "identity", prompts, *sizes, *language]) == 0
    checks = json.loads(out.read_text())["checks"]
    assert [check["identical"] for check in checks] == [{"equal": 1, "total": 1}] * 8


@pytest.mark.parametrize(
    ("line", "more", "part"),
    [
        ("{}", [], "Line 1 of .* is no prompt"),
        ('["What?"]', [], "Line 1 of .* is no prompt"),
        ('{"prompt": "?", "messages": []}', [], "Line 1 of .* is no prompt"),
        ('{"messages": [{"role": "you", "content": "?"}]}', [], r"Line 1 of .*: messages\[0\] has the role 'you'"),
        ('{"prompt": "?", "video": "none.mp4"}', [], "Line 1 of .* names 'none.mp4', which is no file"),
        ("", [], "has no prompts"),
        (PROMPTS, ["--kinds=code"], "no prompts of the kinds code"),
        (PROMPTS, [], "The reference target knows its clips alone; for prompts name another by --target"),
        (PROMPTS, ["--drafter=union:event,memory"], "reads an event recording, and prompts come without one"),
        (PROMPTS, ["--methods=target,event"], "'event' reads an event recording"),
        (PROMPTS, ["--methods=event-inline"], "'event-inline' reads an event recording"),
        (PROMPTS, ["--max-new-tokens=-1"], "max_new_tokens|max-new-tokens"),
        ("[" * 10**5, [], "Line 1 of .* is no prompt"),
    ],
)
def test_prompts_that_cannot_be_asked_are_one_sentence(line, more, part, prompts, tmp_path, capsys):
    (tmp_path / "prompts.jsonl").write_text(line)
    assert main(["bench", prompts, *more]) == 2
    assert re.search(part, capsys.readouterr().err)


@pytest.mark.parametrize("command", ["serve", "throughput"])
def test_a_python_of_vllm_that_is_not_there_is_said_before_anything_begins(command, tmp_path, capsys):
    missing = tmp_path / "bin" / "python"
    assert main(["bench", command, f"--vllm-python={missing}"]) == 2
    assert "does not exist" in capsys.readouterr().err


def test_a_relative_python_of_vllm_is_found_from_any_folder_and_its_link_kept(tmp_path, monkeypatch):
    (tmp_path / "real").touch()
    (tmp_path / "python").symlink_to("real")
    monkeypatch.chdir(tmp_path)
    assert python_at(Path("python")) == tmp_path / "python"
    assert python_at(None) is None
