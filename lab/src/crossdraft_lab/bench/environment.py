"""The machine of a measurement, and the memory used. Imports torch and transformers only where needed."""

import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

from crossdraft import __version__

try:
    import resource
except ImportError:  # Windows has none
    resource = None

MIB = 2**20


def environment() -> dict[str, object]:
    """Collect what a reader needs to weigh a time: machine, versions, threads, and the load by other programs."""
    import torch
    import transformers

    return {
        "crossdraft": __version__,
        "commit": _commit(),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "platform": platform.platform(),
        "cpu": _cpu(),
        "cpus": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "load_1min": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
    }


def memory() -> dict[str, float | None]:
    """Peaks of this process in MiB: resident, and on the GPUs (None without one)."""
    return {"peak_rss_mib": _peak_rss(), "peak_cuda_mib": peak_cuda_mib()}


def peak_cuda_mib() -> float | None:
    """Peak allocated by this process on the GPUs in MiB; None without one."""
    import torch

    if not torch.cuda.is_available():
        return None
    return round(sum(map(torch.cuda.max_memory_allocated, range(torch.cuda.device_count()))) / MIB, 1)


def _peak_rss() -> float | None:
    """Peak resident memory of this process in MiB; None where the system does not say."""
    if resource is None:
        return None
    unit = 1 if sys.platform == "darwin" else 1024  # macOS counts in bytes, Linux in KiB
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / MIB, 1)


def peak_rss_of(pid: int) -> float | None:
    """Peak resident memory of a process in MiB; None if it is gone, or where there is no /proc."""
    peak = peak_bytes_of(pid)
    return None if peak is None else round(peak / MIB, 1)


def peak_bytes_of(pid: int | str) -> int | None:
    """Peak resident memory of a process in bytes; None if it is gone, or without /proc."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    found = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(found[0]) * 1024 if found else None


def _commit() -> str | None:
    """Commit of the checkout that runs, marked if files differ from the commit; None outside a checkout."""
    root = Path(__file__).parents[4]
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=8"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):  # no git here, or no commit yet
        return None


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
