"""Servers that a bench starts: they end with it, however it ends."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from crossdraft.errors import CrossdraftError
from crossdraft_lab.bench.serving.process import serving

STARTS = """
import sys, time
from pathlib import Path
from crossdraft_lab.bench.serving.process import serving
with serving(["--target", sys.argv[1], "--drafter", "none"], Path(sys.argv[2])) as server:
    print(server.pid, flush=True)
    time.sleep(600)
"""


def is_there(pid: int) -> bool:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(") ")[2]
    except OSError:
        return False
    return not fields.startswith("Z")  # what nobody waits for, as in some containers, stays a zombie


def test_a_bench_that_is_killed_leaves_no_server(pair, tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", STARTS, str(pair.target), str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as bench:
        assert bench.stdout is not None
        pid = int(bench.stdout.readline())
        assert is_there(pid)
        bench.send_signal(signal.SIGKILL)
    until = time.monotonic() + 60
    while is_there(pid) and time.monotonic() < until:
        time.sleep(0.05)
    assert not is_there(pid)


def test_a_server_ends_with_its_bench_without_a_word(pair, tmp_path):
    with serving(["--target", str(pair.target), "--drafter", "none"], tmp_path) as server:
        pass  # any status but 0 is an error
    assert not is_there(server.pid)
    assert "Fatal" not in server.log.read_text()


def test_a_server_that_does_not_start_says_why_in_one_sentence(tmp_path):
    with (
        pytest.raises(CrossdraftError, match=r"^The server did not start: (?!crossdraft).*nowhere") as caught,
        serving(["--target", str(tmp_path / "nowhere")], tmp_path),
    ):
        pass
    assert "crossdraft: " not in str(caught.value)
