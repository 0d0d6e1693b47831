"""`crossdraft head` on a tiny target: shown, exported, imported, refused."""

import json

import pytest
import torch

from crossdraft.cli.head import host_of
from crossdraft.cli.main import main
from crossdraft.models.heads.files import config_of, make, save_head


@pytest.fixture
def head(pair, tmp_path):
    """An EAGLE-3 for the tiny target."""
    host = host_of(str(pair.target))
    values = {**host.sizes, "draft_ids": tuple(range(2, 90)), "heads": 2, "kv_heads": 1, "head_dim": 16}
    config = config_of("eagle3", values | {"intermediate_size": 24, "steps": 3}, "here")
    (tmp_path / "head").mkdir()
    save_head(tmp_path / "head", make("eagle3", config, host.tables), "eagle3", host.sha256, torch.bfloat16)
    return tmp_path / "head"


def test_a_head_is_exported_and_imported(pair, head, tmp_path, capsys):
    theirs, back = tmp_path / "theirs", tmp_path / "back"
    target = ["--target", str(pair.target), "--json"]
    assert (
        main(
            ["head", "export", str(head), str(theirs), "--as", "speculators", "--name", "org/target", *target]
        )
        == 0
    )
    done = json.loads(capsys.readouterr().out)
    assert (done["network"], done["layout"]) == ("eagle3", "speculators")
    assert done["difference"] <= 1e-5
    assert (
        json.loads((theirs / "config.json").read_text())["speculators_config"]["verifier"]["name_or_path"]
        == "org/target"
    )
    assert main(["head", "import", str(theirs), str(back), *target]) == 0
    assert json.loads(capsys.readouterr().out)["out"] == str(back)
    assert json.loads((back / "config.json").read_text()) == json.loads((head / "config.json").read_text())


def test_a_head_is_shown_without_its_target(head, capsys):
    assert main(["head", "show", str(head), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["network"], facts["draft_vocabulary"], facts["dtype"]) == ("eagle3", 88, "bfloat16")
    assert main(["head", "show", str(head)]) == 0
    shown = capsys.readouterr().out
    assert f"{facts['parameters']:,} of its own" in shown
    assert "intermediate_size 24" in shown


def test_bad_input_is_one_sentence_and_leaves_nothing(pair, head, tmp_path, capsys):
    bad = [
        "head",
        "export",
        str(head),
        str(tmp_path / "theirs"),
        "--as",
        "medusa",
        "--target",
        str(pair.target),
    ]
    assert main(bad) == 2
    assert "it fits into eagle and speculators" in capsys.readouterr().err
    assert not (tmp_path / "theirs").exists()
    assert main(["head", "show", str(tmp_path / "nothing")]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
