"""`crossdraft bench events`: how long event frames, slices of a recording, and simulation take.

The recordings are made on the spot: a textured scene that slides past a simulated 640x480 sensor, brought to the
rate of a busy DSEC drive and repeated for some seconds. `--recording FILE` repeats a real window instead. The
sliced file lies in the page cache, as after any first reading.

Recordings of real size are read and painted in a process of its own, `python -m crossdraft_lab.bench.events FILE RUNS`,
so that its peak memory is that of this work.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crossdraft.errors import CrossdraftError
from crossdraft.events import Events, Excerpt, Newest, concatenate, eventgpt_frames, read_events, write_dsec_h5
from crossdraft_lab.bench.common import check_repeats
from crossdraft_lab.bench.environment import peak_bytes_of
from crossdraft_lab.bench.statistics import Quartiles, quartiles
from crossdraft_lab.scenes.sensor import PRESETS
from crossdraft_lab.scenes.simulate import Simulator

WIDTH, HEIGHT = 640, 480
WINDOW_US = 50_000
RATE_MEV_S = 5.87  # the busiest of the real windows that the project was measured on
LONGEST_S = 60  # seconds, of the made-up file: 350 million events at the rate above
SIMULATED = ("clean", "default", "noisy")
REAL_S, REAL_MEV_S = 8.0, 1.83  # what our simulator makes of a 640x480 video of 8 s: 14.6 million events
ROWS = 4 + len(SIMULATED)
SMALL, SMALL_HZ = 112, 500  # the sensor and rate of the training scenes
READ_WINDOW = Newest(us=1_000_000, least=5, most=1_000_000)  # the reference pair's
CLOCK_US = 57_922_807_588  # a DSEC clock: microseconds since the sensor was switched on


@dataclass(frozen=True, slots=True)
class Timing:
    """Time of one kind of work on a number of events.

    Args:
        name, events: name of the work, and number of events.
        ms: time in milliseconds.
        reach_ms: largest time that is aimed at; `None` = no aim.
        peak_mb: peak memory of a process that did this work alone; `None` = not measured.
        reach_mb: largest memory that is aimed at.
    """

    name: str
    events: int
    ms: Quartiles
    reach_ms: float | None
    peak_mb: float | None = None
    reach_mb: float | None = None


def run_events(recording: Path | None, seconds: float, repeats: int, tick: Callable[[str], None]) -> list[Timing]:
    """Take all the measurements; `tick` is called with the name of each when it is done.

    Raises:
        CrossdraftError: the file is too short to slice or too long to write, no run is asked for, or as `read_events`.
    """
    if not 1 <= seconds <= LONGEST_S:
        raise CrossdraftError(f"A file of {seconds:g} s cannot be sliced; give 1 to {LONGEST_S} seconds.")
    check_repeats(repeats, "measurement")
    timings = []
    for timing in measure(window_of(recording), seconds, repeats):
        timings.append(timing)
        tick(timing.name)
    return timings


def measure(window: Events, seconds: float, repeats: int) -> Iterator[Timing]:
    """Time frames of the window, a slice of 1 s from a file at its rate, recordings of real size, and simulation."""
    yield timed("5 EventGPT frames of a 50 ms window", window, lambda _: eventgpt_frames(window), repeats, 10)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "events.h5"
        write_dsec_h5(path, repeated(window, seconds))
        starts = window.t0 + np.linspace(0, (seconds - 1) * 1e6, repeats).astype(int)

        def one_second(i: int) -> Events:
            return read_events(path, start_us=int(starts[i]), end_us=int(starts[i]) + 1_000_000)

        yield timed("1 s slice of a DSEC h5", one_second(0), one_second, repeats, 400)
        yield from real_size(Path(folder), repeats)
    for preset in SIMULATED:
        yield simulation(preset, repeats)


def timed(name: str, events: Events, work: Callable[[int], object], repeats: int, reach_ms: float | None) -> Timing:
    """Run `work(i)` for i below `repeats`, after one run that does not count."""
    work(0)
    times = []
    for i in range(repeats):
        start = time.perf_counter()
        work(i)
        times.append((time.perf_counter() - start) * 1e3)
    return Timing(name, len(events), quartiles(times), reach_ms)


def real_size(folder: Path, repeats: int) -> Iterator[Timing]:
    """Time the way from a recording of 8 s (14.6 million events) to five frames of its last second, in a process."""
    window = synthetic_window(REAL_MEV_S)
    late = Events(window.x, window.y, window.t + CLOCK_US, window.p, window.width, window.height)
    for name, write in (("our own h5", write_dsec_h5), ("DSEC's layout", write_plain_dsec)):
        path = folder / "real.h5"
        write(path, repeated(late, REAL_S))
        found = time_in_process(path, repeats)
        row = f"{name} of {REAL_S:g} s, file to 5 frames"
        yield Timing(row, found["events"], quartiles(found["ms"]), 60, found["peak_mb"], 300)
        path.unlink()


def simulation(preset: str, repeats: int) -> Timing:
    """Time for each frame of a small sensor at 500 Hz in which a square moves by a pixel every 10 ms."""
    frames = np.full((200, SMALL, SMALL), 60, np.uint8)
    for i, frame in enumerate(frames):
        frame[40:64, 10 + i // 5 : 34 + i // 5] = 180
    simulator = Simulator(PRESETS[preset], 0)
    chunks = [simulator.feed(frame, i * 1_000_000 // SMALL_HZ) for i, frame in enumerate(frames)]
    count = sum(map(len, chunks))

    def clip(_: int) -> None:
        fresh = Simulator(PRESETS[preset], 0)
        for i, frame in enumerate(frames):
            fresh.feed(frame, i * 1_000_000 // SMALL_HZ)

    whole = timed("", chunks[0], clip, repeats, None).ms
    ms = Quartiles(*(value / len(frames) for value in (whole.median, whole.q1, whole.q3)))
    return Timing(f"a simulated {SMALL}x{SMALL} frame, {preset}", round(count / len(frames)), ms, 0.2)


def synthetic_window(rate_mev_s: float = RATE_MEV_S, seed: int = 0) -> Events:
    """50 ms of a sliding texture at a given rate, from our own simulator."""
    wanted = round(rate_mev_s * WINDOW_US)
    texture = _texture(np.random.default_rng(seed))
    simulator, chunks, count = Simulator(PRESETS["clean"], seed), [], 0
    for step in range(texture.shape[1] - WIDTH):
        chunks.append(simulator.feed(np.ascontiguousarray(texture[:, step : step + WIDTH]), step * 10_000))
        count += len(chunks[-1])
        if count >= wanted:
            break
    x, y, t, p = (np.concatenate([getattr(chunk, name) for chunk in chunks])[:wanted] for name in "xytp")
    scaled = (t - t[0]) * (WINDOW_US - 1) // max(int(t[-1] - t[0]), 1)
    return Events.checked(x, y, scaled, p, WIDTH, HEIGHT)


def repeated(window: Events, seconds: float) -> Iterator[Events]:
    """Repeat the window for some seconds, each time 50 ms later."""
    for i in range(round(seconds * 1e6 / WINDOW_US)):
        yield Events(window.x, window.y, window.t + i * WINDOW_US, window.p, window.width, window.height)


def window_of(recording: Path | None) -> Events:
    """The first 50 ms of a recording, or a made-up window.

    Raises:
        CrossdraftError: as `read_events`.
    """
    if recording is None:
        return synthetic_window()
    whole = read_events(recording)
    return whole.slice(whole.t0, whole.t0 + WINDOW_US)


def to_json(timings: Sequence[Timing], recording: Path | None) -> dict[str, object]:
    """Plain values."""
    return {"recording": source_of(recording), "timings": [asdict(timing) for timing in timings]}


def lines(timings: Sequence[Timing], recording: Path | None) -> list[str]:
    """The result for people."""
    out = [f"recording: {source_of(recording)}"]
    for timing in timings:
        aim = "" if timing.reach_ms is None else f", to reach {timing.reach_ms:g}"
        peak = "" if timing.peak_mb is None else f"; peak {timing.peak_mb:.0f} MB, to reach {timing.reach_mb:g}"
        ms = timing.ms
        spread = f"{ms.median:.3g} ms ({ms.q1:.3g} to {ms.q3:.3g})"
        out.append(f"{timing.name}: {spread}{aim}; {timing.events:,} events{peak}")
    return out


def source_of(recording: Path | None) -> str:
    """Name the source of the events that were measured, in words."""
    return "synthetic" if recording is None else str(recording)


def _texture(rng: np.random.Generator) -> NDArray[np.uint8]:
    """Blurred noise, wider than the sensor, over most of the grey scale."""
    noise = rng.standard_normal((HEIGHT + 8, WIDTH + 108))
    for axis in (0, 1):
        sums = np.cumsum(noise, axis=axis)
        noise = np.take(sums, range(8, sums.shape[axis]), axis) - np.take(sums, range(sums.shape[axis] - 8), axis)
    return np.clip(110 + 55 * noise / noise.std(), 5, 250).astype(np.uint8)


def time_frames(path: Path, runs: int) -> dict[str, Any]:
    """Read and paint the window `runs` times, after one run that does not count.

    Returns:
        `ms` of each run, `events` of the window, and `peak_mb` of this process; None where the system does not say.
    """
    times, events = [], 0
    for _ in range(runs + 1):
        start = time.perf_counter()
        (window,) = Excerpt(path).read_windows(READ_WINDOW)
        eventgpt_frames(window)
        events = len(window)
        times.append((time.perf_counter() - start) * 1e3)
    return {"ms": times[1:], "events": events, "peak_mb": _peak_mb()}


def time_in_process(path: Path, runs: int) -> dict[str, Any]:
    """`time_frames` in a fresh process.

    Raises:
        CrossdraftError: the process failed.
    """
    command = [sys.executable, "-m", "crossdraft_lab.bench.events", str(path), str(runs)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    if found.returncode:
        raise CrossdraftError(f"Reading {path} failed: {found.stderr.strip().splitlines()[-1]}.")
    return json.loads(found.stdout)


def write_plain_dsec(path: Path, chunks: Iterable[Events]) -> None:
    """Write DSEC's layout as other programs do: h5py's chunk sizes, no attributes, an index of milliseconds."""
    import h5py
    import hdf5plugin

    whole = concatenate(list(chunks))
    t = whole.t - CLOCK_US
    with h5py.File(path, "w") as file:
        for name, column in (("x", whole.x), ("y", whole.y), ("t", t.astype("u4")), ("p", whole.p)):
            file.create_dataset(f"events/{name}", data=column, **hdf5plugin.Blosc(cname="zstd"))
        file["t_offset"] = CLOCK_US
        file["ms_to_idx"] = np.searchsorted(t, np.arange(int(t[-1]) // 1000 + 1) * 1000).astype("u8")


def _peak_mb() -> float | None:
    """Return this process's peak memory: `getrusage` would count its parent's memory from before the start, too."""
    peak = peak_bytes_of(os.getpid())
    return None if peak is None else peak / 1e6


if __name__ == "__main__":
    print(json.dumps(time_frames(Path(sys.argv[1]), int(sys.argv[2]))))  # noqa: T201 - that is its answer
