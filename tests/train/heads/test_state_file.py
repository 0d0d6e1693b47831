"""States on disk: they come back bit by bit, leave nothing behind, and never fill the disk."""

import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from crossdraft.errors import CrossdraftError
from crossdraft_lab.train.heads import state_file
from crossdraft_lab.train.heads.state_file import StateFile


def some(number: int) -> tuple[torch.Tensor, ...]:
    """Two tensors of one answer, of its own length; one is a part of a wider one, in bfloat16."""
    generator = torch.Generator().manual_seed(number)
    wide = torch.randn(2, 9, 5, generator=generator)
    return wide[0, : 3 + number], wide[:, :2].bfloat16().transpose(0, 2)


def assert_kept(states: StateFile, number: int) -> None:
    for ours, theirs in zip(states.read(number), some(number), strict=True):
        assert ours.dtype == theirs.dtype
        assert ours.equal(theirs)


def test_what_is_kept_comes_back_in_any_order_and_leaves_no_file(tmp_path):
    states = StateFile(tmp_path / "features", spare=0)
    for number in (4, 0, 2):
        states.keep(number, some(number))
        assert number in states
    states.keep(4, some(1))  # it is known
    assert 1 not in states
    for number in (0, 2, 4, 0):
        assert_kept(states, number)
    assert not list((tmp_path / "features").iterdir())
    states.keep(6, (torch.empty(0, 5),))
    assert states.read(6)[0].shape == (0, 5)


def test_a_disk_is_not_filled_beyond_what_is_left_free(tmp_path, monkeypatch):
    states = StateFile(tmp_path, spare=0)
    states.keep(0, some(0))
    size = states._end
    disk = SimpleNamespace(f_bavail=100 + size, f_frsize=1)
    monkeypatch.setattr(state_file.os, "fstatvfs", lambda file: disk)
    for spare, fits in ((100, True), (101, False)):
        states = StateFile(tmp_path, spare)
        states.keep(0, some(0))
        assert (0 in states) == fits


def test_a_disk_that_is_full_after_all_keeps_what_there_was_and_takes_more_later(tmp_path):
    states = StateFile(tmp_path, spare=0)
    states.keep(0, some(0))
    own: Any = states._file

    class Full:
        """It takes ten bytes, and no more."""

        room = 10

        def write(self, content: memoryview) -> int:
            self.room -= len(content[: self.room])
            if not self.room:
                raise OSError(errno.ENOSPC, "No space left on device")
            return own.write(content[: self.room])

        def __getattr__(self, name: str) -> Any:
            return getattr(own, name)

    states._file = Full()
    states.keep(1, some(1))
    assert 1 not in states
    assert_kept(states, 0)
    states._file = own
    for number in (1, 2):
        states.keep(number, some(number))
    for number in (0, 1, 2):
        assert_kept(states, number)


def test_a_folder_that_is_removed_meanwhile_takes_nothing_away(tmp_path):
    """The file has no name: it lives on without its folder."""
    states = StateFile(tmp_path / "features", spare=0)
    states.keep(0, some(0))
    (tmp_path / "features").rmdir()
    states.keep(1, some(1))
    for number in (0, 1):
        assert_kept(states, number)


def test_a_disk_that_fails_is_one_sentence(tmp_path):
    states = StateFile(tmp_path, spare=0)
    states.keep(0, some(0))
    states._file.close()
    states._file = SimpleNamespace(seek=lambda begin: None, read=_failing)
    with pytest.raises(CrossdraftError, match="cannot be read; check the disk"):
        states.read(0)


def _failing(size: int) -> bytes:
    raise OSError(errno.EIO, "Input/output error")


def test_where_nothing_can_be_written_the_systems_temporary_files_are(tmp_path, monkeypatch):
    (tmp_path / "a file").touch()
    monkeypatch.setattr(state_file.tempfile, "gettempdir", lambda: str(tmp_path))
    states = StateFile(tmp_path / "a file" / "features", spare=0)
    states.keep(3, some(3))
    assert_kept(states, 3)
    monkeypatch.setattr(state_file.tempfile, "gettempdir", lambda: str(tmp_path / "a file"))
    nowhere = StateFile(Path(tmp_path / "a file" / "features"), spare=0)
    nowhere.keep(3, some(3))
    assert 3 not in nowhere


def test_a_file_that_is_cut_short_is_one_sentence(tmp_path):
    states = StateFile(tmp_path, spare=0)
    states.keep(0, some(0))
    states._file.truncate(8)
    with pytest.raises(CrossdraftError, match="cannot be read; check the disk"):
        states.read(0)
