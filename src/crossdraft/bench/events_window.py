"""Recordings of real size: how long it takes from the file to a drafter's five frames, and how much memory.

It is measured in a process of its own, `python -m crossdraft.bench.events_window FILE RUNS`, so that its peak memory
is that of reading and painting. The file lies in the page cache, as in a drafter whose clip was just recorded.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from crossdraft.errors import CrossdraftError
from crossdraft.events import Events, Excerpt, Newest, eventgpt_frames

WINDOW = Newest(us=1_000_000, least=5, most=1_000_000)  # the reference pair's
CLOCK_US = 57_922_807_588  # a DSEC clock: microseconds since the sensor was switched on


@dataclass(frozen=True, slots=True)
class ReadTiming:
    """What was found.

    Args:
        ms: time of each run.
        events: of the window.
        peak_mb: peak resident memory of the process; None where this system does not tell.
    """

    ms: list[float]
    events: int
    peak_mb: float | None


def time_frames(path: Path, runs: int) -> ReadTiming:
    """Read and paint the window so many times, after one run that does not count."""
    times, events = [], 0
    for _ in range(runs + 1):
        start = time.perf_counter()
        (window,) = Excerpt(path).read_windows(WINDOW)
        eventgpt_frames(window)
        events = len(window)
        times.append((time.perf_counter() - start) * 1e3)
    return ReadTiming(times[1:], events, _peak_mb())


def time_apart(path: Path, runs: int) -> ReadTiming:
    """`time_frames` in a fresh process.

    Raises:
        CrossdraftError: it failed.
    """
    command = [sys.executable, "-m", "crossdraft.bench.events_window", str(path), str(runs)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    if found.returncode:
        raise CrossdraftError(f"Reading {path} failed: {found.stderr.strip().splitlines()[-1]}.")
    return ReadTiming(**json.loads(found.stdout))


def write_plain_dsec(path: Path, chunks: Iterable[Events]) -> None:
    """DSEC's layout as others write it: h5py's own chunk sizes, no attributes, an index of milliseconds."""
    import h5py
    import hdf5plugin
    import numpy as np

    from crossdraft.events import concatenate

    whole = concatenate(list(chunks))
    t = whole.t - CLOCK_US
    with h5py.File(path, "w") as file:
        for name, column in (("x", whole.x), ("y", whole.y), ("t", t.astype("u4")), ("p", whole.p)):
            file.create_dataset(f"events/{name}", data=column, **hdf5plugin.Blosc(cname="zstd"))
        file["t_offset"] = CLOCK_US
        file["ms_to_idx"] = np.searchsorted(t, np.arange(int(t[-1]) // 1000 + 1) * 1000).astype("u8")


def _peak_mb() -> float | None:
    """Of this process alone: `getrusage` would also tell of the one that started it."""
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii")
    except OSError:
        return None
    peak = next((line for line in status.splitlines() if line.startswith("VmHWM:")), None)
    return None if peak is None else int(peak.split()[1]) * 1024 / 1e6


if __name__ == "__main__":
    print(json.dumps(asdict(time_frames(Path(sys.argv[1]), int(sys.argv[2])))))  # noqa: T201 - that is its answer
