"""`crossdraft train`."""

import inspect
import re

import pytest

from crossdraft.cli.main import main
from crossdraft_lab.cli import train
from crossdraft_lab.train.reference.recipe import load_recipe


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


RECIPES = [
    [*command.split(), "x"]
    for command in ("train eagle", "train reference", "train medusa2", "train l6", "train ctpd", "align")
]


@pytest.mark.parametrize("command", RECIPES, ids=lambda words: " ".join(words[:-1]))
@pytest.mark.parametrize("option", ["--steps", "--stesp=10", "--learning-rte"])
def test_an_option_that_is_a_key_of_the_recipe_is_known_by_it(command, option, capsys):
    """Of a stage, where the recipe has several; what is named is accepted."""
    assert main([*command[:-1], option, "10"]) == 2
    out, said = capsys.readouterr()
    name = option.partition("=")[0]
    where, key = re.fullmatch(
        rf"crossdraft: There is no option {name}; a recipe's key is an argument, such as ([\w.]*optim)\.(\w+)=…\n", said
    ).groups()
    assert key == ("learning_rate" if "rte" in option else "steps")
    assert out == ""
    assert where == "optim" or load_recipe(overrides=[f"{where}.{key}=7"])


@pytest.mark.parametrize("option", ["--smooth-l1", "--smoth_l1"])
def test_an_option_that_is_one_weight_of_the_loss_is_known_too(option, capsys):
    assert main(["train", "eagle", option, "4"]) == 2
    assert capsys.readouterr().err.endswith("such as loss.smooth_l1=…\n")


@pytest.mark.parametrize(
    ("option", "meant"), [("--captrue", "--capture"), ("--onlin", "--online"), ("--xyzzy", "such option")]
)
def test_an_option_that_is_nearer_to_another_one_is_not_taken_for_a_key(option, meant, capsys):
    assert main(["train", "eagle", option, "10"]) == 2
    said = capsys.readouterr().err
    assert meant in said
    assert "recipe" not in said
