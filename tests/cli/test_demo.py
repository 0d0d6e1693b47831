"""`crossdraft demo` on the tiny pair: a clip is made, every question is answered and compared."""

import json
import os

import pytest
import torch

from crossdraft.cli.main import main
from crossdraft_lab.cli.demo_scene import KINDS


@pytest.fixture
def cores_restored():
    """A target in this process may be given fewer cores; the other tests want them back."""
    cores, threads = os.sched_getaffinity(0), torch.get_num_threads()
    yield
    os.sched_setaffinity(0, cores)
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("cores_restored")
def test_every_question_is_answered_and_compared(pair, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    models = ["--target", str(pair.target), "--drafter", str(pair.event), "--max-new-tokens", "8"]
    assert main(["demo", "--out", str(tmp_path), *models]) == 0
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert shown.count("the tokens are identical") == len(KINDS) + 1
    many = " on the faster of 1 and 2 cores" if len(os.sched_getaffinity(0)) == 2 else ""
    assert f"as fast as the target alone{many}; the tokens are identical." in " ".join(shown.split())
    heads = next(line for line in shown.splitlines() if line.startswith("question")).split()
    assert heads == ["question", "facts", "tokens", "τ", "hidden", "alone", "drafter", "speedup", "identical"]
    assert {path.suffix for path in tmp_path.iterdir()} == {".mp4", ".h5", ".json"}


@pytest.mark.usefixtures("cores_restored")
def test_json_is_a_record_for_each_question_and_all_there_is_on_standard_output(pair, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("crossdraft_lab.cli.demo_scene.KINDS", KINDS[:2])
    monkeypatch.setattr("crossdraft.cli.demo.REPEATS", 1)
    models = ["--target", str(pair.target), "--drafter", str(pair.event), "--max-new-tokens", "8"]
    assert main(["demo", "--json", "--out", str(tmp_path), *models]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found) == len({one["question"] for one in found}) == 2
    assert all(one["compare"]["identical"] and len(one["tokens"]) <= 8 for one in found)
    assert all(set(one["facts"].values()) <= {True, False} for one in found)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--drafter", "none"], "name a drafter"),
        (["--drafter", "glanse"], "did you mean 'glance'?"),
        (["--target", "referense"], "did you mean 'reference'?"),
        (["--seed", "1000000"], "--seed"),
    ],
)
def test_bad_input_is_one_sentence(arguments, sentence, tmp_path, capsys):
    assert main(["demo", "--out", str(tmp_path / "new"), *arguments]) == 2
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
