"""What processes hold: counted on processes whose state is known."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from crossdraft_lab.bench import resources
from crossdraft_lab.bench.resources import (
    descendants,
    flatness,
    halted,
    leftovers,
    own_temporary_folder,
    resident_mib,
    sample,
)

pytestmark = pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc")


def until(state, seconds=20.0):
    deadline = time.monotonic() + seconds
    while not state() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert state()


def test_flatness_by_hand():
    assert flatness([90.0, 100.0, 120.0]) == pytest.approx(0.3)
    assert flatness([7.0]) == flatness([]) == 0.0


def test_a_grandchild_is_a_descendant_and_its_memory_counts():
    code = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'input()']).wait()"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
    try:
        until(lambda: len(descendants(child.pid)) == 1)
        (grandchild,) = descendants(child.pid)
        assert {child.pid, grandchild} <= descendants(os.getpid()).keys()
        assert resident_mib(grandchild) > 1
        assert sample(3).children_mib >= resident_mib(grandchild) > 0
    finally:
        child.communicate()
    assert child.pid not in descendants(os.getpid())
    assert resident_mib(grandchild) == 0


def test_what_is_halted_stands_still_with_all_that_it_started():
    """Both count up all the time; while they are halted what was counted stays."""
    code = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'while True: pass'])\nwhile True: pass"
    child = subprocess.Popen([sys.executable, "-c", code], process_group=0)

    def ticks():
        stats = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in both]
        return [int(fields[11]) + int(fields[12]) for fields in stats]

    try:
        until(lambda: len(descendants(child.pid)) == 1)
        both = [child.pid, *descendants(child.pid)]
        until(lambda: min(ticks()) > 0)
        with pytest.raises(KeyError), halted(child.pid):
            time.sleep(0.05)
            before = ticks()
            time.sleep(0.3)
            assert ticks() == before
            raise KeyError
        until(lambda: all(now > then for now, then in zip(ticks(), before, strict=True)))
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def test_a_zombie_a_thread_and_a_file_are_left_over(monkeypatch):
    monkeypatch.setattr(resources, "PATIENCE_S", 0.2)
    before, free = threading.enumerate(), threading.Event()
    with own_temporary_folder() as folder:
        assert Path(tempfile.gettempdir()) == folder
        child = subprocess.Popen([sys.executable, "-c", ""])
        until(lambda: "zombie" in descendants(os.getpid()).get(child.pid, ""))
        thread = threading.Thread(target=free.wait, name="forgotten")
        thread.start()
        Path(tempfile.mkstemp(prefix="left-")[1]).touch()
        found = leftovers(folder, [child.pid], before)
        assert found.any
        assert "(zombie)" in found.processes[0]
        assert found.threads == ("forgotten",)
        assert [name[:5] for name in found.files] == ["left-"]
        assert "threads: forgotten" in str(found)
        child.wait()
        free.set()
        thread.join()
        for path in folder.iterdir():
            path.unlink()
        assert str(leftovers(folder, [child.pid], before)) == "nothing"
    assert not folder.exists()
    assert Path(tempfile.gettempdir()) != folder
