"""Checkpoints with random weights: the hub's files and names, whole or absent, and they load, convert and answer."""

import json
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from safetensors import safe_open
from transformers import AutoTokenizer

import crossdraft as cd
from crossdraft.cli.main import main
from crossdraft.errors import CrossdraftError
from crossdraft.load import load_target
from crossdraft.models.eventgpt import convert_eventgpt
from crossdraft_lab.bench.scale_checkpoint import (
    SHAPES,
    layout_of,
    llama_tokenizer,
    planned,
    random_weight,
    write_checkpoint,
)
from tests.support import ClipPaths


class Disk(NamedTuple):
    free: float


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A tiny Video-LLaVA, and a tiny EventGPT in the official layout."""
    folder = tmp_path_factory.mktemp("random")
    for name in ("video-llava-tiny", "eventgpt-tiny"):
        write_checkpoint(name, folder / name)
    return folder / "video-llava-tiny", folder / "eventgpt-tiny"


def stored(folder: Path) -> dict[str, torch.Tensor]:
    """Every tensor, by the file that the index names."""
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    found: dict[str, torch.Tensor] = {}
    for key, file in index["weight_map"].items():
        with safe_open(folder / file, framework="pt") as opened:
            found[key] = opened.get_tensor(key)
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in found.values())
    return found


@pytest.mark.parametrize(
    ("name", "gigabytes", "files", "first", "last"),
    [
        ("video-llava-7b", 14.73, 3, "image_tower.vision_model.embeddings.class_embedding", "language_model.lm_head"),
        ("eventgpt-7b", 14.16, 3, "model.visual_tower.visual_tower.vision_model.embeddings", "lm_head.weight"),
    ],
)
def test_the_real_shapes(name: str, gigabytes: float, files: int, first: str, last: str) -> None:
    plan = planned(layout_of(name))
    keys = [key for file in plan.values() for key in file]
    assert round(sum(2 * tensor.numel() for file in plan.values() for tensor in file.values()) / 1e9, 2) == gigabytes
    assert list(plan) == [f"model-{i + 1:05}-of-{files:05}.safetensors" for i in range(files)]
    for wanted in (first, last):
        assert any(key.startswith(wanted) for key in keys), wanted
    layers = {key.partition(".layers.")[2].partition(".")[0] for key in keys if "input_layernorm" in key}
    assert len(layers) == 32
    rows = {tensor.shape[0] for file in plan.values() for key, tensor in file.items() if "embed_tokens" in key}
    assert rows == ({32064} if name.startswith("video") else {32000})


def test_the_vocabulary_has_the_real_size_and_its_special_ids() -> None:
    tokenizer = llama_tokenizer(32000, ["<image>", "<video>", "<pad>"])
    ids = {token: tokenizer.token_to_id(token) for token in ("<unk>", "<s>", "</s>", "<0x00>", "<0x0A>", "<image>")}
    assert ids == {"<unk>": 0, "<s>": 1, "</s>": 2, "<0x00>": 3, "<0x0A>": 13, "<image>": 32000}
    assert (tokenizer.token_to_id("<video>"), tokenizer.token_to_id("<pad>")) == (32001, 32002)
    text = "What is the car in front doing?\nIt is 火."  # the line's end and 火 are no pieces: bytes stand for them
    encoded = tokenizer.encode(text)
    assert encoded.ids[0] == 1
    assert 13 in encoded.ids
    assert tokenizer.decode(encoded.ids) == text
    with pytest.raises(CrossdraftError, match="at least 354 ids"):
        llama_tokenizer(353)


def test_video_llava_loads_with_its_special_tokens(folders: tuple[Path, Path]) -> None:
    target = load_target(str(folders[0]), "cpu", "bfloat16", packed=False)
    tokenizer = AutoTokenizer.from_pretrained(str(folders[0]))
    assert tokenizer.convert_tokens_to_ids(["<image>", "<video>", "<pad>"]) == [480, 481, 482]
    assert target.eos == frozenset({2})
    assert {0, 1, 480, 481, 482, *range(483, 512)} <= set(target.reserved)
    weights = stored(folders[0])
    ours = target.model.state_dict()
    assert len(weights) == len(ours)
    for name, stored_name in (
        ("lm_head.weight", "language_model.lm_head.weight"),
        ("model.language_model.layers.1.mlp.up_proj.weight", "language_model.model.layers.1.mlp.up_proj.weight"),
        (
            "model.video_tower.encoder.layers.0.self_attn.q_proj.weight",
            "video_tower.vision_model.encoder.layers.0.self_attn.q_proj.weight",
        ),
    ):
        assert torch.equal(ours[name], weights[stored_name])


def test_the_pair_answers_and_drafts_losslessly(folders: tuple[Path, Path], clip: ClipPaths, tmp_path: Path) -> None:
    """EventGPT goes through the converter; its `<event>` lies at the id of `<image>`, and is no text of either."""
    converted = tmp_path / "event"
    done = convert_eventgpt(folders[1], converted)
    assert done.tokens == {"<event>": 480}
    assert (done.rows_read, done.rows_written, done.dtype) == (480, 481, "bfloat16")
    options = cd.Options(device="cpu", dtype="float32", placement="inline")
    request = cd.Request(video=clip.video, events=clip.events, prompt="What is ahead?", max_new_tokens=12)
    with cd.Engine.load(folders[0], converted, options) as engine:
        answer = engine.generate(request)
        assert answer.drafter_error is None
        assert answer.tokens == engine.alone(request).tokens
        assert len(answer.tokens) == 12


def test_one_seed_gives_one_checkpoint_and_weights_keep_the_scale(folders: tuple[Path, Path], tmp_path: Path) -> None:
    write_checkpoint("video-llava-tiny", tmp_path / "same")
    write_checkpoint("video-llava-tiny", tmp_path / "other", seed=1)
    first, same, other = (stored(folder) for folder in (folders[0], tmp_path / "same", tmp_path / "other"))
    key = "language_model.model.layers.0.mlp.down_proj.weight"
    assert torch.equal(first[key], same[key])
    assert not torch.equal(first[key], other[key])
    assert first[key].dtype is torch.bfloat16
    assert first["language_model.model.norm.weight"].unique().tolist() == [1]
    drawn = random_weight("mlp.down_proj.weight", (400, 256), torch.Generator().manual_seed(0))
    assert drawn.float().std().item() == pytest.approx(1 / 16, rel=0.02)


def test_an_interrupt_leaves_nothing(tmp_path: Path) -> None:
    def interrupt(file: str, count: int) -> None:
        if file.startswith("model-00002"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_checkpoint("video-llava-tiny", tmp_path / "new", on_bytes=interrupt)
    assert list(tmp_path.iterdir()) == []


def test_what_exists_stays_unless_forced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    out.mkdir()  # an empty folder is as good as none
    command = ["scale", "checkpoint", "--config", "eventgpt-tiny", str(out)]
    assert main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["parameters"] == 631_232
    assert main(command) == 2
    assert "add --force" in capsys.readouterr().err
    (out / "stale").write_text("")
    assert main([*command, "--force"]) == 0
    assert not (out / "stale").exists()
    (out / "config.json").unlink()
    assert main([*command, "--force"]) == 2  # it may be anything
    assert "holds no checkpoint" in capsys.readouterr().err
    assert (out / "tokenizer.json").exists()


def test_refusals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CrossdraftError, match="Unknown config '7b'; choose one of video-llava-7b, "):
        write_checkpoint("7b", tmp_path / "new")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Disk(free=14.8e9))
    with pytest.raises(CrossdraftError, match=r"needs 14\.7 GB, but .* has 14\.8 GB free"):  # settings need some, too
        write_checkpoint("video-llava-7b", tmp_path / "deep" / "new")
    assert list(tmp_path.iterdir()) == []
    assert set(SHAPES) == {
        f"{kind}-{size}" for kind in ("video-llava", "eventgpt") for size in ("7b", "small", "tiny")
    } | {"video-llava-0.5b"}
