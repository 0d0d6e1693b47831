"""`crossdraft train`."""

import inspect
import re

import pytest

from crossdraft.cli import train
from crossdraft.cli.main import main
from crossdraft.train.reference.recipe import load_recipe


def test_the_override_that_the_help_shows_is_accepted():
    shown = re.findall(r"e\.g\. ([\w.]+=\w+)\.", inspect.getsource(train))
    assert len(shown) == 1
    assert load_recipe(overrides=shown).target.train[0].questions == 6


@pytest.mark.parametrize("command", [["l6", "--capture", "nowhere"], ["glance"]])
def test_what_is_no_event_model_is_refused_with_those_that_are(command, tmp_path, capsys):
    assert main(["train", *command, "--event", "eagle2", "--out", str(tmp_path / "out")]) == 2
    assert "only an event model can, that is event, blind, foreign, or the folder" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_wrong_override_is_one_sentence_and_leaves_nothing(tmp_path, capsys):
    assert main(["train", "reference", "seed=[", "--out", str(tmp_path / "run")]) == 2
    printed = capsys.readouterr().err
    assert "The value of the override 'seed=[' is not YAML" in printed
    assert printed.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["train", "reference", "--stage", "tokenizer", "--out", str(tmp_path / "file" / "run")]) == 2
    assert "file is a file; name another folder." in capsys.readouterr().err
