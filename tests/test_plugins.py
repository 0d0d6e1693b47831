"""Tables that other installed packages add to, and what there is without the laboratory."""

import json
import sys

import pytest

from crossdraft.checkpoints.locate import shipped_at
from crossdraft.cli.demo import shipped_clip
from crossdraft.cli.main import main
from crossdraft.compressions import settings_of
from crossdraft.engine.rules import RULES, check_rule
from crossdraft.errors import CrossdraftError
from crossdraft.heads.folders import head_json
from crossdraft.heads.registry import NETWORKS
from crossdraft.methods import METHODS, check_spec, read_spec
from crossdraft.plugins import Table
from tests.support import install

POINTS = {"one": "ONE", "other": "OTHER", "gone": "GONE", "own": "TWO"}
PACKAGE = """
ONE, OTHER, TWO = 1, "one", 2
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """An installed package with entry points of the group `numbers`."""
    install(tmp_path, "some_numbers", PACKAGE, "numbers", POINTS)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("some_numbers", None)


@pytest.fixture
def without_lab(monkeypatch):
    """As if crossdraft-lab were not installed."""
    monkeypatch.setattr("crossdraft.plugins._entry_points", lambda *_: {})
    monkeypatch.setattr("crossdraft.plugins.find_spec", lambda name: None)


@pytest.mark.usefixtures("package")
def test_a_table_has_its_own_records_those_set_and_those_of_packages():
    table = Table("numbers", int, "number", {"own": 7})
    assert list(table) == ["own", "gone", "one", "other"]
    assert "one" in table
    assert "some_numbers" not in sys.modules  # names are known without an import
    assert table["one"] == 1
    assert table["own"] == 7  # never a package's
    table["set"] = 9
    assert (table["set"], table.get("none"), len(table)) == (9, None, 5)
    del table["set"]
    assert "set" not in table


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize(("name", "said"), [("gone", "'gone' .* cannot be loaded"), ("other", "must be the record")])
def test_a_package_without_a_record_is_refused_by_name(name, said):
    with pytest.raises(CrossdraftError, match=said):
        Table("numbers", int, "number", {})[name]


def test_a_package_that_is_installed_later_is_found(tmp_path, monkeypatch, request):
    table = Table("numbers", int, "number", {})
    assert "one" not in table
    request.getfixturevalue("package")
    assert table["one"] == 1


def test_the_laboratory_adds_to_every_table():
    from crossdraft.compressions import COMPRESSIONS

    assert {"aligned", "online", "predicted"} <= set(METHODS)
    assert {"fuzzy", "judge"} <= set(RULES)
    assert {"l5", "vision_queries", "token_packer"} <= set(NETWORKS)
    assert {"fastv", "predicted"} <= set(COMPRESSIONS)
    for table in (METHODS, RULES, COMPRESSIONS):
        assert all(record.name == name for name, record in table.items())
    assert all(record.network == name for name, record in NETWORKS.items())


@pytest.mark.usefixtures("without_lab")
def test_without_the_laboratory_one_sentence_names_the_package(capsys):
    assert main(["bench", "--pairs", "1"]) == 2
    assert capsys.readouterr().err == (
        "crossdraft: The command 'bench' comes with crossdraft-lab: pip install -e './lab[all]' in the checkout.\n"
    )
    for ask in (
        lambda: check_spec(read_spec("aligned:dir=x")),
        lambda: check_rule("fuzzy"),
        lambda: settings_of("fastv:keep=0.5"),
        lambda: head_json(shipped_at("heads/medusa")),
    ):
        with pytest.raises(CrossdraftError, match="More come with crossdraft-lab: pip install -e"):
            ask()
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert " ask " in shown
    assert " bench " not in shown


@pytest.mark.usefixtures("without_lab")
def test_without_the_laboratory_the_demo_asks_about_the_shipped_clip(pair, tmp_path, capsys):
    models = ["--target", str(pair.target), "--drafter", str(pair.event), "--max-new-tokens", "4"]
    assert main(["demo", "--json", "--out", str(tmp_path / "demo"), *models]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found) == len(shipped_clip(tmp_path).questions)
    assert all(one["compare"]["identical"] and "facts" not in one for one in found)
    assert {path.name for path in (tmp_path / "demo").iterdir()} == {"road.mp4", "road.h5"}
    assert sum(path.stat().st_size for path in (tmp_path / "demo").iterdir()) <= 300_000
    assert main(["demo", "--out", str(tmp_path / "other"), "--seed", "1", *models]) == 2
    assert "--seed 1 is another clip; more come with crossdraft-lab: pip install -e" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()
