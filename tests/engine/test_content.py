"""A content is told by every byte of it, and by nothing else."""

import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from threading import Event, current_thread

import numpy as np
import pytest
import torch

from crossdraft.engine import content
from crossdraft.engine.content import SETTLED_NS, Content, ContentDigests
from crossdraft.events import Excerpt


@dataclass(frozen=True)
class Cut:
    path: Path
    start: int | None = None


@pytest.fixture
def digests():
    return ContentDigests()


def settle(path):
    """As if the file had been written long ago; its change time cannot be set, so that is waited for elsewhere."""
    past = time.time_ns() - 10 * SETTLED_NS
    os.utime(path, ns=(past, past))


def test_equal_bytes_have_one_digest_wherever_they_lie(tmp_path, digests):
    (tmp_path / "a.mp4").write_bytes(b"clip")
    shutil.copy(tmp_path / "a.mp4", tmp_path / "b.mp4")
    assert digests.of(tmp_path / "a.mp4").digest == digests.of(str(tmp_path / "b.mp4")).digest
    shutil.copy(tmp_path / "a.mp4", tmp_path / "a.avi")  # another reader
    assert digests.of(tmp_path / "a.mp4").digest != digests.of(tmp_path / "a.avi").digest


def test_one_pixel_makes_another_clip(digests):
    frames = np.zeros((2, 4, 4, 3), np.uint8)
    other = frames.copy()
    other[1, 3, 3, 2] = 1
    found = {digests.of(value).digest for value in (frames, other, torch.from_numpy(frames), frames[:1], frames.T)}
    assert len(found) == 5  # a tensor is another kind of input, too
    assert digests.of(frames).digest == digests.of(frames.copy()).digest
    assert digests.of(frames[:, ::-1]).digest == digests.of(frames[:, ::-1].copy()).digest


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((("ab", "c"),), (("a", "bc"),)),
        (([1, 2], [3]), ([1], [2, 3])),
        (({"a": 1},), ({"a": 1.0},)),
        ((None,), (0,)),
        ((b"1",), (["1"],)),
        ((Cut(Path("/"), 1),), ()),
    ],
)
def test_different_values_feed_different_bytes(digests, one, other):
    first, second = digests.of(*one), digests.of(*other)
    assert first is None or first.digest != second.digest


def test_what_cannot_be_read_has_no_content(tmp_path, digests):
    assert digests.of(tmp_path) is None  # a folder
    assert digests.of(tmp_path / "missing.mp4") is None
    assert digests.of(object()) is None
    assert digests.of(np.array([object()])) is None
    assert digests.of("half a \x00 path") is None


def test_a_dataclass_is_its_fields_and_its_files(tmp_path, digests):
    path = tmp_path / "events.h5"
    path.write_bytes(b"1")
    whole, part = digests.of(Cut(path)), digests.of(Cut(path, 5))
    assert whole.digest != part.digest
    path.write_bytes(b"2")
    assert digests.of(Cut(path)).digest != whole.digest


def test_a_file_that_was_written_anew_is_another_version(tmp_path, digests):
    path = tmp_path / "a.mp4"
    path.write_bytes(b"one")
    settle(path)
    before = digests.of(path)
    assert before.unchanged
    path.write_bytes(b"two")  # as long as before
    assert not before.unchanged
    assert digests.of(path).digest != before.digest
    path.unlink()
    assert not before.unchanged


def test_a_file_is_read_once_if_it_has_settled(tmp_path, digests, monkeypatch):
    path = tmp_path / "a.mp4"
    path.write_bytes(b"one")
    reads = []
    real = Path.open
    monkeypatch.setattr(Path, "open", lambda self, *given: reads.append(self) or real(self, *given))
    digests.of(path)
    digests.of(path)
    assert len(reads) == 2  # fresh: it may change within a tick of its clock
    monkeypatch.setattr("crossdraft.engine.content.SETTLED_NS", -SETTLED_NS)
    digests.of(path)
    assert digests.of(path).digest == ContentDigests().of(path).digest
    assert len(reads) == 4  # the third of ours, and the other's


