"""What is put into shards comes out again, answer by answer, and a store that is not whole says so."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from crossdraft.errors import CrossdraftError
from crossdraft_lab.train.capture import store as module
from crossdraft_lab.train.capture.plan import CapturedTarget, CaptureIndex, ShardInfo
from crossdraft_lab.train.capture.shard import CapturedAnswer, write_shard
from crossdraft_lab.train.capture.store import CaptureStore
from crossdraft_lab.train.core.provenance import sha256
from tests.train.capture.helpers import SPEC, VOCABULARY, WIDTH, answers

SHA = "ab" * 32


def write(folder: Path, *shards: list[CapturedAnswer]) -> CaptureIndex:
    """A capture of these shards."""
    entries = []
    for number, some in enumerate(shards):
        path = folder / f"shard-{number:05d}.safetensors"
        write_shard(path, some, SPEC)
        tokens = sum(len(one.tokens) for one in some)
        answer_tokens = tokens - sum(one.start for one in some)
        entries.append(ShardInfo(path.name, 1, len(some), tokens, answer_tokens, path.stat().st_size, sha256(path)))
    owner = CapturedTarget("here", SHA, 3, WIDTH, VOCABULARY, "float32")
    index = CaptureIndex(owner, SPEC, {"kind": "given"}, "", 3, tuple(entries))
    index.write(folder)
    return index


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two shards: answers of (2 + 3) and (4 + 1) tokens after a piece of 3, and (1 + 2) after another of 3."""
    write(tmp_path, answers(3, (2, 3), (4, 1)), answers(3, (1, 2), base=100))
    return tmp_path


def test_an_answer_comes_back_with_all_that_belongs_to_it(folder: Path) -> None:
    store = CaptureStore.open(folder)
    assert len(store) == 3
    batch = store.batch([2, 0], (1, 3), (0,))
    assert batch.tokens.tolist() == [[103, 104, 105, 0, 0], [3, 4, 5, 6, 7]]
    assert batch.starts.tolist() == [1, 2]
    assert batch.lengths.tolist() == [3, 5]
    hidden = batch.hidden[3]
    assert hidden.dtype == torch.float32
    assert hidden.shape == (2, 5, WIDTH)
    assert hidden[1, :, 0].tolist() == [3.375, 4.375, 5.375, 6.375, 0]
    assert batch.hidden[1][1, :, 0].tolist() == [3.125, 4.125, 5.125, 6.125, 0]
    assert hidden[0, 2:].abs().max() == 0
    assert batch.visual_ids is not None
    assert batch.visual_ids.tolist() == [[100, 101, 102], [0, 1, 2]]
    assert batch.visual[0][..., 1].tolist() == [[100, 101, 102], [0, 1, 2]]


def test_without_visual_layers_a_batch_is_text_alone(folder: Path) -> None:
    batch = CaptureStore.open(folder).batch([1], (-1,))
    assert batch.visual_ids is None
    assert not batch.visual
    assert list(batch.hidden) == [3]
    assert batch.tokens.tolist() == [[8, 9, 10, 11, 12]]


def test_tokens_are_those_of_the_answers(folder: Path) -> None:
    assert CaptureStore.open(folder).answer_lengths() == (3, 1, 2)
    assert [row.tolist() for row in CaptureStore.open(folder).answer_tokens()] == [[5, 6, 7], [12], [104, 105]]


def test_few_shards_are_open_at_a_time(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "OPEN", 1)
    store = CaptureStore.open(folder)
    for index in (0, 2, 1, 2):
        assert len(store.batch([index], (1,))) == 1
        assert len(store._opened) == 1


def test_a_shard_takes_the_bytes_that_were_estimated(tmp_path: Path) -> None:
    """But for the file's own table of contents."""
    index = write(tmp_path, [*answers(20, (5, 30), (9, 12)), *answers(17, (5, 3), base=60)])
    lengths = [(5, 30), (9, 12), (5, 3)]
    expected = sum(SPEC.answer_bytes(*one, WIDTH) for one in lengths)
    expected += sum(SPEC.piece_bytes(n, WIDTH) for n in (20, 17))
    with (tmp_path / index.shards[0].file).open("rb") as file:
        contents = 8 + int.from_bytes(file.read(8), "little")
    assert abs(index.bytes - contents - expected) <= 64


def test_a_first_piece_that_neighbours_share_is_written_once(tmp_path: Path) -> None:
    one, other = answers(3, (2, 3), (2, 2)), answers(4, (1, 1))
    write(tmp_path, [*one, *other, *one])
    assert load_file(tmp_path / "shard-00000.safetensors")["piece.of"].tolist() == [0, 0, 1, 2, 2]
    assert CaptureStore.open(tmp_path).piece_lengths() == (3, 3, 4, 3, 3)


# -- what is wrong, in one sentence ------------------------------------------------------------------------------------


def test_a_missing_shard(folder: Path) -> None:
    (folder / "shard-00001.safetensors").unlink()
    with pytest.raises(CrossdraftError, match=r"shard .*shard-00001.* is missing; run the same `crossdraft capture`"):
        CaptureStore.open(folder)


