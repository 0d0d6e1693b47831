"""`crossdraft train medusa2`: from a target and its head to another target and its own."""

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file

from crossdraft.cli.main import main
from crossdraft.errors import CrossdraftError
from crossdraft.files import fingerprint
from crossdraft.heads.files import save_head
from crossdraft.heads.networks.base import SharedWeights
from crossdraft.load import load_target
from crossdraft_lab.train.core.trainer import Trainer
from tests.support import ClipPaths, PairPaths
from tests.train.heads.small import medusa_for

QUICK = (
    "optim.steps=4", "optim.decay_steps=0", "optim.warmup_steps=0", "optim.clips=2", "optim.checkpoint_every=2",
    "optim.learning_rate=0.02", "optim.ema=0.5", "rank=4", "threads=1", "measure.pairs=0",
)  # fmt: skip
MEASURED = ("measure.pairs=2", "measure.nodes=8", "measure.chain=2", "measure.depth=2", "measure.ranks=2")


@pytest.fixture(scope="module")
def heads(pair: PairPaths, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Medusa and an EAGLE-3 for the pair's target."""
    tables = SharedWeights.of(load_target(str(pair.target), "cpu", packed=False).model)
    folder = tmp_path_factory.mktemp("heads")
    for network in ("medusa", "eagle3"):
        (folder / network).mkdir()
        save_head(folder / network, medusa_for(tables, network), network, fingerprint(pair.target))
    return folder


def train(pair: PairPaths, head: Path | None, out: Path, *more: str, online: int = 1) -> int:
    where = ["--target", str(pair.target), "--out", str(out), "--device", "cpu", "--online", str(online), "--json"]
    return main(["train", "medusa2", *QUICK, *more, *where, *(["--head", str(head)] if head else [])])


def test_a_new_target_and_its_head_draft_losslessly(
    pair: PairPaths, heads: Path, clip: ClipPaths, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    out, old = tmp_path / "run", fingerprint(pair.target)
    assert train(pair, heads / "medusa", out, *MEASURED) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["steps"] == 4
    assert report["answers"] == 2
    assert 0 <= report["kept"] <= 2
    assert report["before"].keys() == report["engine"].keys() == {"chain", "medusa, T=0", "medusa, T=1"}
    new = fingerprint(out / "target")
    assert fingerprint(pair.target) == old != new
    assert {path.name for path in (out / "head").iterdir()} == {
        "README.md", "acceptance.json", "config.json", "model.safetensors", "provenance.json"
    }  # fmt: skip
    data = json.loads((out / "head" / "provenance.json").read_text())["data"]
    assert (data["target"], data["new_target"], data["online_scenes"]) == (old, new, 1)
    kept = f"Of 2 answers to questions about validation scenes, **{report['kept']} are still"
    assert kept in (out / "head" / "README.md").read_text()
    command = ["ask", "What is ahead?", "--video", str(clip.video), "--max-new-tokens", "12", "--device", "cpu"]
    answers = []
    for drafter in ("none", f"medusa:dir={out / 'head'}", f"medusa:dir={out / 'head'},tree=chain"):
        assert main([*command, "--json", "--target", str(out / "target"), "--drafter", drafter]) == 0
        answers.append(json.loads(capsys.readouterr().out)["text"])
    assert len(set(answers)) == 1
    assert main([*command, "--target", str(pair.target), "--drafter", f"medusa:dir={out / 'head'}"]) == 2
    assert "trained for another target" in capsys.readouterr().err


def test_an_interrupted_training_ends_as_an_unbroken_one(
    pair: PairPaths, heads: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = Trainer.save

    def once(self: Trainer) -> None:
        save(self)
        raise CrossdraftError("The light went out.")

    assert train(pair, heads / "medusa", tmp_path / "whole") == 0
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "save", once)
        assert train(pair, heads / "medusa", tmp_path / "broken") == 2
    assert not (tmp_path / "broken" / "target").exists()
    assert train(pair, heads / "medusa", tmp_path / "broken") == 0
    for part in ("target", "head"):
        weights = [(tmp_path / run / part / "model.safetensors").read_bytes() for run in ("whole", "broken")]
        assert weights[0] == weights[1]
    moved, old = (
        load_file(tmp_path / "whole" / "target" / "model.safetensors"),
        load_file(pair.target / "model.safetensors"),
    )
    assert {name.split(".")[-2] for name in old if not moved[name].equal(old[name])} == {
        "q_proj", "k_proj", "v_proj", "o_proj"
    }  # fmt: skip


def test_a_training_is_not_gone_on_with_from_another_beginning(
    pair: PairPaths, heads: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(pair, heads / "eagle3", tmp_path / "run") == 2  # nothing was begun
    assert train(pair, heads / "medusa", tmp_path / "run") == 0
    capsys.readouterr()
    for more, online, sentence in (((), 2, "online_scenes is 1, not 2"), (("rank=3",), 1, "rank is 4, not 3")):
        assert train(pair, heads / "medusa", tmp_path / "run", *more, online=online) == 2
        assert sentence in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("head", "more", "online", "sentence"),
    [
        (None, (), 1, "was trained for another target than"),
        ("eagle3", (), 1, "Eagle3 does not; take Medusa"),
        ("medusa", (), 0, "--online asks for 0 scenes; give 1 or more"),
        ("medusa", (), -3, "--online asks for -3 scenes; give 1 or more"),
        ("nowhere", (), 1, "nowhere; `crossdraft train` and `head import` write heads."),
        ("medusa", ("rnak=2",), 1, "did you mean 'rank'?"),
        ("medusa", ("loss.smooth_11=1",), 1, "did you mean 'smooth_l1'"),
        ("medusa", ("optim.learning_rate=1e30", "optim.clip_norm=1e30"), 1, "of the cycle through its clips"),
    ],
)
def test_what_cannot_learn_together_is_one_sentence(
    pair: PairPaths, heads: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], head, more, online, sentence
) -> None:
    capsys.readouterr()
    assert train(pair, head and heads / head, tmp_path / "run", *more, online=online) == 2
    assert sentence in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "run" / "target").exists()
    assert not (tmp_path / "run" / "head").exists()
