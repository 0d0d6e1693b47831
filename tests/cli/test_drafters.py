"""`crossdraft drafters`: every drafter stands in the list, and advice above it."""

import json
import subprocess
import sys

from crossdraft.cli.drafter_table import WHICH
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


def test_the_table_needs_no_torch():
    code = "import sys; from crossdraft.cli.main import main; sys.exit(main(['drafters']) or 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "glance" in done.stdout
