"""`crossdraft train METHOD`: from a capture to a head that drafts, and every way of doing it wrong."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from crossdraft.cli.main import main
from crossdraft.errors import CrossdraftError
from crossdraft_lab.cli.train import _taken
from crossdraft_lab.train.capture.store import CaptureStore
from crossdraft_lab.train.core.trainer import Trainer
from tests.support import ClipPaths, PairPaths, encodes_clips
from tests.train.capture.both import capture_both

SMALL = (
    "config.heads=2", "config.kv_heads=2", "config.head_dim=8", "config.intermediate_size=16", "config.steps=2",
    "optim.steps=6", "optim.decay_steps=0", "optim.warmup_steps=1", "optim.clips=4", "optim.checkpoint_every=3",
    "measure.pairs=2", "measure.nodes=8", "measure.chain=3", "measure.depth=2", "measure.ranks=2", "threads=1",
)  # fmt: skip


@pytest.fixture(scope="module")
def captured(pair: PairPaths, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("capture") / "store"
    settings = "--clips 2 --prompts 4 --max-new-tokens 12 --workers 0 --device cpu --shard-clips 1 --json"
    return capture_both(pair, out, settings)


def train(pair: PairPaths, captured: Path, out: Path, *more: str, method: str = "eagle") -> int:
    validation = captured.with_name("validation")
    where = ["--capture", str(captured), "--kept-back", str(validation), "--target", str(pair.target)]
    return main(["train", method, *where, *more, "--out", str(out), "--device", "cpu", "--json"])


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Runs a training that is stopped after its first checkpoint."""

    def interrupt(run: Callable[..., int], *args: Any) -> None:
        save = Trainer.save

        def once(self: Trainer) -> None:
            save(self)
            raise CrossdraftError("The light went out.")

        with monkeypatch.context() as patch:
            patch.setattr(Trainer, "save", once)
            assert run(*args) == 2

    return interrupt


def test_from_a_capture_to_a_head_that_drafts(
    pair: PairPaths, clip: ClipPaths, captured: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert train(pair, captured, tmp_path / "run", *SMALL) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["steps"] == 6
    assert {"chain", "eagle1, T=0", "eagle2, T=0", "eagle2, T=1"} <= report["engine"].keys()
    ways = report["engine"].values()
    # Near an answer's end fewer drafts are deep, so that their shares are larger.
    assert all(found["tau"] <= 1 + sum(found["per_position"]) + 0.01 for found in ways)
    assert max(found["tau"] for found in ways) > 1
    head = tmp_path / "run" / "head"
    names = {"README.md", "acceptance.json", "config.json", "model.safetensors", "provenance.json"}
    assert {path.name for path in head.iterdir()} == names
    provenance = json.loads((head / "provenance.json").read_text())
    assert provenance["recipe"]["network"] == "eagle"
    assert provenance["data"]["answers"] == 8
    command = ["ask", "What is ahead?", "--video", str(clip.video), "--target", str(pair.target)]
    command += ["--max-new-tokens", "12", "--json", "--device", "cpu"]
    answers = {}
    for drafter in ("none", f"eagle2:dir={head}", f"eagle1:dir={head}", f"union:(eagle2:dir={head}),memory"):
        assert main([*command, "--drafter", drafter]) == 0
        answers[drafter] = json.loads(capsys.readouterr().out)["text"]
    assert len(set(answers.values())) == 1


@pytest.mark.parametrize(("method", "levels"), [("eagle3", {"levels": [2, 1, 1]}), ("dflash", {"read_layers": [1, 2]})])
def test_sizes_that_the_recipe_leaves_open_are_the_targets(
    pair: PairPaths, captured: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], method, levels
) -> None:
    """A default capture holds the layers that a default head reads; their scales are measured on it."""
    run, quick = tmp_path / "run", (*SMALL[4:], "measure.pairs=0", "optim.bf16=false")
    assert train(pair, captured, run, *quick, method=method) == 0
    text = json.loads((pair.target / "config.json").read_text())["text_config"]
    config = json.loads((run / "head" / "config.json").read_text())["config"]
    names = {"hidden_size": "hidden_size", "intermediate_size": "intermediate_size", "vocab_size": "vocab_size"}
    names |= {"heads": "num_attention_heads", "kv_heads": "num_key_value_heads", "num_layers": "num_hidden_layers"}
    assert {ours: config[ours] for ours in names} == {ours: text[theirs] for ours, theirs in names.items()}
    assert {name: config[name] for name in levels} == levels
    store = CaptureStore.open(captured)
    rows = [store.answer(answer, [1]).hidden[1].float() for answer in range(len(store))]
    size = float(torch.cat(rows).square().mean().sqrt())
    scale = dict(zip(next(iter(levels.values())), config["level_scales"], strict=True))[1]
    assert scale == pytest.approx(1 / size, rel=0.2)


