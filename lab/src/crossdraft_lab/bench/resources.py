"""Resources of a process and its children: resident memory, threads, processes, files. Read from /proc only."""

import os
import signal
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

from crossdraft_lab.bench.environment import MIB

PROC, SHARED = Path("/proc"), Path("/dev/shm")  # noqa: S108 - looked at, never written to
MOST_GROWTH = 0.03  # largest `flatness` of `part_medians` of flat memory
SETTLED = 0.2  # memory is judged after this share of the requests
PARTS = 8  # parts of the samples: within a part, memory swings with the requests
PATIENCE_S = 10.0  # seconds to wait for processes and threads that are ending


@dataclass(frozen=True, slots=True)
class MemorySample:
    """Resident memory after `done` requests.

    Args:
        done: number of requests that are over.
        parent_mib, children_mib: memory of this process, and of all processes that it started.
        whole: true unless a process was missing, such as one that is being restarted.
        open_files: number of this process's open files.
    """

    done: int
    parent_mib: float
    children_mib: float
    whole: bool
    open_files: int

    @property
    def total_mib(self) -> float:
        """Resident memory of all processes."""
        return self.parent_mib + self.children_mib

    def to_json(self) -> dict[str, object]:
        """Plain values."""
        return {name: round(value, 2) if isinstance(value, float) else value for name, value in asdict(self).items()}


@dataclass(frozen=True, slots=True)
class Leftovers:
    """Resources that should be gone.

    Args:
        processes: children that still run, and zombies, by their names.
        threads: threads, by name.
        files: files in the folder for temporary ones.
        shared: segments of shared memory that carry the id of one of our processes.
    """

    processes: tuple[str, ...] = ()
    threads: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()

    @property
    def any(self) -> bool:
        """True if anything is left."""
        return bool(self.processes or self.threads or self.files or self.shared)

    def to_json(self) -> dict[str, list[str]]:
        """Plain values."""
        return {name: list(value) for name, value in asdict(self).items()}

    def __str__(self) -> str:
        parts = (f"{name}: {', '.join(values)}" for name, values in self.to_json().items() if values)
        return "; ".join(parts) or "nothing"


def sample(done: int, *, whole: bool = True) -> MemorySample:
    """Sample the present memory of this process and of all its descendants."""
    children = sum(map(resident_mib, descendants(os.getpid())))
    return MemorySample(done, resident_mib(os.getpid()), children, whole, _open_files())


def resident_mib(pid: int) -> float:
    """Resident memory of a process; 0 if it is gone."""
    with suppress(OSError):
        return int((PROC / str(pid) / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / MIB
    return 0.0


@contextmanager
def halted(*pids: int) -> Iterator[None]:
    """Stop processes and their descendants within the block: an idle process may still poll.

    An idle worker of vLLM's server takes a sixth of a core.
    """
    held = [one for pid in pids for one in (pid, *descendants(pid))]
    try:
        _signal_all(held, signal.SIGSTOP)
        yield
    finally:
        _signal_all(held, signal.SIGCONT)


def _signal_all(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def descendants(pid: int) -> dict[int, str]:
    """Processes that a process started, directly or not: id -> name, with `(zombie)` behind it if it is one."""
    parents: dict[int, tuple[int, str]] = {}
    for entry in PROC.glob("[0-9]*/stat"):
        with suppress(OSError):
            number, _, rest = entry.read_text(errors="replace").partition(" (")
            name, _, fields = rest.rpartition(") ")
            state, parent = fields.split()[:2]
            parents[int(number)] = int(parent), name + (" (zombie)" if state == "Z" else "")
    found: dict[int, str] = {}
    ours = {pid}
    while more := {child: name for child, (parent, name) in parents.items() if parent in ours and child not in found}:
        found |= more
        ours = set(more)
    return found


def flatness(values: Sequence[float]) -> float:
    """(max - min) / median; 0 for fewer than two values.

    >>> flatness([100, 101, 102])
    0.019801980198019802
    """
    return (max(values) - min(values)) / median(values) if len(values) > 1 else 0.0


def part_medians(values: Sequence[float]) -> list[float]:
    """Medians of `PARTS` successive parts of values, in the order of time; fewer values than parts stay unchanged.

    >>> part_medians([*range(16)])
    [0.5, 2.5, 4.5, 6.5, 8.5, 10.5, 12.5, 14.5]
    """
    bounds = [len(values) * part // PARTS for part in range(PARTS + 1)]
    return [median(values[start:stop]) for start, stop in pairwise(bounds) if stop > start]


@contextmanager
def own_temporary_folder() -> Iterator[Path]:
    """Create a folder for temporary files of this process and of those that it starts, while the context is open."""
    before, variable = tempfile.tempdir, os.environ.get("TMPDIR")
    with tempfile.TemporaryDirectory(prefix="crossdraft-") as folder:
        tempfile.tempdir = os.environ["TMPDIR"] = folder
        try:
            yield Path(folder)
        finally:
            tempfile.tempdir = before
            os.environ.pop("TMPDIR") if variable is None else os.environ.update(TMPDIR=variable)


def leftovers(temporary: Path, pids: Sequence[int], before: Sequence[threading.Thread]) -> Leftovers:
    """Find what is left of the processes `pids`, of files in the folder, and of threads that `before` does not list.

    Waits some seconds for processes and threads that are ending.
    """
    deadline = time.monotonic() + PATIENCE_S
    while True:
        found = Leftovers(
            tuple(f"{name} {pid}" for pid, name in descendants(os.getpid()).items() if pid in pids),
            tuple(one.name for one in threading.enumerate() if one not in before),
            tuple(sorted(path.name for path in temporary.iterdir())),
            tuple(sorted(path.name for path in _shared() if any(str(pid) in path.name for pid in pids))),
        )
        if not found.any or time.monotonic() > deadline:
            return found
        time.sleep(0.05)


def _shared() -> list[Path]:
    return list(SHARED.iterdir()) if SHARED.is_dir() else []


def _open_files() -> int:
    with suppress(OSError):
        return len(list((PROC / "self" / "fd").iterdir()))
    return 0
