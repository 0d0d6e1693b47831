"""`crossdraft bench growth`: time and memory as a clip, a prompt, an answer, a queue or a memory grows.

Every point is measured with our engine and with Hugging Face's `generate`, one after the other in one process, on the
same cores; memory is how far the process's peak rises over what it held before.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import torch

from crossdraft.comparisons import orders
from crossdraft.engine.fast.heap import trim
from crossdraft.errors import CrossdraftError
from crossdraft_lab.bench.common import check_names, check_repeats, table
from crossdraft_lab.bench.environment import environment, peak_bytes_of

if TYPE_CHECKING:
    from rich.table import Table

# What grows, and to which sizes.
SIZES = {
    "frames": (1, 2, 4, 8, 16, 32, 64),
    "prompt": (100, 300, 1000, 3000, 10_000, 30_000),
    "answer": (5, 15, 50, 150, 500),
    "requests": (1, 2, 4, 8, 16, 32),
    "memory": (1000, 10_000, 100_000, 1_000_000),
}
UNITS = {
    "frames": "frames of a clip",
    "prompt": "tokens of a prompt",
    "answer": "tokens of an answer",
    "requests": "requests at a time",
    "memory": "tokens in the memory",
}
LONG_S = 5.0  # a run that takes longer is not repeated
OWN_PEAK = Path("/proc/self/clear_refs")
Answers = Sequence[Sequence[int]]
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Way:
    """One of the two sides at one point.

    Args:
        run: one run; returns its answers.
        calls: so many are timed in a run.
        held_bytes: what it holds, where that is known better than from the process's peak.
        seconds: of a run, where it was timed already; then nothing runs.
    """

    run: Callable[[], Answers] = list
    calls: int = 1
    held_bytes: int | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """A size, and both ways to do it; `None` where Hugging Face has nothing of the kind."""

    size: int
    ours: Way
    hf: Way | None
    compared: bool = True


@dataclass(frozen=True, slots=True)
class Curve:
    """A curve: the size that grows, and its points.

    Args:
        of: one of `SIZES`.
        weights: whose they are, in words.
        ours, hf: what ran, in words.
        cases: the points, made one after another.
    """

    of: str
    weights: str
    ours: str
    hf: str
    cases: Iterator[Case]


@dataclass(frozen=True, slots=True)
class Side:
    """Seconds of the fastest run, and bytes by which the peak rose; `None` where the system does not say."""

    seconds: float
    bytes: int | None

    def to_json(self) -> dict[str, object]:
        """Plain values."""
        return {"ms": round(self.seconds * 1e3, 4), "bytes": self.bytes}


@dataclass(frozen=True, slots=True)
class Point:
    """Both sides at one size; `identical` is `None` where there are no answers to compare."""

    size: int
    ours: Side
    hf: Side | None
    identical: bool | None

    def to_json(self) -> dict[str, object]:
        """Plain values."""
        hf = None if self.hf is None else self.hf.to_json()
        return {"size": self.size, "ours": self.ours.to_json(), "hf": hf, "identical": self.identical}


@dataclass(frozen=True, slots=True)
class GrowthResult:
    """A measured curve."""

    of: str
    weights: str
    ours: str
    hf: str
    points: list[Point]

    def to_json(self) -> dict[str, object]:
        """Plain values."""
        words = {"of": self.of, "unit": UNITS[self.of], "weights": self.weights, "ours": self.ours, "hf": self.hf}
        return {**words, "points": [point.to_json() for point in self.points]}


def chosen(of: str) -> tuple[str, ...]:
    """The curves that a list names; `all` names every one.

    >>> chosen("prompt,frames")
    ('prompt', 'frames')

    Raises:
        CrossdraftError: an unknown one.
    """
    names = tuple(SIZES) if of == "all" else tuple(name.strip() for name in of.split(","))
    check_names("curve", names, tuple(SIZES))
    return names


def sizes(of: str, largest: int | None) -> tuple[int, ...]:
    """The sizes of a curve up to the largest that is wanted.

    Raises:
        CrossdraftError: none is as small as that.
    """
    found = tuple(size for size in SIZES[of] if largest is None or size <= largest)
    if not found:
        raise CrossdraftError(f"--largest is {largest}, and {of} begins at {SIZES[of][0]}; give that or more.")
    return found


def run_curve(curve: Curve, repeats: int, tick: Callable[[str], None] | None = None) -> GrowthResult:
    """Measure every point; both sides in turn, `repeats` times unless one run is long."""
    check_repeats(repeats, "point")
    points: list[Point] = []
    for case in curve.cases:
        if not points:  # whatever is imported and made at a first time
            run_case(case, 1)
        points.append(run_case(case, repeats))
        if tick is not None:
            tick(f"{curve.of} {case.size:,}")
    return GrowthResult(curve.of, curve.weights, curve.ours, curve.hf, points)


def run_case(case: Case, repeats: int) -> Point:
    """One point: a first run of each side for its memory and its answers, then the others for their time.

    The first runs also warm both sides up; of a size whose first run is long it is the only one.
    """
    ways = {"ours": case.ours, "hf": case.hf}
    sides = {name: way for name, way in ways.items() if way is not None}
    best: dict[str, float] = {}
    peaks: dict[str, int | None] = {}
    answers: dict[str, Answers] = {}
    for name, way in sides.items():
        peaks[name], (best[name], answers[name]) = peak_of(lambda way=way: clocked_run(way))
    turns = orders(list(sides))
    for _ in range(0 if max(best.values()) > LONG_S else repeats):
        for name in next(turns):
            best[name] = min(best[name], clocked_run(sides[name])[0])
    made = {
        name: Side(best[name] / way.calls, peaks[name] if way.held_bytes is None else way.held_bytes)
        for name, way in sides.items()
    }
    identical = None
    if case.compared and len(answers) > 1:
        identical = [tuple(one) for one in answers["ours"]] == [tuple(one) for one in answers["hf"]]
    return Point(case.size, made["ours"], made.get("hf"), identical)


def clocked_run(way: Way) -> tuple[float, Answers]:
    """Seconds of a run, and its answers."""
    if way.seconds is not None:
        return way.seconds, []
    start = time.perf_counter()
    answers = way.run()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start, answers


def peak_of(run: Callable[[], Result]) -> tuple[int | None, Result]:
    """By how many bytes the peak rose over what was held before: of the GPU if there is one, else of this process."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        result = run()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before, result
    trim()  # what the last run freed would be used again, unseen
    try:
        OWN_PEAK.write_text("5", encoding="ascii")  # the peak begins anew
    except OSError:
        return None, run()
    held = peak_bytes_of("self")
    result = run()
    peak = peak_bytes_of("self")
    return None if held is None or peak is None else max(0, peak - held), result


def growth_table(result: GrowthResult) -> "Table":
    """A curve for people."""
    title = f"{UNITS[result.of]}: {result.weights}"
    rows = table(title, result.of, ("ours", "HF", "HF / ours", "ours", "HF", "identical"), caption=_words(result))
    for point in result.points:
        hf = point.hf
        same = {True: "yes", False: "NO", None: "-"}[point.identical]
        ratio = "-" if hf is None else f"{hf.seconds / point.ours.seconds:.2f}"
        theirs = ("-", "-") if hf is None else (_time(hf.seconds), _size(hf.bytes))
        rows.add_row(
            f"{point.size:,}", _time(point.ours.seconds), theirs[0], ratio, _size(point.ours.bytes), theirs[1], same
        )
    return rows


def to_json(results: Sequence[GrowthResult]) -> dict[str, object]:
    """All curves in plain values."""
    return {"environment": environment(), "curves": [result.to_json() for result in results]}


def _words(result: GrowthResult) -> str:
    return f"ours: {result.ours}; HF: {result.hf}. Each time is the fastest of a few runs, each memory a single reading"


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


def _size(count: int | None) -> str:
    return "-" if count is None else f"{count / 1e6:,.1f} MB"
