"""Uploads and their quota."""

import io
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from crossdraft.errors import CrossdraftError
from crossdraft.serve.errors import ApiError
from crossdraft.serve.uploads import Uploads


@pytest.fixture
def uploads(tmp_path):
    found = Uploads(tmp_path, most=100, quota=250, seconds=1000)
    yield found
    found.close()


def files(folder):
    """All but the lock."""
    return sorted(path for path in folder.iterdir() if path.name != ".lock")


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
    assert not files(tmp_path)
    for _ in range(2):
        uploads.add("anna", "clip", "x", io.BytesIO(b"x" * 100))
    with pytest.raises(ApiError) as error:
        uploads.add("anna", "clip", "x", io.BytesIO(b"x" * 51))
    assert error.value.code == "quota_exceeded"
    uploads.add("ben", "clip", "x", io.BytesIO(b"x" * 51))
    assert uploads.nbytes == 251
    assert len(files(tmp_path)) == 3


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "a\0b.mp4", "x" * 5000, "clip.MP4", ".mp4", ""])
def test_a_files_name_is_never_a_path(uploads, tmp_path, name):
    found = uploads.add("anna", name, "x", io.BytesIO(b"x"))
    assert found.path.parent == tmp_path
    assert found.path.name in (found.id, f"{found.id}.mp4")


@pytest.mark.parametrize(("name", "purpose"), [("a\ud800.mp4", "x"), ("a.mp4", "\udfff")])
def test_a_name_that_no_list_can_hold_is_refused(uploads, tmp_path, name, purpose):
    with pytest.raises(ApiError, match="no Unicode"):
        uploads.add("anna", name, purpose, io.BytesIO(b"x"))
    assert not files(tmp_path)


def test_files_of_a_server_that_was_killed_go_and_nothing_else(tmp_path):
    names = [f"file-{number:032x}" for number in range(3)]
    (tmp_path / names[0]).write_bytes(b"x")
    (tmp_path / names[1]).mkdir()
    (tmp_path / names[2]).symlink_to(tmp_path / names[1], target_is_directory=True)
    (tmp_path / "notes.md").write_bytes(b"x")
    again = Uploads(tmp_path, 100, 100, 1000)
    assert [one.name for one in files(tmp_path)] == [names[1], "notes.md"]
    assert again.nbytes == 0
    again.close()


def test_nobody_else_may_read_them(tmp_path):
    before = os.umask(0)
    try:
        uploads = Uploads(tmp_path / "new", 100, 100, 1000)
        found = uploads.add("anna", "clip.mp4", "x", io.BytesIO(b"x"))
    finally:
        os.umask(before)
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in files(tmp_path / "new")} == {0o600}
    assert found.path.exists()
    uploads.close()


def test_a_folder_that_others_may_enter_is_refused(tmp_path):
    tmp_path.chmod(0o755)
    with pytest.raises(CrossdraftError, match=r"Others may enter .* chmod go="):
        Uploads(tmp_path, 100, 100, 1000)


def test_two_servers_do_not_share_a_folder(uploads, tmp_path):
    """The second would delete the uploads of the first."""
    kept = uploads.add("anna", "clip.mp4", "x", io.BytesIO(b"x"))
    with pytest.raises(CrossdraftError, match="Another process fills"):
        Uploads(tmp_path, 100, 100, 1000)
    assert kept.path.exists()
    uploads.close()
    Uploads(tmp_path, 100, 100, 1000).close()
    (tmp_path / "file").write_bytes(b"x")
    with pytest.raises(CrossdraftError, match="choose another --upload-folder"):
        Uploads(tmp_path / "file", 100, 100, 1000)


def test_old_files_go(tmp_path):
    uploads = Uploads(tmp_path, 100, 100, seconds=0.05)
    found = uploads.add("anna", "clip", "x", io.BytesIO(b"x"))
    time.sleep(0.1)
    with pytest.raises(ApiError):
        uploads.get(found.id, "anna")
    assert not files(tmp_path)
    uploads.close()


def test_old_files_go_though_nobody_looks(tmp_path):
    uploads = Uploads(tmp_path, 100, 100, seconds=0.05)
    uploads.add("anna", "clip", "x", io.BytesIO(b"x"))
    until = time.monotonic() + 60
    while files(tmp_path) and time.monotonic() < until:
        time.sleep(0.01)
    assert not files(tmp_path)
    uploads.close()
    uploads.close()  # as a service that is closed twice does


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
    assert len(files(tmp_path)) == 2


def test_a_list_is_paged_filtered_and_ordered_as_openai_does(start):
    running = start()
    client, add = running.client(), running.service.uploads.add
    names = [
        add("", f"{number}.mp4", "vision" if number % 2 else "user_data", io.BytesIO(b"x")).id for number in range(5)
    ]
    assert [one.id for one in client.files.list()] == names[::-1]
    assert [one.id for one in client.files.list(order="asc")] == names
    assert [one.id for one in client.files.list(order="asc", purpose="vision")] == names[1::2]
    first = client.files.list(order="asc", limit=2)
    assert ([one.id for one in first.data], first.has_more) == (names[:2], True)
    assert [one.id for one in first] == names  # the client asks for page after page
    assert [one.id for one in client.files.list(after=names[1])] == [names[0]]
    for wrong in ({"limit": 0}, {"limit": "x"}, {"order": "up"}):
        error = httpx.get(f"{running.url}/v1/files", params=wrong)
        assert (error.status_code, error.json()["error"]["param"]) == (400, *wrong)
    gone = httpx.get(f"{running.url}/v1/files", params={"after": "file-" + "0" * 32})
    assert (gone.status_code, gone.json()["error"]["param"]) == (404, "after")


@pytest.mark.parametrize(
    ("asked", "status", "code"),
    [
        ("lines=1-2", 400, "invalid_range"),
        ("bytes=x", 400, "invalid_range"),
        ("bytes=9-", 416, "range_not_satisfiable"),
    ],
)
def test_a_range_that_cannot_be_sent_is_an_error_of_the_apis_shape(start, asked, status, code):
    running = start()
    kept = running.service.uploads.add("", "a.mp4", "user_data", io.BytesIO(b"12345"))
    address = f"{running.url}/v1/files/{kept.id}/content"
    found = httpx.get(address, headers={"Range": asked})
    assert (found.status_code, found.json()["error"]["code"]) == (status, code)
    assert found.headers.get("content-range") == ("bytes */5" if status == 416 else None)
    part = httpx.get(address, headers={"Range": "bytes=1-2"})
    assert (part.status_code, part.content) == (206, b"23")
    head = httpx.head(address)
    assert (head.status_code, head.headers["content-length"], head.content) == (200, "5", b"")


def test_the_model_says_which_drafter_it_has(server):
    (found,) = httpx.get(f"{server.url}/v1/models").json()["data"]
    assert found["crossdraft"]["drafter"] == "glance"


@pytest.mark.parametrize("path", ["/health", "/ready", "/", "/metrics", "/v1/models"])
def test_head_is_answered_as_get_without_the_body(server, path):
    found = httpx.head(f"{server.url}{path}")
    assert (found.status_code, found.content) == (200, b"")
    assert found.headers["content-type"] == httpx.get(f"{server.url}{path}").headers["content-type"]
    assert httpx.head(f"{server.url}/v1/chat/completions").status_code == 405
