"""Files of the media folder: nothing outside is reached."""

import os
from contextlib import contextmanager

import pytest

from crossdraft.serve import local_files
from crossdraft.serve.errors import ApiError
from crossdraft.serve.local_files import LocalFiles


@pytest.fixture
def root(tmp_path):
    """A folder with a file, one in a folder, and links; and a secret beside it."""
    root = tmp_path / "media"
    (root / "inner").mkdir(parents=True)
    (root / "clip.mp4").write_bytes(b"clip")
    (root / "inner" / "clip 2.mp4").write_bytes(b"clip")
    (tmp_path / "secret.mp4").write_bytes(b"secret")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret.mp4").write_bytes(b"secret")
    (root / "link.mp4").symlink_to(tmp_path / "secret.mp4")
    (root / "folder").symlink_to(tmp_path / "outside")
    (root / "own.mp4").symlink_to(root / "clip.mp4")
    os.mkfifo(root / "pipe.mp4")
    return root


def test_files_inside_are_found(root):
    local = LocalFiles(root)
    for url in ("file:clip.mp4", f"file://{root}/clip.mp4", f"file://localhost{root}/clip.mp4", "file:./clip.mp4"):
        assert local.find(url, "x").read_bytes() == b"clip"
    assert local.find("file:inner/clip%202.mp4", "x").name == "clip 2.mp4"


@pytest.mark.parametrize(
    "url",
    [
        "file:../secret.mp4", "file:inner/../../secret.mp4", "file:%2e%2e/secret.mp4", "file:..%2fsecret.mp4",
        "file:{parent}/secret.mp4", "file://{parent}/secret.mp4", "file:///etc/passwd", "file:/proc/self/environ",
        "file://{root}/../secret.mp4", "file:link.mp4", "file:folder/secret.mp4", "file:own.mp4", "file:pipe.mp4",
        "file:inner", "file:", "file:.", "file:none.mp4", "file:clip.mp4%00.txt", "file:clip.mp4/x", "file://host/clip.mp4",
        "file:clip.mp4?x", "file:%ff.mp4", "file:" + "a/" * 3000,
        "file:" + "%2e%2f" * 700 + "clip.mp4",  # which would be it, but is too long to be decoded
    ],
)  # fmt: skip
def test_nothing_else_is_and_the_answer_is_always_the_same(root, url):
    with pytest.raises(ApiError) as error:
        LocalFiles(root).find(url.format(parent=root.parent, root=root), "x")
    assert error.value.status == 400
    assert error.value.message == "There is no such file in the server's media folder; check the address."


def test_without_a_folder_nothing_is_read():
    with pytest.raises(ApiError, match="no files of its own"):
        LocalFiles(None).find("file:clip.mp4", "x")


def test_links_and_hidden_files_are_not_listed(root):
    (root / ".hidden.mp4").write_bytes(b"x")
    (root / "notes.md").write_bytes(b"x")
    assert [one["name"] for one in LocalFiles(root).listed()] == ["clip.mp4", "inner/clip 2.mp4"]


def test_a_large_folder_is_listed_in_part(root, monkeypatch):
    """Of so many entries are looked at, shown or not, in folders that are first."""
    monkeypatch.setattr(local_files, "MOST_LOOKED", 40)
    (root / "deep").mkdir()
    for number in range(100):
        (root / "deep" / f"{number}.md").touch()
    looked, scan = [], os.scandir

    @contextmanager
    def counted(path):
        with scan(path) as entries:
            yield (looked.append(entry.name) or entry for entry in entries)

    monkeypatch.setattr(os, "scandir", counted)
    assert [one["name"] for one in LocalFiles(root).listed()] == ["clip.mp4"]
    assert len(looked) == 40


def test_what_vanishes_while_it_is_listed_is_left_out(root, monkeypatch):
    """A file that is gone when its size is asked for, and a folder when it is looked into."""
    (root / "gone.mp4").write_bytes(b"x")
    (root / "left").mkdir()
    look = local_files._entries

    def vanish(folder, most):
        found = look(folder, most)
        for entry in found:
            entry.is_file(follow_symlinks=False)  # known without asking again
        (root / "gone.mp4").unlink(missing_ok=True)
        if (root / "left").exists():
            (root / "left").rmdir()
        return found

    monkeypatch.setattr(local_files, "_entries", vanish)
    assert [one["name"] for one in LocalFiles(root).listed()] == ["clip.mp4", "inner/clip 2.mp4"]


def test_names_that_are_no_unicode_are_not_listed(root):
    (root / os.fsdecode(b"\xff.mp4")).write_bytes(b"x")
    assert [one["name"] for one in LocalFiles(root).listed()] == ["clip.mp4", "inner/clip 2.mp4"]
