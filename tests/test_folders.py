"""Folders are put in place whole, and what was there stays until then."""

from pathlib import Path

import pytest

from crossdraft.errors import CrossdraftError
from crossdraft.files import atomic_folder, put_in_place, temporary_folder


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@pytest.fixture
def old(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "old").write_text("1")
    return tmp_path / "model"


def test_a_folder_takes_the_place_of_the_old_one(old: Path) -> None:
    with atomic_folder(old) as folder:
        (folder / "new").write_text("2")
        assert names(old) == {"old"}
    assert names(old.parent) == {"model", "model/new"}
    (old.parent / "ordinary").mkdir()
    assert old.stat().st_mode == (old.parent / "ordinary").stat().st_mode


def test_a_failure_leaves_the_old_one_and_no_rest(old: Path) -> None:
    def fail() -> None:
        with atomic_folder(old) as folder:
            (folder / "new").write_text("2")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert names(old.parent) == {"model", "model/old"}


def test_parents_are_made_and_several_can_be_put_in_place(tmp_path: Path) -> None:
    final = tmp_path / "a" / "b"
    with temporary_folder(final) as folder:
        for name in ("one", "two"):
            (folder / name).mkdir()
        final.mkdir()
        for name in ("one", "two"):
            put_in_place(folder / name, final / name)
    assert names(tmp_path) == {"a", "a/b", "a/b/one", "a/b/two"}


def test_a_place_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CrossdraftError, match=r"Cannot write .*model: .+; choose a place"):  # noqa: SIM117
        with atomic_folder(tmp_path / "file" / "model"):
            pass