def test_a_file_that_changes_within_a_tick_of_its_clock_has_changed(tmp_path, digests, monkeypatch):
    """The version of a fresh file says nothing; its bytes do."""
    path = tmp_path / "a.mp4"
    path.write_bytes(b"one")
    version = path.stat()
    monkeypatch.setattr(Path, "stat", lambda self, **given: version)
    before = digests.of(path)
    assert before.unchanged
    path.write_bytes(b"two")
    before.reread()
    assert not before.unchanged
    path.unlink()
    assert not before.unchanged


def test_a_fresh_file_is_compared_once_for_one_request(tmp_path, digests, monkeypatch):
    path = tmp_path / "a.mp4"
    path.write_bytes(b"one")
    reads = []
    real = Path.open
    monkeypatch.setattr(Path, "open", lambda self, *given: reads.append(self) or real(self, *given))
    twice = Content.joined([digests.of(path), digests.of(path)])
    reads.clear()
    assert twice.unchanged  # after the clip was read; then before its features are kept, its prompt, its answer
    assert all(twice.unchanged for _ in range(3))
    assert len(reads) == 1
    twice.reread()
    assert twice.unchanged
    assert len(reads) == 2


def test_a_large_file_is_hashed_while_its_first_request_goes_on(tmp_path, digests, monkeypatch, caplog):
    path, threads = tmp_path / "a.mp4", []
    path.write_bytes(b"longer than that")
    monkeypatch.setattr(content, "MOST_AT_ONCE", 8)
    real = content.file_digest
    monkeypatch.setattr(content, "file_digest", lambda path: threads.append(current_thread()) or real(path))
    assert digests.of(path) is None  # fresh: no digest of it would last
    assert not threads
    monkeypatch.setattr(content, "SETTLED_NS", -SETTLED_NS)
    assert digests.of(path) is None
    digests._hashing.join()
    known = digests.of(path)
    assert current_thread() not in threads
    assert len(threads) == 1
    assert known.unchanged
    assert len(caplog.messages) == 1
    assert "a.mp4 has 16 bytes" in caplog.text
    monkeypatch.setattr(content, "MOST_AT_ONCE", 1 << 20)
    assert ContentDigests().of(path) == known


def test_a_large_file_that_changes_while_it_is_hashed_has_no_content(tmp_path, digests, monkeypatch):
    path, went_on = tmp_path / "a.mp4", Event()
    path.write_bytes(b"longer than that")
    monkeypatch.setattr(content, "MOST_AT_ONCE", 8)
    monkeypatch.setattr(content, "SETTLED_NS", -SETTLED_NS)
    real = content.file_digest
    monkeypatch.setattr(content, "file_digest", lambda path: went_on.wait(10) and real(path))
    assert digests.of(path) is None
    other = tmp_path / "b.mp4"
    other.write_bytes(b"another large one")
    assert digests.of(other) is None  # one at a time
    path.write_bytes(b"longer than that, and other bytes")
    went_on.set()
    digests._hashing.join()
    assert not digests._files
    path.unlink()
    assert digests.of(other) is None
    digests._hashing.join()
    assert digests.of(other) is not None


def test_a_file_that_is_too_large_is_never_hashed(tmp_path, digests, monkeypatch):
    path = tmp_path / "a.mp4"
    path.write_bytes(b"longer than that")
    monkeypatch.setattr(content, "MOST_AT_ONCE", 8)
    monkeypatch.setattr(content, "MOST_BYTES", 15)
    monkeypatch.setattr(content, "SETTLED_NS", -SETTLED_NS)
    assert digests.of(path) is None
    assert digests._hashing is None


def test_an_excerpt_is_known_by_the_bytes_of_its_recording(tmp_path, digests):
    path = tmp_path / "events.h5"
    path.write_bytes(b"1")
    first, same = digests.of(Excerpt(str(path), 0, 5)), digests.of(Excerpt(path, 0, 5))
    assert first.digest == same.digest
    path.write_bytes(b"2")
    assert digests.of(Excerpt(str(path), 0, 5)).digest != first.digest


def test_the_names_of_fields_belong_to_an_array(digests):
    """Two layouts of the same bytes: x before y, and y before x."""
    rows = np.array([(1, 2)], dtype=[("x", "<i4"), ("y", "<i4")])
    assert digests.of(rows).digest != digests.of(rows.view([("y", "<i4"), ("x", "<i4")])).digest
