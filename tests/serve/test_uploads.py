"""Uploads and their quota."""

import io
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from crossdraft.serve.errors import ApiError
from crossdraft.serve.uploads import Uploads


@pytest.fixture
def uploads(tmp_path):
    return Uploads(tmp_path, most=100, quota=250, seconds=1000)


def test_a_clients_files_are_its_own(uploads):
    mine = uploads.add("anna", "clip.mp4", "user_data", io.BytesIO(b"x" * 50))
    assert uploads.get(mine.id, "anna") == mine
    with pytest.raises(ApiError) as theirs:
        uploads.get(mine.id, "ben")
    with pytest.raises(ApiError) as none:
        uploads.get("file-" + "0" * 32, "ben")
    assert (theirs.value.status, theirs.value.message) == (none.value.status, none.value.message)
    assert uploads.of("ben") == []


def test_sizes_are_bounded_and_what_is_refused_leaves_nothing(uploads, tmp_path):
    for size, code in ((101, "file_too_large"), (0, None)):
        with pytest.raises(ApiError) as error:
            uploads.add("anna", "clip", "x", io.BytesIO(b"x" * size))
        assert error.value.code == code
    assert not [*tmp_path.iterdir()]
    for _ in range(2):
        uploads.add("anna", "clip", "x", io.BytesIO(b"x" * 100))
    with pytest.raises(ApiError) as error:
        uploads.add("anna", "clip", "x", io.BytesIO(b"x" * 51))
    assert error.value.code == "quota_exceeded"
    uploads.add("ben", "clip", "x", io.BytesIO(b"x" * 51))
    assert uploads.nbytes == 251
    assert len([*tmp_path.iterdir()]) == 3


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "a\0b.mp4", "x" * 5000, "clip.MP4", ".mp4", ""])
def test_a_files_name_is_never_a_path(uploads, tmp_path, name):
    found = uploads.add("anna", name, "x", io.BytesIO(b"x"))
    assert found.path.parent == tmp_path
    assert found.path.name in (found.id, f"{found.id}.mp4")


def test_files_of_a_server_that_was_killed_go_and_nothing_else(uploads, tmp_path):
    uploads.add("anna", "clip.mp4", "x", io.BytesIO(b"x"))
    (tmp_path / "notes.md").write_bytes(b"x")
    again = Uploads(tmp_path, 100, 100, 1000)
    assert [one.name for one in tmp_path.iterdir()] == ["notes.md"]
    assert again.nbytes == 0


def test_old_files_go(tmp_path):
    uploads = Uploads(tmp_path, 100, 100, seconds=0.05)
    found = uploads.add("anna", "clip", "x", io.BytesIO(b"x"))
    time.sleep(0.1)
    with pytest.raises(ApiError):
        uploads.get(found.id, "anna")
    assert not [*tmp_path.iterdir()]


def test_files_that_come_at_the_same_time_share_the_quota(uploads, tmp_path):
    """Each of them fits alone."""
    meet = threading.Barrier(6)

    class Slow(io.BytesIO):
        def read(self, size=-1):
            if self.tell():
                meet.wait(10)  # all have begun
            return super().read(size)

    def add(_):
        try:
            return uploads.add("anna", "clip", "x", Slow(b"x" * 100)).id
        except ApiError as error:
            return error.code

    with ThreadPoolExecutor(6) as threads:
        found = [*threads.map(add, range(6))]
    assert found.count("quota_exceeded") == 4
    assert uploads.nbytes == 200
    assert len([*tmp_path.iterdir()]) == 2
