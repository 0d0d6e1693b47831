"""Load of this machine's GPUs while something runs, by NVML: a thread samples load, memory and power.

The library is NVIDIA's own, `nvidia-ml-py` (module `pynvml`), an option: `pip install -e '.[gpus]'`. Without it,
and on a machine without a GPU, nothing is sampled, and a sentence says why.
"""

import importlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, NamedTuple

from crossdraft_lab.bench.environment import MIB

EVERY_S = 0.1  # NVML itself averages over a sixth of a second to a second
NO_LIBRARY = "No GPU was sampled: the package nvidia-ml-py is not installed; pip install -e '.[gpus]' in the checkout."


class GpuSample(NamedTuple):
    """One reading of one GPU.

    `busy` and `memory_busy` are shares of NVML's last interval, 0 … 1, in which a kernel ran, and in which memory was
    read or written; `used_mib` is memory in use, by whichever process; `watts` is `None` where the GPU does not say.
    """

    busy: float
    memory_busy: float
    used_mib: float
    watts: float | None


def gpu_use(name: str, samples: Sequence[GpuSample]) -> dict[str, Any]:
    """Means and maxima of one GPU's readings; successive readings are too dependent for an interval.

    `watts` and `most_watts` are `None` where the GPU does not say.
    """
    watts = [one.watts for one in samples if one.watts is not None]
    return {
        "name": name,
        "samples": len(samples),
        "busy": round(fmean(one.busy for one in samples), 4),
        "memory_busy": round(fmean(one.memory_busy for one in samples), 4),
        "most_mib": round(max(one.used_mib for one in samples), 1),
        "watts": round(fmean(watts), 1) if watts else None,
        "most_watts": round(max(watts), 1) if watts else None,
    }


@dataclass(slots=True)
class GpuReadings:
    """Readings of all GPUs by name; `absent` says why there are none, and is `None` otherwise."""

    absent: str | None = None
    samples: dict[tuple[int, str], list[GpuSample]] = field(default_factory=dict[tuple[int, str], list[GpuSample]])

    @property
    def uses(self) -> list[dict[str, Any]]:
        """Readings of each GPU so far, summarised."""
        return [gpu_use(name, samples) for (_, name), samples in self.samples.items() if samples]


@contextmanager
def sampled_gpus(every_s: float = EVERY_S) -> Iterator[GpuReadings]:
    """Sample all GPUs within a `with` block, every `every_s` seconds."""
    try:
        nvml: Any = importlib.import_module("pynvml")
    except ImportError:
        yield GpuReadings(NO_LIBRARY)
        return
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        yield GpuReadings(f"No GPU was sampled: NVML says '{error}'.")
        return
    handles = [nvml.nvmlDeviceGetHandleByIndex(number) for number in range(nvml.nvmlDeviceGetCount())]
    found = GpuReadings(
        None if handles else "No GPU was sampled: NVML knows of none.",
        {(number, nvml.nvmlDeviceGetName(handle)): [] for number, handle in enumerate(handles)},
    )

    def watts(handle: Any) -> float | None:
        try:
            return nvml.nvmlDeviceGetPowerUsage(handle) / 1e3
        except nvml.NVMLError:
            return None

    def read() -> None:
        """Read each GPU once; a GPU that does not answer is left out of this reading."""
        for handle, samples in zip(handles, found.samples.values(), strict=True):
            with suppress(nvml.NVMLError):
                load = nvml.nvmlDeviceGetUtilizationRates(handle)
                used = nvml.nvmlDeviceGetMemoryInfo(handle).used
                samples.append(GpuSample(load.gpu / 100, load.memory / 100, used / MIB, watts(handle)))

    stop = threading.Event()
    thread = sampling(read, every_s, stop) if handles else None
    try:
        yield found
    finally:
        stop.set()
        if thread is not None:
            thread.join()
        nvml.nvmlShutdown()


def sampling(read: Callable[[], None], every_s: float, stop: threading.Event) -> threading.Thread:
    """Start a thread that reads at once, then every `every_s` seconds, and once more when `stop` is set."""

    def run() -> None:
        while True:
            start = time.perf_counter()
            read()
            if stop.wait(max(0.0, every_s - (time.perf_counter() - start))):
                read()
                return

    thread = threading.Thread(target=run, name="gpu-samples", daemon=True)
    thread.start()
    return thread