def test_a_shard_cut_off(folder: Path) -> None:
    path = folder / "shard-00000.safetensors"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(CrossdraftError, match=r"shard-00000.* has \d+ bytes instead of \d+; run the same"):
        CaptureStore.open(folder)


def test_a_damaged_shard(folder: Path) -> None:
    path = folder / "shard-00000.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    store = CaptureStore.open(folder)
    with pytest.raises(CrossdraftError, match=r"shard-00000.* is damaged: its hash .*; remove it, and run"):
        store.check()
    content[:8] = b"\xff" * 8
    path.write_bytes(content)
    with pytest.raises(CrossdraftError, match=r"shard-00000.* cannot be read"):
        CaptureStore.open(folder).batch([0], (1,))


def test_another_target(folder: Path) -> None:
    CaptureStore.open(folder, SHA)
    with pytest.raises(CrossdraftError, match=r"belongs to another target: 'here' with weights abababababab…, not cd"):
        CaptureStore.open(folder, "cd" * 32)


def test_a_layer_that_was_not_captured(folder: Path) -> None:
    store = CaptureStore.open(folder)
    with pytest.raises(
        CrossdraftError, match=r"lacks layer 2 \(it has --layers 1,3\); capture again with --layers 1,2,3, or"
    ):
        store.batch([0], (1, 2))
    with pytest.raises(CrossdraftError, match=r"--visual-layers 0\); capture again with --visual-layers 0,3"):
        store.batch([0], (1,), (-1,))
    with pytest.raises(CrossdraftError, match="Layer 4 is outside the target"):
        store.batch([0], (4,))


def test_an_answer_that_is_not_there(folder: Path) -> None:
    for index in (-1, 3):
        with pytest.raises(CrossdraftError, match=rf"has answers 0 to 2; there is no {index}"):
            CaptureStore.open(folder).batch([index], (1,))


def test_clips_of_different_lengths_do_not_make_a_batch(tmp_path: Path) -> None:
    write(tmp_path, [*answers(3, (2, 3)), *answers(4, (2, 3))])
    store = CaptureStore.open(tmp_path)
    assert len(store.batch([0, 1], (1,))) == 2
    with pytest.raises(CrossdraftError, match="different numbers of visual tokens"):
        store.batch([0, 1], (1,), (0,))


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "holds no capture"),
        ("{", "is damaged"),
        ("[]", "is damaged"),
        ('{"format": "crossdraft capture", "version": 99}', "is no index of a capture of version 1"),
        ('{"format": "crossdraft capture", "version": 1}', "is damaged"),
    ],
)
def test_an_index_that_is_none(folder: Path, content: str | None, sentence: str) -> None:
    path = folder / "index.json"
    path.unlink()
    if content is not None:
        path.write_text(content)
    with pytest.raises(CrossdraftError, match=sentence):
        CaptureStore.open(folder)


def test_the_index_says_where_it_comes_from(folder: Path) -> None:
    record = json.loads((folder / "index.json").read_text())
    assert record["format"] == "crossdraft capture"
    assert record["owner"]["sha256"] == SHA
    assert [shard["answers"] for shard in record["shards"]] == [2, 1]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize(
    ("shard", "row", "layer", "number"), [(0, 0, 3, 0), (0, 3, 3, 0), (0, 4, 1, 1), (0, 7, 3, 1), (1, 1, 3, 2)]
)
def test_a_feature_that_is_no_number_is_named_with_its_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: float, shard: int, row: int, layer: int, number: int
) -> None:
    """Two answers of 4 features each in the first shard, one of 2 in the second; parts of three rows are read."""
    monkeypatch.setattr("crossdraft_lab.train.capture.shard.READ_VALUES", 3 * WIDTH + 1)
    shards = [answers(3, (2, 3), (4, 1)), answers(3, (1, 2), base=100)]
    flat = [features for one in shards[shard] for features in one.hidden[layer]]
    flat[row][WIDTH - 1] = value  # a view
    write(tmp_path, *shards)
    store = CaptureStore.open(tmp_path)
    other = 1 if layer == 3 else 3
    store.require_finite((other,), (0,))
    with pytest.raises(CrossdraftError, match=rf"^Answer {number} of the capture .* is not finite \(NaN or infinity\)"):
        store.require_finite((1, 3))


def test_a_visual_feature_that_is_no_number_is_that_of_the_first_answer_about_it(tmp_path: Path) -> None:
    shards = [answers(3, (2, 3)), answers(3, (1, 2), (1, 3), base=100)]
    shards[1][0].visual[0][2, 0] = float("nan")
    shards[1][1] = dataclasses.replace(shards[1][1], visual=shards[1][0].visual)
    write(tmp_path, *shards)
    store = CaptureStore.open(tmp_path)
    store.require_finite((1, 3))
    with pytest.raises(CrossdraftError, match="Answer 1 of the capture"):
        store.require_finite((1,), (0,))
