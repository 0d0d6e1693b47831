"""`crossdraft head` on a tiny target: shown, exported, imported, refused."""

import json

import pytest
import torch

from crossdraft.cli.head import target_and_host
from crossdraft.cli.main import main
from crossdraft.engine.loop import DecodeLoop
from crossdraft.engine.request import Request
from crossdraft.engine.runner.runner import DraftRunner
from crossdraft.engine.sampling import Sampling
from crossdraft.heads.files import config_of, make, save_head
from crossdraft.heads.load import load_head_drafter
from crossdraft.load import load_target


@pytest.fixture
def head(pair, tmp_path):
    """An EAGLE-3 for the tiny target."""
    host = target_and_host(str(pair.target))[1]
    values = {**host.sizes, "draft_ids": tuple(range(2, 90)), "heads": 2, "kv_heads": 1, "head_dim": 16}
    config = config_of("eagle3", values | {"intermediate_size": 24, "steps": 3}, "here")
    (tmp_path / "head").mkdir()
    save_head(tmp_path / "head", make("eagle3", config, host.shared), "eagle3", host.sha256, torch.bfloat16)
    return tmp_path / "head"


def test_a_head_is_exported_and_imported(pair, head, tmp_path, capsys, monkeypatch):
    theirs, back = tmp_path / "theirs", tmp_path / "back"
    target = ["--target", str(pair.target), "--json"]
    assert (
        main(["train", "export", str(head), str(theirs), "--as", "speculators", "--name", "org/target", *target]) == 0
    )
    done = json.loads(capsys.readouterr().out)
    assert (done["network"], done["layout"]) == ("eagle3", "speculators")
    assert done["difference"] <= 1e-5
    assert (
        json.loads((theirs / "config.json").read_text())["speculators_config"]["verifier"]["name_or_path"]
        == "org/target"
    )
    assert main(["head", "import", str(theirs), str(back), *target]) == 0
    done = json.loads(capsys.readouterr().out)
    assert done["out"] == str(back)
    assert done["probe"]["answers"] == 8
    assert done["probe"]["fits"] is (done["probe"]["tau"] >= 1.1)
    assert json.loads((back / "config.json").read_text()) == json.loads((head / "config.json").read_text())
    monkeypatch.setattr("crossdraft.heads.probe.TOKENS", 1)
    assert main(["head", "import", str(theirs), str(tmp_path / "untried"), *target]) == 0
    assert json.loads(capsys.readouterr().out)["probe"] == {
        "answers": 0, "tau": None, "why": "the answers are too short, nothing was drafted."
    }  # fmt: skip
    assert main(["head", "import", str(theirs), str(tmp_path / "untold"), *target[:2]]) == 0
    assert "It was not tried: the answers are too short, nothing was drafted." in capsys.readouterr().out
    corrected = ["--rope-theta", "500", "--levels", "0,1,2", "--no-probe"]
    assert main(["head", "import", str(theirs), str(tmp_path / "corrected"), *target, *corrected]) == 0
    config = json.loads((tmp_path / "corrected" / "config.json").read_text())["config"]
    assert (config["rope_theta"], config["levels"]) == (500.0, [0, 1, 2])
    assert json.loads(capsys.readouterr().out)["probe"] is None


def test_a_folder_or_option_that_cannot_be_is_refused_before_the_target_is_loaded(pair, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("crossdraft.cli.head.target_and_host", None)  # calling it would fail in another way
    theirs, config = tmp_path / "theirs", {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama"}

    def refused(*options: str, **words: object) -> str:
        theirs.mkdir(exist_ok=True)
        (theirs / "config.json").write_text(json.dumps(config | words))
        assert main(["head", "import", str(theirs), str(tmp_path / "out"), "--target", str(pair.target), *options]) == 2
        return capsys.readouterr().err

    for levels in ("high", "1,", "1,1,1", "3,2,1"):
        assert f"--levels is '{levels}'; give numbers of layers, ascending" in refused("--levels", levels)
    assert "--rope-theta is nan; give a positive number" in refused("--rope-theta", "nan")
    assert "key_of_tomorrow = 1, a key that we do not know" in refused(key_of_tomorrow=1)
    assert "target whose hidden_size is 7; this one's is" in refused(hidden_size=7)
    assert "describes ['DominoDraftModel'], which is no head that we can read" in refused(
        architectures=["DominoDraftModel"]
    )
    assert "speculators_model_type = 'mtp'" in refused(speculators_model_type="mtp")
    dflash = {"architectures": ["DFlashDraftModel"], "model_type": "qwen3"}
    assert "key_of_tomorrow = 1, a key" in refused(**dflash, key_of_tomorrow=1)
    assert "target whose num_target_layers is 70; this one's is" in refused(**dflash, num_target_layers=70)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "note").touch()
    assert "is there already; name a new folder" in refused()


@pytest.mark.parametrize(("method", "network"), [("eagle1", "eagle"), ("eagle2", "eagle"), ("medusa", "medusa")])
def test_an_imported_head_that_knows_all_words_drafts_for_a_model_that_sees(pair, clip, tmp_path, method, network):
    """Its draft vocabulary holds the placeholders too; how often its drafts are taken, nobody has measured."""
    ours, theirs, back = (tmp_path / name for name in ("ours", "theirs", "back"))
    host, target = target_and_host(str(pair.target))[1], load_target(str(pair.target), "cpu", "float64", packed=False)
    values = {**host.sizes, "draft_ids": tuple(range(2, 90)), "steps": 3}
    if network == "eagle":
        values |= {"heads": 2, "kv_heads": 1, "head_dim": 16, "intermediate_size": 24}
    ours.mkdir()
    made = make(network, config_of(network, values, "here"), host.shared)
    save_head(ours, made, network, host.sha256, torch.float32)
    named = ["--target", str(pair.target)]
    assert main(["train", "export", str(ours), str(theirs), "--as", network, *named]) == 0
    assert main(["head", "import", str(theirs), str(back), *named]) == 0
    drafter = load_head_drafter(method, target, str(pair.target), back, banned=sorted(target.reserved))
    assert set(drafter.ids) & set(target.reserved)
    for sampling in (Sampling(), Sampling(temperature=1.0, seed=2)):
        request = Request("What is ahead?", str(clip.video), max_new_tokens=12, sampling=sampling)
        runner = DraftRunner(drafter, "off")
        (found,) = DecodeLoop(target, runner, adaptive=False, nodes=6).generate([request])
        assert found.stats.drafted > 0
        assert not found.notes
        if sampling.greedy:
            assert found.tokens == DecodeLoop(target).generate([request])[0].tokens


def test_a_head_is_shown_without_its_target(head, capsys):
    assert main(["head", "show", str(head), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["network"], facts["draft_vocabulary"], facts["dtype"]) == ("eagle3", 88, "bfloat16")
    assert main(["head", "show", str(head)]) == 0
    shown = capsys.readouterr().out
    assert f"{facts['parameters']:,} of its own" in shown
    assert "intermediate_size 24" in shown


def test_bad_input_is_one_sentence_and_leaves_nothing(pair, head, tmp_path, capsys):
    bad = ["train", "export", str(head), str(tmp_path / "theirs"), "--as", "medusa", "--target", str(pair.target)]
    assert main(bad) == 2
    assert "it fits into eagle and speculators" in capsys.readouterr().err
    assert not (tmp_path / "theirs").exists()
    assert main(["head", "show", str(tmp_path / "nothing")]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_export_says_where_it_went(capsys):
    assert main(["head", "export", "folder", "--as", "eagle"]) == 2
    assert "crossdraft train export" in capsys.readouterr().err
