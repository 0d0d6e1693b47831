"""GPUs sampled by NVML: the arithmetic, the thread, and a machine that has no library or no driver."""

import ctypes.util
import importlib.util
import subprocess
import sys
import threading
import time

import pytest

from crossdraft_lab.bench.gpu import NO_LIBRARY, GpuSample, GpuSampler, GpuUse, sampling


def test_readings_by_hand():
    samples = [GpuSample(0.5, 0.2, 1000.0, 100.0), GpuSample(1.0, 0.4, 3000.0, 300.0), GpuSample(0.0, 0.0, 500.0, None)]
    use = GpuUse.of("H100", samples)
    assert use.to_json() == {
        "name": "H100", "samples": 3, "busy": 0.5, "memory_busy": 0.2, "most_mib": 3000.0, "watts": 200.0,
        "most_watts": 300.0,
    }  # fmt: skip
    silent = GpuUse.of("T4", samples[2:])
    assert (silent.watts, silent.most_watts) == (None, None)


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
    with GpuSampler() as gpus:
        assert gpus.absent == "No GPU was sampled: NVML says 'NVML Shared Library Not Found'."
    assert gpus.uses == []


def test_without_the_library_it_is_said():
    code = "from crossdraft_lab.bench.gpu import GpuSampler\nwith GpuSampler() as gpus: print(gpus.absent, gpus.uses)"
    hidden = f"import sys; sys.modules['pynvml'] = None\n{code}"
    found = subprocess.run([sys.executable, "-c", hidden], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == f"{NO_LIBRARY} []"
