"""The server's temporary folder, and what is left of servers that were killed."""

import os
import subprocess
import sys
import tempfile

import pytest

from crossdraft.serve.folder import PREFIX, STARTING_S, server_folder


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


KILLED = """
import os, signal, sys, tempfile
from crossdraft.serve.folder import server_folder
tempfile.tempdir = sys.argv[1]
with server_folder() as folder:
    (folder / "spool").mkdir()
    (folder / "spool" / "clip").write_bytes(b"x")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def aged(folder):
    """As it is a while after it was made."""
    old = folder.stat().st_mtime - 2 * STARTING_S
    os.utime(folder, (old, old))


def test_the_folder_of_a_server_that_was_killed_goes_when_the_next_one_starts(temporary):
    subprocess.run([sys.executable, "-c", KILLED, str(temporary)], check=False)
    (left,) = temporary.iterdir()
    with server_folder():
        assert left.exists()  # it may be one that starts just now
    aged(left)
    with server_folder() as folder:
        assert [*temporary.iterdir()] == [folder]
        assert folder.stat().st_mode & 0o777 == 0o700
    assert not [*temporary.iterdir()]


def test_the_folder_of_a_server_that_runs_stays_and_so_does_what_is_no_servers(temporary):
    with server_folder() as running:
        aged(running)
        unlocked, link, file = (temporary / f"{PREFIX}{name}" for name in ("unlocked", "link", "file"))
        unlocked.mkdir()
        elsewhere = temporary / "elsewhere"
        elsewhere.mkdir()
        (elsewhere / ".lock").touch()
        link.symlink_to(elsewhere, target_is_directory=True)
        file.touch()
        for one in (unlocked, elsewhere, file):
            aged(one)
        with server_folder() as other:
            kept = {running, unlocked, link, file, elsewhere, other}
            assert {*temporary.iterdir()} == kept
        assert (elsewhere / ".lock").exists()
