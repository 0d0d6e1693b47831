"""Load of this machine's GPUs while something runs, by NVML: a thread samples load, memory and power.

The library is NVIDIA's own, `nvidia-ml-py` (module `pynvml`), an option: `pip install -e '.[gpus]'`. Without it,
and on a machine without a GPU, nothing is sampled, and a sentence says why.
"""

import importlib
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from types import TracebackType
from typing import Any, Self

from crossdraft_lab.bench.environment import MIB

EVERY_S = 0.1  # NVML itself averages over a sixth of a second to a second
NO_LIBRARY = "No GPU was sampled: the package nvidia-ml-py is not installed; pip install -e '.[gpus]' in the checkout."


@dataclass(frozen=True, slots=True)
class GpuSample:
    """One reading of one GPU.

    Args:
        busy: share of NVML's last interval in which a kernel ran, 0 … 1.
        memory_busy: share of it in which memory was read or written, 0 … 1.
        used_mib: memory in use, by whichever process.
        watts: drawn; `None` where the GPU does not say.
    """

    busy: float
    memory_busy: float
    used_mib: float
    watts: float | None


def gpu_use(name: str, samples: Sequence[GpuSample]) -> dict[str, Any]:
    """Readings of one GPU, which follow one another too closely for an interval: means and largest ones.

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


class GpuSampler:
    """Samples all GPUs from `with` to its end; `absent` says why it does not, where it does not.

    Args:
        every_s: from one reading to the next.
    """

    def __init__(self, every_s: float = EVERY_S) -> None:
        self.absent: str | None = None
        self._every_s, self._stop = every_s, threading.Event()
        self._nvml: Any = None
        self._devices: list[tuple[str, Any]] = []
        self._samples: list[list[GpuSample]] = []
        self._thread: threading.Thread | None = None

    @property
    def uses(self) -> list[dict[str, Any]]:
        """Readings of each GPU so far, summarised."""
        return [
            gpu_use(name, samples) for (name, _), samples in zip(self._devices, self._samples, strict=True) if samples
        ]

    def __enter__(self) -> Self:
        try:
            self._nvml = importlib.import_module("pynvml")
        except ImportError:
            self.absent = NO_LIBRARY
            return self
        try:
            self._nvml.nvmlInit()
        except self._nvml.NVMLError as error:
            self.absent = f"No GPU was sampled: NVML says '{error}'."
            self._nvml = None
            return self
        count = self._nvml.nvmlDeviceGetCount()
        handles = [self._nvml.nvmlDeviceGetHandleByIndex(number) for number in range(count)]
        self._devices = [(self._nvml.nvmlDeviceGetName(handle), handle) for handle in handles]
        self._samples = [[] for _ in handles]
        self.absent = None if handles else "No GPU was sampled: NVML knows of none."
        if handles:
            self._thread = sampling(self._read, self._every_s, self._stop)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        if self._nvml is not None:
            self._nvml.nvmlShutdown()

    def _read(self) -> None:
        """One reading of each; a GPU that does not answer is left out this time."""
        for (_, handle), samples in zip(self._devices, self._samples, strict=True):
            try:
                load = self._nvml.nvmlDeviceGetUtilizationRates(handle)
                used = self._nvml.nvmlDeviceGetMemoryInfo(handle).used
            except self._nvml.NVMLError:
                continue
            samples.append(GpuSample(load.gpu / 100, load.memory / 100, used / MIB, self._watts(handle)))

    def _watts(self, handle: Any) -> float | None:
        try:
            return self._nvml.nvmlDeviceGetPowerUsage(handle) / 1e3
        except self._nvml.NVMLError:
            return None


def sampling(read: Callable[[], None], every_s: float, stop: threading.Event) -> threading.Thread:
    """A thread that reads at once, then every so many seconds, and once more when it is told to stop."""

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