def test_levels_are_given_as_lists_are_in_recipes_and_each_line_is_logged_once(
    pair: PairPaths, captured: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    quick = (*SMALL, "measure.pairs=0", "config.levels=2,1,2", "config.level_scales=0.5,1e-1,1")
    assert train(pair, captured, tmp_path / "run", *quick, method="eagle3") == 0
    config = json.loads((tmp_path / "run" / "head" / "config.json").read_text())["config"]
    assert (config["levels"], config["level_scales"]) == ([2, 1, 2], [0.5, 0.1, 1.0])
    printed = [line.split(" ", 1)[1] for line in capsys.readouterr().err.splitlines() if line[2:3] == ":"]
    assert [line.partition(" loss")[0] for line in printed[:1]] == ["train 3/6"]
    assert sum(line.startswith("train 6: validation ") for line in printed) == 1
    assert len({line.split(" ")[1] for line in printed if " tau " in line}) == 2  # checks after steps 3 and 6
    assert sum(" tau " in line for line in printed) == 2


# Heads whose lessons are made otherwise, and how little of each is enough to see it work.
OTHERS = {"event_medusa": ("config.width=16", "config.steps=3"), "glance": ("config.intermediate_size=16",)}
FEW = (*SMALL[5:], "optim.ema=0.5")  # without the sizes of a decoder


def train_other(pair: PairPaths, captured: Path, out: Path, method: str, *more: str) -> int:
    event = ["--event", str(pair.event)]
    return train(pair, captured, out, *FEW, *OTHERS[method], *more, *event, method=method)


@pytest.mark.parametrize(
    "method", [pytest.param(name, marks=encodes_clips) if name == "glance" else name for name in OTHERS]
)
def test_heads_that_read_no_features_learn_and_draft(
    pair: PairPaths, clip: ClipPaths, captured: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], method: str
) -> None:
    capsys.readouterr()
    assert train_other(pair, captured, tmp_path / "run", method, "optim.ema=0") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["engine"].keys() == {"hidden", "rounds"}
    kept_back = report["kept_back"]
    assert kept_back["tau"] >= 1 + kept_back["right_0" if method == "glance" else "right_1"] - 1e-6
    log = [json.loads(line) for line in (tmp_path / "run" / "train.log.jsonl").read_text().splitlines()]
    losses = [entry["loss"] for entry in log if "loss" in entry]
    assert losses[-1] < losses[0]
    head = tmp_path / "run" / "head"
    assert {path.name for path in head.iterdir()} == {
        "README.md", "config.json", "model.safetensors", "provenance.json"
    }  # fmt: skip
    assert "| hidden |" in (head / "README.md").read_text()
    command = ["ask", "What is ahead?", "--video", str(clip.video), "--events", str(clip.events)]
    command += ["--target", str(pair.target), "--max-new-tokens", "12", "--json", "--device", "cpu"]
    answers = {}
    for drafter in ("none", f"{method}:dir={head},model={pair.event}"):
        assert main([*command, "--drafter", drafter]) == 0
        answers[drafter] = json.loads(capsys.readouterr().out)["text"]
    assert len(set(answers.values())) == 1


