"""Where and when a figure was measured, by which commit, on which GPUs and cores."""

import ctypes.util
import importlib.util
import os
import shutil
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime, timedelta

import pytest

from crossdraft.checks import parse_cores, spans
from crossdraft.cli.cores import Cores, choose_cores
from crossdraft.errors import CrossdraftError
from crossdraft_lab.bench import environment as module
from crossdraft_lab.bench.gpu import NO_LIBRARY, GpuSample, gpu_use, sampled_gpus, sampling


def test_a_figure_knows_its_time():
    found = module.environment()
    assert abs(datetime.fromisoformat(str(found["time"])) - datetime.now(UTC)) < timedelta(minutes=1)


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_a_figure_knows_its_commit_and_that_files_differ_from_it(tmp_path, monkeypatch):
    def git(*arguments):
        names = ("-c", "user.name=x", "-c", "user.email=x@example.com")
        return subprocess.run(
            ["git", "-C", tmp_path, *names, *arguments], check=True, capture_output=True, text=True
        ).stdout

    source = tmp_path / "lab" / "src" / "crossdraft_lab" / "bench" / "environment.py"
    source.parent.mkdir(parents=True)
    source.write_text("")
    monkeypatch.setattr(module, "__file__", str(source))
    assert module.environment()["commit"] is None, "no checkout"
    git("init", "-q")
    assert module.environment()["commit"] is None, "no commit yet"
    git("add", ".")
    git("commit", "-qm", "first")
    commit = git("rev-parse", "--short=8", "HEAD").strip()
    assert module.environment()["commit"] == commit
    source.write_text("changed")
    assert module.environment()["commit"] == f"{commit}-dirty"


def test_readings_by_hand():
    samples = [GpuSample(0.5, 0.2, 1000.0, 100.0), GpuSample(1.0, 0.4, 3000.0, 300.0), GpuSample(0.0, 0.0, 500.0, None)]
    assert gpu_use("H100", samples) == {
        "name": "H100", "samples": 3, "busy": 0.5, "memory_busy": 0.2, "most_mib": 3000.0, "watts": 200.0,
        "most_watts": 300.0,
    }  # fmt: skip
    silent = gpu_use("T4", samples[2:])
    assert (silent["watts"], silent["most_watts"]) == (None, None)


def test_the_thread_reads_at_once_again_and_in_the_end():
    times, stop = [], threading.Event()
    thread = sampling(lambda: times.append(time.perf_counter()), 0.02, stop)
    time.sleep(0.15)
    stop.set()
    thread.join(5)
    assert not thread.is_alive()
    assert 3 <= len(times) <= 10
    quick = threading.Event()
    quick.set()
    once = []
    sampling(lambda: once.append(1), 60, quick).join(5)
    assert len(once) == 2, "the beginning and the end, without waiting for a minute"


@pytest.mark.skipif(importlib.util.find_spec("pynvml") is None, reason="needs nvidia-ml-py")
@pytest.mark.skipif(ctypes.util.find_library("nvidia-ml") is not None, reason="there is a driver")
def test_a_machine_without_a_driver_is_said():
    with sampled_gpus() as gpus:
        assert gpus.absent == "No GPU was sampled: NVML says 'NVML Shared Library Not Found'."
    assert gpus.uses == []


def test_without_the_library_it_is_said():
    code = (
        "from crossdraft_lab.bench.gpu import sampled_gpus\nwith sampled_gpus() as gpus: print(gpus.absent, gpus.uses)"
    )
    hidden = f"import sys; sys.modules['pynvml'] = None\n{code}"
    found = subprocess.run([sys.executable, "-c", hidden], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == f"{NO_LIBRARY} []"


@pytest.mark.parametrize(("text", "cores"), [("0", (0,)), ("2,0", (0, 2)), ("0-2", (0, 1, 2)), ("1,1-2", (1, 2))])
def test_core_lists(text, cores):
    assert parse_cores(text, [0, 1, 2]) == cores


@pytest.mark.parametrize("text", ["", "a", "1-", "-1", "0,,1", "2-1"])
def test_what_is_no_core_list(text):
    with pytest.raises(CrossdraftError):
        parse_cores(text, [0, 1, 2])


def test_a_core_that_is_not_there():
    with pytest.raises(CrossdraftError, match="may use"):
        parse_cores("7", [0, 1])


@pytest.mark.parametrize("text", ["0-999999999999999999", "0,5-9999999999", ",".join(["1"] * 9000) + ",9"])
def test_a_range_without_end_is_refused_at_once_and_in_short(text):
    with pytest.raises(CrossdraftError, match="but this process may use only 0-1") as raised:
        parse_cores(text, [0, 1])
    assert len(str(raised.value)) < 150


def test_the_first_absent_core_is_named():
    with pytest.raises(CrossdraftError, match=r"'0-9' names core 2, but this process may use only 0-1, 4\."):
        parse_cores("0-9", [0, 1, 4])


def test_more_digits_than_any_core_has_are_no_list_of_cores():
    with pytest.raises(CrossdraftError, match="is no list of cores") as raised:
        parse_cores("1" * 5000, [0, 1])
    assert len(str(raised.value)) < 150


@pytest.mark.parametrize(
    ("cores", "shown"),
    [
        ((3,), "3"),
        ((0, 1, 2, 5, 7, 8), "0-2, 5, 7-8"),
        (range(192), "0-191"),
        (range(0, 64, 2), "0, 2, 4, 6, 8, 10, 12, 14 … (32 in all)"),
    ],
)
def test_cores_for_people(cores, shown):
    assert spans(cores) == shown


def test_shared_cores_are_reported():
    assert Cores((0,), (0,)).shared
    assert not Cores((0,), (1,)).shared


def test_by_default_each_side_has_a_core_of_its_own(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})
    assert choose_cores() == Cores((0,), (1,))
    assert choose_cores(all_target=True) == Cores((0, 1, 2), (3,))
    assert choose_cores(draft="0") == Cores((1,), (0,))
    assert choose_cores(target="0-3") == Cores((0, 1, 2, 3), (0, 1, 2, 3))


def test_on_a_single_core_both_share_it(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {5})
    assert choose_cores() == choose_cores(all_target=True) == Cores((5,), (5,))
