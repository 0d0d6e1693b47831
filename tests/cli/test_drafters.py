"""`crossdraft drafters`: every drafter stands in the list, and advice above it."""

import json

from crossdraft.cli.drafters import WHICH
from crossdraft.cli.main import main
from crossdraft.methods import METHODS, read_spec


def test_every_drafter_is_listed_below_the_advice(capsys):
    assert main(["drafters"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("Which drafter should I take?")
    lines = [line.split()[0] for line in shown.splitlines() if line.strip()]
    assert set(METHODS) <= set(lines)
    assert len(WHICH) == 3


def test_the_advice_names_drafters_that_exist():
    for _, advice in WHICH:
        assert read_spec(advice.split()[0]).names <= set(METHODS)


def test_some_as_json(capsys):
    assert main(["drafters", "glance", "ngram", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["name"], row["trained"]) for row in rows] == [("ngram", False), ("glance", True)]


def test_an_unknown_one_gets_the_nearest_name(capsys):
    assert main(["drafters", "eagel3"]) == 2
    assert "did you mean 'eagle3'?" in capsys.readouterr().err
