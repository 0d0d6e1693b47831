import pytest

from crossdraft.errors import CrossdraftError
from crossdraft.files import atomic_path
from tests.events.helpers import files_of_at_most


def test_a_file_appears_whole_with_its_suffix_and_the_usual_mode(tmp_path):
    with atomic_path(tmp_path / "new" / "a.txt") as path:
        path.write_text("whole")
        assert path.suffix == ".txt"
        assert not (tmp_path / "new" / "a.txt").exists()
    assert (tmp_path / "new" / "a.txt").read_text() == "whole"
    (tmp_path / "usual").touch()
    assert (tmp_path / "new" / "a.txt").stat().st_mode == (tmp_path / "usual").stat().st_mode


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


def test_a_place_that_cannot_be_written_to(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    for place, reason in (
        (tmp_path / "file" / "a.txt", "Not a directory|File exists"),
        (tmp_path / "folder", "Is a directory"),
        (tmp_path / ("a" * 300), "File name too long"),
    ):
        with pytest.raises(CrossdraftError, match=reason), atomic_path(place) as path:
            path.write_text("whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]
    assert not list((tmp_path / "folder").iterdir())


def test_an_error_of_the_body_is_passed_on(tmp_path):
    with pytest.raises(KeyError), atomic_path(tmp_path / "a.txt") as path:
        path.write_text("half")
        raise KeyError("of its own")
    assert not list(tmp_path.iterdir())