@pytest.mark.parametrize("method", OTHERS)
def test_they_too_go_on_where_they_stopped(
    pair: PairPaths, captured: Path, tmp_path: Path, interrupted: Callable[..., None], method: str
) -> None:
    assert train_other(pair, captured, tmp_path / "whole", method, "measure.pairs=0") == 0
    interrupted(train_other, pair, captured, tmp_path / "broken", method, "measure.pairs=0")
    assert not (tmp_path / "broken" / "head").exists()
    assert train_other(pair, captured, tmp_path / "broken", method, "measure.pairs=0") == 0
    weights = [(tmp_path / run / "head" / "model.safetensors").read_bytes() for run in ("whole", "broken")]
    assert weights[0] == weights[1]


@pytest.mark.parametrize(
    ("method", "more", "sentence"),
    [
        ("event_medusa", ("config.head=2",), "has no setting 'head'"),
        ("event_medusa", ("optim.accumulate=2",), "set optim.accumulate to 1"),
    ],
)
def test_what_they_cannot_be_taught_is_one_sentence(
    pair: PairPaths, captured: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], method, more, sentence
) -> None:
    capsys.readouterr()
    assert train_other(pair, captured, tmp_path / "run", method, *more) == 2
    assert sentence in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "run" / "head").exists()


@encodes_clips
def test_an_adapter_on_the_vision_side_learns_gets_a_gate_and_drafts(
    pair: PairPaths, clip: ClipPaths, captured: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The gate's clips are those of the validation capture, which the adapter was not trained on: 10 and 5 of 15."""
    settings = "--split validation --clips 15 --prompts 2 --max-new-tokens 6 --workers 0 --device cpu --json"
    store = tmp_path / "validation"
    assert main(["capture", str(store), "--target", str(pair.target), *settings.split()]) == 0
    few = (*FEW, "config.width=64", "config.layers=1", "feature_steps=2", "optim.clips=2")
    where = ["--capture", str(captured), "--validation", str(store), "--target", str(pair.target), "--json"]
    where += ["--event", str(pair.event), "--out", str(tmp_path / "run"), "--device", "cpu"]
    assert main(["train", "vision_queries", *where, *few]) == 0
    head = tmp_path / "run" / "head"
    assert {"gate.safetensors", "model.safetensors", "config.json"} <= {path.name for path in head.iterdir()}
    figures = json.loads((head / "gate.json").read_text())
    weights = load_file(head / "gate.safetensors")
    assert figures["clips"] == len(weights["lost"]) == len(weights["sure"]) == 5
    assert figures["lost"] == pytest.approx(float(weights["lost"].mean()), abs=1e-4)
    command = ["ask", "What is ahead?", "--video", str(clip.video), "--events", str(clip.events)]
    command += ["--target", str(pair.target), "--max-new-tokens", "12", "--json", "--device", "cpu"]
    texts = set()
    for drafter in ("none", f"predicted:dir={head},model={pair.event}"):
        capsys.readouterr()
        assert main([*command, "--drafter", drafter]) == 0
        texts.add(json.loads(capsys.readouterr().out)["text"])
    assert len(texts) == 1


@encodes_clips
def test_a_packer_learns_and_a_compressed_target_reads_it(
    pair: PairPaths, captured: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both phases; an unknown clip's answers are then measured beside the target's own."""
    capsys.readouterr()
    assert train(pair, captured, tmp_path / "run", *FEW, "feature_steps=3", method="token_packer") == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["kept_back"]["prefix"] >= 0
    log = [json.loads(line) for line in (tmp_path / "run" / "train.log.jsonl").read_text().splitlines()]
    assert ["kl" in line for line in log if "check" not in line] == [False] * 3 + [True] * 3
    config = json.loads((tmp_path / "run" / "head" / "config.json").read_text())["config"]
    assert (config["side"], config["class_token"], config["levels"]) == (2, True, [0, 1])
    models = ["--target", str(pair.target), "--device", "cpu", "--pairs", "2", "--max-new-tokens", "6"]
    packed = f"token_packer:dir={tmp_path / 'run' / 'head'}"
    assert main(["bench", "compression", *models, "--drafter", "none", "--compress", packed, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert packed in json.dumps(rows)


@encodes_clips
@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ("config.levels=[0]", "The last of a packer's levels must be 1, which the target's projector reads; it is 0."),
        ("config.levels=[1,1]", "hidden states that ascend; not [1, 1]"),
        ("config.factor=3", "2 x 2 patches cannot be packed by 3"),
        ("config.heads=5", "5 attention heads do not divide 16 features"),
    ],
)
def test_a_packer_that_cannot_be_is_one_sentence(
    pair: PairPaths, captured: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: str, sentence: str
) -> None:
    capsys.readouterr()
    assert train(pair, captured, tmp_path / "run", *FEW, more, method="token_packer") == 2
    assert sentence in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "run" / "head").exists()


@pytest.mark.parametrize("method", OTHERS)
def test_they_learn_from_captures_alone(
    pair: PairPaths, tmp_path: Path, capsys: pytest.CaptureFixture[str], method: str
) -> None:
    where = ["--online", "2", "--target", str(pair.target), "--event", str(pair.event), "--device", "cpu"]
    assert main(["train", method, *where, "--out", str(tmp_path / "run")]) == 2
    assert "give --capture FOLDER instead of --online" in capsys.readouterr().err


def test_an_interrupted_training_ends_as_an_unbroken_one(
    pair: PairPaths, captured: Path, tmp_path: Path, interrupted: Callable[..., None]
) -> None:
    quick = (*SMALL, "measure.pairs=0", "optim.ema=0.5")
    assert train(pair, captured, tmp_path / "whole", *quick) == 0
    interrupted(train, pair, captured, tmp_path / "broken", *quick)
    assert not (tmp_path / "broken" / "head").exists()
    assert train(pair, captured, tmp_path / "broken", *quick) == 0
    weights = [(tmp_path / run / "head" / "model.safetensors").read_bytes() for run in ("whole", "broken")]
    assert weights[0] == weights[1]


@pytest.mark.parametrize(
    ("more", "method", "sentence"),
    [
        (("config.head=2",), "eagle", "no setting 'head'; did you mean 'heads'?"),
        (("optim.step=2",), "eagle", "unknown key 'optim.step'; did you mean 'optim.steps'?"),
        (("network=eagel",), "eagle", "did you mean 'eagle'?"),
        (("config.levels=[0,1,2]",), "eagle3", "lacks layer 0"),
        (("config.levels=2,4,6",), "eagle3", "Layer 4 is outside the target"),
        (("config.steps=abc",), "eagle", "'steps' of the network 'eagle' must be a whole number, not 'abc'"),
        (("config.kv_heads=0",), "eagle", "kv_heads is 0; it must be at least 1"),
        (("optim.learning_rate=1e30", "optim.clip_norm=1e30"), "eagle", "answers"),
    ],
)
def test_what_cannot_be_trained_is_one_sentence(
    pair: PairPaths, captured: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], more, method, sentence
) -> None:
    capsys.readouterr()
    assert train(pair, captured, tmp_path / "run", *SMALL, *more, method=method) == 2
    printed = capsys.readouterr().err.splitlines()[-1]
    assert sentence in printed
    assert not (tmp_path / "run" / "head").exists()


def test_validation_answers_that_are_learned_from_are_refused_before_a_model_is_loaded(
    pair: PairPaths, captured: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("crossdraft_lab.train.heads.run.load_target")
    into = ["--target", str(pair.target), "--out", str(tmp_path / "run"), "--device", "cpu"]
    where = ["--capture", str(captured), *into]
    for method, same in (("eagle", captured), ("l4", captured), ("vision_queries", captured)):
        assert main(["train", method, *where, "--validation", str(same)]) == 2
        assert f"One capture, {captured}, is named for training and validation" in capsys.readouterr().err
    copy = shutil.copytree(captured, tmp_path / "copy")
    assert main(["train", "eagle", *where, "--validation", str(copy)]) == 2
    assert "both hold scene 0 of the train split" in capsys.readouterr().err
    assert main(["train", "eagle", "--online", "2", *into, "--validation", str(captured)]) == 2
    assert f"the training and the capture {captured} both hold scene 0" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_what_the_kept_back_answers_lack_is_missed_before_the_first_step(
    pair: PairPaths, captured: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    poor, run = tmp_path / "poor", tmp_path / "run"
    settings = "--split validation --clips 1 --prompts 1 --max-new-tokens 4 --workers 0 --device cpu --layers 1"
    assert main(["capture", str(poor), "--target", str(pair.target), *settings.split()]) == 0
    capsys.readouterr()
    assert train(pair, captured, run, *SMALL, "--kept-back", str(poor)) == 2
    assert f"The capture {poor} lacks layer" in capsys.readouterr().err.splitlines()[-1]
    assert not (run / "train.log.jsonl").exists()


def test_a_network_that_no_drafter_serves_is_missed_before_the_first_step(
    pair: PairPaths, captured: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless nobody asks what it is worth."""
    monkeypatch.setattr("crossdraft_lab.train.heads.measure.METHODS", {})
    capsys.readouterr()
    assert train(pair, captured, tmp_path / "run", *SMALL) == 2
    assert "No drafter serves the network 'eagle'" in capsys.readouterr().err
    assert not (tmp_path / "run" / "train.log.jsonl").exists()
    assert train(pair, captured, tmp_path / "run", *SMALL, "measure.pairs=0") == 0


@pytest.mark.parametrize(
    ("network", "event", "sentence"),
    [
        ("eagle", "event", "--drafter takes it as eagle1:dir=run/head or eagle2:dir=run/head"),
        ("eagle", "mine", "--drafter takes it as eagle1:dir=run/head or eagle2:dir=run/head"),
        ("event_medusa", "event", "--drafter takes it as event_medusa:dir=run/head"),
        ("glance", "mine", "--drafter takes it as glance:dir=run/head,model=mine"),
        ("gated", "event", "no drafter serves the network 'gated' yet"),
    ],
)
def test_who_trained_a_head_learns_how_it_is_used(network: str, event: str, sentence: str) -> None:
    assert _taken(network, Path("run/head"), event).startswith(sentence)


def test_a_folder_of_another_training_is_refused_and_what_differs_is_named(
    pair: PairPaths, captured: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Finished or not: its weights must not be signed as this one's."""
    quick = (*SMALL, "measure.pairs=0")
    assert train(pair, captured, tmp_path / "run", *quick) == 0
    weights = (tmp_path / "run" / "head" / "model.safetensors").read_bytes()
    for change, sentence in (
        ("seed=1", "its seed is 0, not 1; choose another --out, or delete it."),
        ("loss.kl=1", "its loss.kl is left out, not 1.0"),
        ("optim.steps=9", "its optim.steps is 6, not 9"),
    ):
        capsys.readouterr()
        assert train(pair, captured, tmp_path / "run", *quick, change) == 2
        assert sentence in capsys.readouterr().err.splitlines()[-1]
    where = ["--online", "2", "--target", str(pair.target), "--out", str(tmp_path / "run"), "--device", "cpu"]
    assert main(["train", "eagle", *quick, *where]) == 2
    assert "its lessons.online_scenes is left out, not 2" in capsys.readouterr().err
    assert (tmp_path / "run" / "head" / "model.safetensors").read_bytes() == weights
    assert train(pair, captured, tmp_path / "run", *quick, "optim.checkpoint_every=2", "measure.pairs=1") == 0


def test_a_capture_of_another_target_teaches_nothing(
    pair: PairPaths, captured: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ["train", "eagle", "--capture", str(captured), "--out", str(tmp_path / "run"), "--device", "cpu"]
    assert main(args) == 2
    assert "belongs to another target" in capsys.readouterr().err


def test_batches_come_from_one_source(
    pair: PairPaths, captured: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "eagle", "--out", str(tmp_path / "run")]) == 2
    assert "give one of --capture FOLDER and --online SCENES" in capsys.readouterr().err


def test_online_a_target_teaches_without_a_store(
    pair: PairPaths, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--online", "2", "--target", str(pair.target), "--out", str(tmp_path / "run"), "--device", "cpu"]
    assert main(["train", "eagle", *SMALL, "optim.steps=2", *where, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["steps"] == 2
