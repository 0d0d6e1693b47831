"""`crossdraft capture`."""

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from crossdraft.cli.main import main
from crossdraft.load import load_target, target_fingerprint
from crossdraft_lab.train.capture.store import CaptureStore
from tests.support import ClipPaths, PairPaths


def command(pair: PairPaths, out: Path, *more: str) -> list[str]:
    """Three short answers about each of two scenes, by the tiny target."""
    settings = "--clips 2 --prompts 3 --max-new-tokens 8 --workers 0 --device cpu --shard-clips 1 --json"
    return ["capture", str(out), "--target", str(pair.target), *settings.split(), *more]


def test_capture_check_and_go_on(pair: PairPaths, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "store"
    assert main(command(pair, out)) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["clips"], report["answers"], report["total_answers"]) == (2, 6, 6)
    assert report["answers_per_s"] > 0
    store = CaptureStore.open(out, target_fingerprint(str(pair.target)))
    assert store.index.wanted.layers == (1, 2)
    assert store.index.wanted.visual_layers == (0, 2)
    assert store.index.bytes == report["total_bytes"]
    assert store.index.provenance[0]["versions"]
    assert main(command(pair, out)) == 0  # nothing is left to do
    assert json.loads(capsys.readouterr().out)["answers"] == 0
    assert main(["capture", str(out), "--check", "--target", str(pair.target), "--device", "cpu"]) == 0
    assert "2 shards OK. 6 random answers recomputed" in capsys.readouterr().out


def test_compare_says_how_fast_it_was(pair: PairPaths, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command(pair, tmp_path / "store", "--compare")) == 0
    found = json.loads(capsys.readouterr().out)["compare"]
    assert found["identical"] == found["answers"] == 6
    assert found["ratio"] > 0


def test_a_dry_run_only_says_what_it_would_take(
    pair: PairPaths, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "store"
    assert main(command(pair, out, "--dry-run")) == 0
    foretold = json.loads(capsys.readouterr().out)["needed"]
    assert not out.exists()
    assert main(command(pair, out)) == 0
    held = sum(path.stat().st_size for path in out.glob("*.safetensors"))
    assert 0.5 * held < foretold < 1.5 * held


def test_a_list_of_clips(pair: PairPaths, clip: ClipPaths, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    listed, out = tmp_path / "clips.jsonl", tmp_path / "store"
    listed.write_text(json.dumps({"video": str(clip.video), "prompt": ["What is it?", "Where is it?"]}))
    settings = ["--target", str(pair.target), "--device", "cpu", "--max-new-tokens", "6", "--list", str(listed)]
    assert main(["capture", str(out), *settings]) == 0
    printed = capsys.readouterr()
    assert "2 answers about 1 clips" in printed.out
    assert "will take about" in printed.err
    target = load_target(str(pair.target), "cpu")
    texts = [target.decode(tokens.tolist()) for tokens in CaptureStore.open(out).answer_tokens()]
    assert len(texts) == 2
    assert all(texts)
    assert main(["capture", str(out), "--check", "--target", str(pair.target), "--device", "cpu"]) == 0


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (["--layers", "2,9"], "Layer 9 is outside the target: its 2 layers have hidden states 0"),
        (["--visual-layers", "-4"], "Layer -4 is outside the target"),
        (["--layers", "2;4"], "--layers is '2;4'; write numbers with commas"),
        (["--split", "test"], "There is no learning from the split 'test'"),
        (["--batch", "0"], "--batch is 0; it must be at least 1"),
        (["--list", "nothing.jsonl"], "--prompts is for scenes, and --list names other clips"),
        (["--max-new-tokens", "9999"], "lower --max-new-tokens"),
        # An eighth of a kilobyte for each of 10^11 tokens and more: beyond any disk that this runs on.
        (["--clips", "1000000", "--prompts", "512", "--max-new-tokens", "380"], "lack; capture fewer"),
    ],
)
def test_bad_input_is_one_sentence_and_leaves_nothing(
    pair: PairPaths, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], sentence: str
) -> None:
    out = tmp_path / "store"
    assert main(command(pair, out, *more)) == 2
    printed = capsys.readouterr().err
    assert sentence in printed
    assert printed.count("\n") == 1
    assert not out.exists()


def test_an_unreadable_video_is_one_sentence(
    pair: PairPaths, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "noise.mp4").write_bytes(b"noise" * 100)
    listed = tmp_path / "clips.jsonl"
    listed.write_text(json.dumps({"video": "noise.mp4", "prompt": "What is it?"}))
    assert main(["capture", str(tmp_path / "store"), "--target", str(pair.target), "--list", str(listed)]) == 2
    assert f"Line 1 of {listed}: {tmp_path / 'noise.mp4'}" in capsys.readouterr().err
    assert not (tmp_path / "store").exists()


@pytest.fixture
def store(pair: PairPaths, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert main(command(pair, tmp_path / "store")) == 0
    capsys.readouterr()
    return tmp_path / "store"


def check(pair: PairPaths, store: Path) -> int:
    return main(["capture", str(store), "--check", "--target", str(pair.target), "--device", "cpu"])


def test_check_refuses_another_target(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["capture", str(store), "--check"]) == 2
    assert "belongs to another target" in capsys.readouterr().err


def test_check_names_a_shard_that_is_missing_cut_off_or_changed(
    pair: PairPaths, store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = store / "shard-00001.safetensors"
    content, tensors = path.read_bytes(), load_file(path)
    tensors["tokens"][-1] += 1
    save_file(tensors, path)
    assert check(pair, store) == 2
    assert "shard-00001.safetensors is damaged" in capsys.readouterr().err
    path.write_bytes(content[:-1])
    assert check(pair, store) == 2
    assert f"has {len(content) - 1} bytes instead of {len(content)}" in capsys.readouterr().err
    path.unlink()
    assert check(pair, store) == 2
    assert "shard-00001.safetensors is missing; run the same `crossdraft capture` again" in capsys.readouterr().err


def test_other_settings_in_the_same_folder_are_refused(
    pair: PairPaths, store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command(pair, store, "--seed", "1")) == 2
    assert "holds a capture with other settings (seed 0 there, 1 now)" in capsys.readouterr().err
