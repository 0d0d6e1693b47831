"""`crossdraft plan` from the command line: typed-in numbers, a measured pair, bad numbers."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from crossdraft.cli.main import main
from crossdraft_lab.bench import plan_measure

NUMBERS = ["--prefill=326", "--step=15.2", "--draft-step=10.3", "--alpha=0.8", "--tokens=50"]
SHARES = {"prefill", "waiting", "drafting", "passes"}


def without(name):
    return [number for number in NUMBERS if not number.startswith(name)]


def advice_of(arguments, capsys):
    assert main(["plan", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_tables_and_a_sentence(capsys):
    assert main(["plan", *NUMBERS, "--draft-prefill=91", "--verify=1:15.2,8:16,22:68.9"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.startswith("simulated from typed-in numbers")
    assert "Draft: a hidden draft of 7 tokens, then 1 a round, takes 980.1 ms" in shown
    assert "3.28 times the target alone" in shown


def test_the_example_of_the_documentation(capsys):
    page = (Path(__file__).parents[2] / "docs" / "planning.md").read_text(encoding="utf-8")
    command, shown = page.split("```\n$ crossdraft ", 1)[1].split("\n```", 1)[0].split("\n", 1)
    assert main(command.split()) == 0
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == shown.splitlines()


def test_json_holds_every_way_and_its_shares(capsys):
    report = advice_of([*NUMBERS, "--draft-prefill=91", "--verify-slope=0.4"], capsys)
    assert report["source"] == "simulated from typed-in numbers"
    assert [set(strategy["shares"]) for strategy in report["ways"]] == [SHARES] * 4
    assert report["stages"]["passes"] == [[2, 15.6]]
    assert report["stages"]["c"] == pytest.approx(10.3 / 15.2)


def test_json_goes_to_a_file(tmp_path, capsys):
    path = tmp_path / "plan.json"
    assert main(["plan", *NUMBERS, f"--json-out={path}"]) == 0
    assert json.loads(path.read_text(encoding="utf-8"))["best"] == "hidden drafting, then steady"
    assert "simulated" in capsys.readouterr().out


def test_c_instead_of_the_draft_step_and_acceptance_by_position(capsys):
    report = advice_of([*without("--draft-step"), "--c=0.5", "--alpha=0.9,0.5,0", "--shared"], capsys)
    assert report["stages"]["draft_step"] == 7.6
    assert report["stages"]["acceptance"] == [0.9, 0.5, 0.0]
    assert (report["stages"]["contention"], report["free_hidden_tokens"]) == (1.0, 0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give --prefill, --step, --draft-step (or --c), --alpha, --tokens as well, or --measure"),
        (without("--step"), "give --step as well"),
        ([*without("--step"), "--c=0.5"], "--draft-step and --c say the same in two ways"),
        ([*NUMBERS, "--verify=2:16", "--verify-slope=1"], "--verify and --verify-slope say the same"),
        ([*NUMBERS, "--step=0"], "The step is 0; give milliseconds"),
        ([*NUMBERS, "--prefill=-3"], "The prefill is -3;"),
        ([*NUMBERS, "--alpha=1.5"], "The acceptance is 1.5; give a probability from 0 to 1."),
        ([*NUMBERS, "--alpha=high"], "The acceptance 'high' is no list of numbers"),
        ([*NUMBERS, "--alpha="], "The acceptance '' is no list of numbers"),
        ([*without("--draft-step"), "--c=-0.5"], "The c is -0.5;"),
        ([*NUMBERS, "--verify="], "'' is no list of passes"),
        ([*NUMBERS, "--verify=2-16"], "'2-16' is no list of passes"),
        ([*NUMBERS, "--verify=2:16:3"], "'2:16:3' is no list of passes"),
        ([*NUMBERS, "--verify-slope=-1"], "The verify slope is -1;"),
        ([*NUMBERS, "--verify-slope=nan"], "The verify slope is nan;"),
        ([*NUMBERS, "--tokens=1"], "The answer is 1 tokens long;"),
        ([*NUMBERS, "--pairs=3"], "--pairs is about a pair to be measured; add --measure."),
        (["--measure", "--alpha=0.5"], "--measure measures what --alpha says; give one of the two."),
        (["--measure", "--shared"], "--measure measures what --shared says"),
    ],
)
def test_bad_numbers_cost_a_sentence(arguments, message, tmp_path, capsys):
    path = tmp_path / "plan.json"
    assert main(["plan", *arguments, f"--json-out={path}"]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.startswith("crossdraft: ")
    assert captured.err.count("\n") == 1
    assert captured.out == ""
    assert not path.exists()


def test_typed_numbers_need_no_torch():
    code = (
        "import sys; from crossdraft.cli.main import main; "
        f"status = main({['plan', *NUMBERS]!r}); sys.exit(status or 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_pair_is_measured_and_planned_for(pair, capsys, monkeypatch):
    monkeypatch.setattr(plan_measure, "BUDGET_S", 0.0)  # the fewest passes of each width
    allowed = os.sched_getaffinity(0)
    core = min(allowed)  # one for both: the drafter runs in this process, before the prefill
    models = [f"--target={pair.target}", f"--drafter={pair.event}", "--device=cpu", "--dtype=float32"]
    cores = [f"--target-cores={core}", f"--draft-cores={core}"]
    report = advice_of(["--measure", "--pairs=1", *models, *cores], capsys)
    assert os.sched_getaffinity(0) == allowed
    stages = report["stages"]
    assert report["source"] == "simulated from measured stages"
    assert stages["contention"] == 1.0
    assert min(stages[name] for name in ("prefill", "step", "draft_step", "draft_prefill")) > 0
    assert 0 < stages["alpha"] < 1
    assert stages["passes"][0] == [1, stages["step"]]
    assert stages["tokens"] >= 3
    assert "(simulated from measured stages)" in report["advice"]
