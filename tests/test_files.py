"""Files and folders are whole or absent."""

import os
from pathlib import Path

import pytest
from safetensors.torch import save_file
from torch import zeros

from crossdraft.errors import CrossdraftError
from crossdraft.files import atomic_folder, atomic_path, check_folder, put_in_place, read_json, temporary_folder
from crossdraft.heads.folders import head_json
from crossdraft_lab.folders import make_folder
from tests.events.helpers import files_of_at_most


def test_a_file_appears_whole_with_its_suffix_and_the_usual_mode(tmp_path):
    with atomic_path(tmp_path / "new" / "a.txt") as path:
        path.write_text("whole")
        assert path.suffix == ".txt"
        assert not (tmp_path / "new" / "a.txt").exists()
    assert (tmp_path / "new" / "a.txt").read_text() == "whole"
    (tmp_path / "usual").touch()
    assert (tmp_path / "new" / "a.txt").stat().st_mode == (tmp_path / "usual").stat().st_mode


def test_files_of_other_threads_get_the_usual_mode_meanwhile(tmp_path, monkeypatch):
    masks: list[int] = []
    monkeypatch.setattr(os, "umask", lambda mask: masks.append(mask) or 0o022)  # it is the whole process's
    with atomic_path(tmp_path / "a.txt") as path:
        path.write_text("whole")
    assert not masks


def test_a_full_disk_is_one_sentence_and_what_was_there_stays(tmp_path):
    (tmp_path / "a.txt").write_text("before")
    with (
        pytest.raises(CrossdraftError, match=r"Cannot write .*a\.txt: File too large; choose a place"),
        files_of_at_most(1000),
        atomic_path(tmp_path / "a.txt") as path,
    ):
        path.write_text("x" * 2000)
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
    assert (tmp_path / "a.txt").read_text() == "before"


def test_a_path_that_cannot_be_written_to(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    for position, reason in (
        (tmp_path / "file" / "a.txt", "Not a directory|File exists"),
        (tmp_path / "folder", "Is a directory"),
        (tmp_path / ("a" * 300), "File name too long"),
    ):
        with pytest.raises(CrossdraftError, match=reason), atomic_path(position) as path:
            path.write_text("whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]
    assert not list((tmp_path / "folder").iterdir())


def test_an_error_of_the_body_is_passed_on(tmp_path):
    with pytest.raises(KeyError), atomic_path(tmp_path / "a.txt") as path:
        path.write_text("half")
        raise KeyError("of its own")
    assert not list(tmp_path.iterdir())


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@pytest.fixture
def old(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "old").write_text("1")
    return tmp_path / "model"


def test_a_folder_replaces_the_old_one(old: Path) -> None:
    with atomic_folder(old) as folder:
        (folder / "new").write_text("2")
        assert names(old) == {"old"}
    assert names(old.parent) == {"model", "model/new"}
    (old.parent / "ordinary").mkdir()
    assert old.stat().st_mode == (old.parent / "ordinary").stat().st_mode


def test_what_a_writer_made_private_has_the_usual_mode_in_the_end(tmp_path: Path) -> None:
    with atomic_folder(tmp_path / "model") as folder:
        save_file({"a": zeros(1)}, folder / "model.safetensors")
        (folder / "run.sh").touch(0o755)
    (tmp_path / "ordinary").touch()
    assert (tmp_path / "model" / "model.safetensors").stat().st_mode == (tmp_path / "ordinary").stat().st_mode
    assert (tmp_path / "model" / "run.sh").stat().st_mode & 0o100


def test_a_failure_leaves_the_old_one_and_no_rest(old: Path) -> None:
    def fail() -> None:
        with atomic_folder(old) as folder:
            (folder / "new").write_text("2")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert names(old.parent) == {"model", "model/old"}


@pytest.mark.parametrize("kind", ["folder", "file", "link"])
@pytest.mark.parametrize("error", [OSError("no"), KeyboardInterrupt()])
def test_what_cannot_take_its_place_leaves_the_old_one_there(tmp_path: Path, monkeypatch, kind, error) -> None:
    final, new = tmp_path / "final", tmp_path / "new"
    match kind:
        case "folder":
            (final / "old").mkdir(parents=True)
        case "file":
            final.write_text("old")
        case _:
            final.symlink_to("nowhere")
    before = names(tmp_path)
    new.touch()
    rename = Path.replace

    def replace(path: Path, target: Path) -> Path:
        if path == new:
            raise error
        return rename(path, target)

    monkeypatch.setattr(Path, "replace", replace)
    with pytest.raises(type(error)):
        put_in_place(new, final)
    assert names(tmp_path) == before | {"new"}
    assert kind != "file" or final.read_text() == "old"
    monkeypatch.undo()
    put_in_place(new, final)
    assert names(tmp_path) == {"final"}


def test_parents_are_made_and_several_can_be_renamed_at_the_end(tmp_path: Path) -> None:
    final = tmp_path / "a" / "b"
    with temporary_folder(final) as folder:
        for name in ("one", "two"):
            (folder / name).mkdir()
        final.mkdir()
        for name in ("one", "two"):
            put_in_place(folder / name, final / name)
    assert names(tmp_path) == {"a", "a/b", "a/b/one", "a/b/two"}


def test_a_path_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CrossdraftError, match=r"Cannot write .*model: .+; choose a place"):  # noqa: SIM117
        with atomic_folder(tmp_path / "file" / "model"):
            pass


def test_a_folder_that_a_file_stands_in_the_way_of_is_one_sentence(tmp_path: Path) -> None:
    make_folder(tmp_path / "a" / "b")
    make_folder(tmp_path / "a" / "b")  # it is there
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "below" / "it"):
        for use in (make_folder, check_folder):
            with pytest.raises(CrossdraftError, match=r"file is a file; name another folder"):
                use(path)
    check_folder(tmp_path / "new" / "one")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "file"]


@pytest.mark.parametrize("content", [b"{", b"", b"[1]", b"7", b"\xff\xfe{}", b"[" * 100_000, b"9" * 5000, b'"a"'])
def test_what_is_no_json_object_is_one_sentence(tmp_path, content):
    path = tmp_path / "config.json"
    path.write_bytes(content)
    for read in (lambda: read_json(path, "head", "mend it"), lambda: head_json(tmp_path)):
        with pytest.raises(CrossdraftError, match=r"config\.json (is not|must hold)") as error:
            read()
        assert "\n" not in str(error.value)
    with pytest.raises(CrossdraftError, match=r"Cannot read .*nowhere.*; mend it\."):
        read_json(tmp_path / "nowhere", mend="mend it")
    path.write_text('{"a": 1}')
    assert read_json(path) == {"a": 1}
