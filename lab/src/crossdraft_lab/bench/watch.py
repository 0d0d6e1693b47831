"""`crossdraft bench watch`: a standing question on a replayed stream, by the pair and by the target alone.

The stream is one clip of held-out scenes, one after another, each a second long; windows in between show the end of one
and the beginning of the next. Every run asks one question throughout, so no prefix cache is used. Methods take turns,
in one process.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from operator import itemgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from crossdraft.checks import whole
from crossdraft.cli.cores import Cores
from crossdraft.comparisons import orders
from crossdraft.engine.fast.pinning import pinned
from crossdraft.engine.request import Request
from crossdraft.errors import CrossdraftError
from crossdraft.events import Events, Excerpt, write_events
from crossdraft.streams import (
    RecordedEvents,
    ReplayClock,
    SlidingWindows,
    Watch,
    WatchSummary,
    Windowing,
    frames_per_window,
    replaying,
)
from crossdraft.streams.summary import percentiles_ms
from crossdraft.video import write_mp4
from crossdraft_lab import scenes
from crossdraft_lab.bench.assembly import EngineMethod, Models, close_all, cores_of
from crossdraft_lab.bench.common import check_repeats
from crossdraft_lab.bench.experiments.record import FigureTable, Tick
from crossdraft_lab.bench.forking import forking
from crossdraft_lab.bench.specs import ALONE, check_methods
from crossdraft_lab.bench.statistics import Interval, ratio, ratio_of_some, ratio_per_token
from crossdraft_lab.bench.study import FigureColumn, figure_table, rows_json, shown
from crossdraft_lab.bench.variants import Variant, make_engine

WARM_UP_WINDOWS = 3
TRIES = 2  # tries of a rate that fails: other work of the machine may cost a window


@dataclass(frozen=True, slots=True)
class StreamBench:
    """Settings of a measurement of a stream.

    Args:
        models: the checkpoints, devices and dtypes.
        windowing: windows of the stream; each has the target's own number of frames.
        drafter: spec of the pair's drafter.
        questions: one question for each run; `()` = one of every kind, in wordings that no training has seen.
        repeats: number of runs of each question.
        seconds: length of the stream, a scene each second.
        max_new_tokens: largest number of tokens of an answer.
        speed: speed of the replay.
        cores: cores of the target's process and of the drafter's.
        fps: frames a second of the stream.

    Raises:
        CrossdraftError: a drafter that is unknown, a number that is too small, or a stream without a window.
    """

    models: Models
    windowing: Windowing
    drafter: str = "glance"
    questions: tuple[str, ...] = ()
    repeats: int = 1
    seconds: int = 8
    max_new_tokens: int = 96
    speed: float = 1.0
    cores: Cores | None = None
    fps: float = scenes.VIDEO_FPS

    def __post_init__(self) -> None:
        check_methods(ALONE, (self.drafter,))
        check_repeats(self.repeats, "question")
        whole("--seconds", self.seconds)
        ReplayClock(self.speed)
        if not self.windowing.count(self.seconds):
            raise CrossdraftError(
                f"A stream of {self.seconds} s has no window of {self.windowing.length_s:g} s; make it longer "
                "(--seconds)."
            )

    @property
    def names(self) -> tuple[str, ...]:
        """The pair and the target alone, on its own share of the pair's cores and, if those are more, on all."""
        one_share = self.cores is None or self.cores.pair == self.cores.target
        return (self.drafter, *(ALONE[:1] if one_share else ALONE))

    @property
    def asked(self) -> tuple[str, ...]:
        """Question of each run."""
        scene = scenes.make_scene(scenes.split_seeds("test")[0])
        every = tuple(scenes.ask(scene, kind, 0, held_out=True).question for kind in scenes.KINDS)
        return (self.questions or every) * self.repeats

    @property
    def runs(self) -> int:
        """Number of runs: the steps of the progress bar."""
        return len(self.names) * (len(self.asked) + 1)


@dataclass(frozen=True, slots=True)
class StreamRun:
    """One run of one method.

    Args:
        summary: summary of its windows.
        tokens: tokens of its answers, by window.
        notes: the engine's notes on all answers.
        drafter_error: reason why the drafter stopped drafting; `None` if it did not.
    """

    summary: WatchSummary
    tokens: dict[int, tuple[int, ...]]
    notes: tuple[str, ...] = ()
    drafter_error: str | None = None


Runs = dict[str, list[StreamRun]]


def run_watch(plan: StreamBench, tick: Tick = lambda _: None, before: int = 0) -> Runs:
    """Measure all methods, interleaved in one process that is pinned to the cores of the pair.

    Args:
        plan: what to measure.
        tick: called with the method's name after every run, warm-ups included.
        before: number of questions in earlier parts of the same measurement, whose orders are continued.
    """
    runs: Runs = {name: [] for name in plan.names}
    turns = orders(plan.names, after=before)
    with prepared(plan, tick) as watched:
        for number, question in enumerate(plan.asked):
            for name in next(turns):
                runs[name].append(watched.run(name, question, f"run {number}"))
                tick(name)
    return runs


@dataclass(frozen=True, slots=True)
class Watched:
    """A stream's files, and the methods that watch it.

    Args:
        plan: settings, with as many frames a window as the target wants.
        methods: the methods by name.
        files: paths of video and events.
    """

    plan: StreamBench
    methods: Mapping[str, EngineMethod]
    files: tuple[Path, Path]

    def run(self, name: str, question: str, namespace: str, speed: float | None = None) -> StreamRun:
        """Run a method once; `speed` replaces the plan's own."""
        plan = self.plan if speed is None else replace(self.plan, speed=speed)
        return watch_once(plan, self.methods[name], self.files, question, namespace)


@contextmanager
def prepared(plan: StreamBench, tick: Tick = lambda _: None) -> Iterator[Watched]:
    """Load all methods and warm them up, in this process, pinned to the pair's cores; `tick` as in `run_watch`."""
    made: dict[str, EngineMethod] = {}
    with (
        forking([__name__]),
        pinned(None if plan.cores is None else plan.cores.pair),
        TemporaryDirectory(prefix="crossdraft-") as folder,
    ):
        files, target = stream_files(plan.seconds, Path(folder), plan.fps), plan.models.load_target()
        frames = frames_per_window(target, plan.windowing.length_s)
        plan = replace(plan, windowing=replace(plan.windowing, frames=frames))
        try:
            for name in plan.names:
                made[name] = make_engine(Variant(name), target, plan.models, plan.cores)
            for name in plan.names:
                watch_once(plan, made[name], files, plan.asked[0], "warm-up", most=WARM_UP_WINDOWS)
                tick(name)
            yield Watched(plan, made, files)
        finally:
            close_all(made.values())


def watch_once(
    plan: StreamBench,
    method: EngineMethod,
    files: tuple[Path, Path],
    question: str,
    namespace: str,
    most: int | None = None,
) -> StreamRun:
    """Run a method once; what a drafter learns in the run does not help runs of another namespace."""
    video, events = files
    windows = SlidingWindows(plan.windowing, RecordedEvents(Excerpt(events, 0)))
    request = Request(question, max_new_tokens=plan.max_new_tokens, namespace=namespace)
    watch, tokens = Watch(method.ask, [request]), {}
    notes: list[str] = []
    error = None
    # The thread that reads frames may run on every core of the pair, whichever method answers.
    with (
        replaying(video, windows, watch, ReplayClock(plan.speed), most=most),
        pinned(None if method.cores is None else method.cores.target),
    ):
        for window in watch.answers():
            answer = window.answers[0].answer
            tokens[window.number] = answer.tokens
            notes += answer.notes
            error = error or answer.drafter_error
    return StreamRun(watch.summary, tokens, tuple(notes), error)


def stream_seeds(seconds: int) -> tuple[int, ...]:
    """Seeds of a stream's scenes, one each second."""
    seeds = scenes.split_seeds("test")
    return tuple(seeds[number % len(seeds)] for number in range(seconds))


def stream_files(seconds: int, folder: Path, fps: float = scenes.VIDEO_FPS) -> tuple[Path, Path]:
    """Write video and events of a stream of held-out scenes, on one clock; return both paths."""
    found = [scenes.make_scene(seed) for seed in stream_seeds(seconds)]
    times = np.arange(round(scenes.DURATION_S * fps)) / fps
    frames = (frame for scene in found for frame in scenes.render(scene, times, scenes.VIDEO_SIZE))
    video, events = folder / "stream.mp4", folder / "stream.h5"
    write_mp4(video, frames, fps)
    write_events(events, _joined(found))
    return video, events


def _joined(found: Sequence[scenes.Scene]) -> Iterator[Events]:
    length = round(scenes.DURATION_S * 1e6)
    for number, scene in enumerate(found):
        events = scenes.simulate_events(scene).slice(0, length)
        yield replace(events, t=events.t + number * length)


def rows(runs: Runs) -> list[dict[str, Any]]:
    """Figures of every method over all its runs, as `COLUMNS` shows them.

    Intervals are drawn over runs, for windows of one run overlap. `identical` counts answers that are the target's own,
    among windows that both answered; `first_ms` and `whole_ms` are p50 and p99 from a window's last frame to the first
    final token and to the end; `late_ms` is the largest delay of a frame.
    """
    return [_row(name, found, runs[ALONE[0]]) for name, found in runs.items()]


def _all_runs(parts: Sequence[WatchSummary]) -> WatchSummary:
    """Join the summaries of several watches that ran one after another."""
    sums = ("due", "answered", "dropped", "seconds", "changes", "tokens", "rounds", "signal_losses")
    drafting = ("hidden_drafting_s", "hidden_inside_s")
    return WatchSummary(
        **{name: sum(getattr(part, name) for part in parts) for name in (*sums, *drafting)},
        first_s=[one for part in parts for one in part.first_s],
        whole_s=[one for part in parts for one in part.whole_s],
        late_s=max((part.late_s for part in parts), default=0.0),
    )


def _row(name: str, found: Sequence[StreamRun], alone: Sequence[StreamRun]) -> dict[str, Any]:
    every = _all_runs([run.summary for run in found])
    both = [
        (run.tokens[number], own.tokens[number])
        for run, own in zip(found, alone, strict=True)
        for number in run.tokens.keys() & own.tokens.keys()
    ]
    return {
        "name": name,
        "due": every.due,
        "answered": every.answered,
        "dropped": every.dropped,
        "rate": ratio([run.summary.answered for run in found], [run.summary.seconds for run in found]),
        "first_ms": percentiles_ms(every.first_s),
        "whole_ms": percentiles_ms(every.whole_s),
        "identical": (sum(tokens == expected for tokens, expected in both), len(both)),
        "tau": ratio_of_some([(run.summary.tokens, run.summary.rounds) for run in found]),
        "hidden_share": ratio_of_some([(run.summary.hidden_inside_s, run.summary.hidden_drafting_s) for run in found]),
        "late_ms": 1e3 * every.late_s,
    }


def _times(found: dict[str, float] | None) -> str:
    return "none" if found is None else f"{found['p50']:.0f} / {found['p99']:.0f} ms"


COLUMNS = (
    FigureColumn("name", "method", itemgetter("name")),
    FigureColumn("", "cores", lambda row: row.get("cores", "")),
    FigureColumn("windows_due", "", itemgetter("due")),
    FigureColumn("windows_answered", "", itemgetter("answered")),
    FigureColumn("", "answered", lambda row: (row["answered"], row["due"])),
    FigureColumn("windows_dropped", "dropped", itemgetter("dropped")),
    FigureColumn("windows_per_s", "a second", itemgetter("rate")),
    FigureColumn(
        "last_frame_to_first_token_ms", "first token p50 / p99", itemgetter("first_ms"), _times, lambda one: one
    ),
    FigureColumn(
        "last_frame_to_whole_answer_ms", "whole answer p50 / p99", itemgetter("whole_ms"), _times, lambda one: one
    ),
    FigureColumn("late_ms", "frames late", itemgetter("late_ms"), lambda ms: f"{ms:.0f} ms", lambda ms: round(ms, 1)),
    FigureColumn("identical", "identical", itemgetter("identical"), json=shown),
    FigureColumn("tau", "", itemgetter("tau")),
    FigureColumn("hidden_share", "", itemgetter("hidden_share")),
)


def rate_over(runs: Runs, name: str, other: str) -> Interval:
    """Ratio of two methods' answered windows per second, drawn over runs."""
    counts = ([run.summary.answered for run in runs[one]] for one in (name, other))
    seconds = ([run.summary.seconds for run in runs[one]] for one in (name, other))
    (own, theirs), (own_s, their_s) = counts, seconds
    return ratio_per_token(own, own_s, theirs, their_s)


def results_table(plan: StreamBench, found: Sequence[Mapping[str, Any]]) -> FigureTable:
    """Table of the figures, for people."""
    each = f"a window of {plan.windowing.length_s:g} s each {1e3 * plan.windowing.every_s:g} ms"
    title = f"{plan.seconds} s of stream, {each}, {len(plan.asked)} questions, one a run"
    with_cores = [({**row, "cores": str(cores_of(row["name"], plan.cores) or "any")},) for row in found]
    note = "times from a window's last frame on; frames late: at most, by the stream's clock"
    return figure_table(title, COLUMNS, with_cores, note)


def to_json(
    plan: StreamBench, found: Sequence[Mapping[str, Any]], surroundings: dict[str, object]
) -> dict[str, object]:
    """Plain values; `surroundings` is the `environment` before the first run."""
    return {
        "environment": surroundings,
        "stream": {
            "seconds": plan.seconds,
            "speed": plan.speed,
            "every_s": plan.windowing.every_s,
            "window_s": plan.windowing.length_s,
            "questions": list(plan.asked),
            "max_new_tokens": plan.max_new_tokens,
        },
        "cores": {name: str(cores_of(name, plan.cores) or "any") for name in plan.names},
        "methods": [rows_json(COLUMNS, row) for row in found],
    }


RateTry = tuple[float, StreamRun]
"""A run at a rate, in windows a second; the rate holds if no window was dropped."""


@dataclass(slots=True)
class RateSearch:
    """A bisection over rates, the lowest first.

    Args:
        rates: the rates, rising.

    Attributes:
        tries: the runs so far, in their order.
    """

    rates: Sequence[float]
    tries: list[RateTry] = field(default_factory=list[RateTry])
    _low: int = 0  # number of lowest rates that are known to hold
    _high: int = field(init=False)  # number of lowest rates that may still hold

    def __post_init__(self) -> None:
        if not self.rates or list(self.rates) != sorted({rate for rate in self.rates if rate > 0}):
            raise CrossdraftError("Rates must be above 0 and rise; give them in order, each once.")
        self._high = len(self.rates)

    @property
    def next(self) -> float | None:
        """Return the rate to try; `None` once the highest one that holds is known."""
        return None if self._low == self._high else self.rates[(self._low + self._high) // 2]

    def note(self, run: StreamRun) -> None:
        """Record the run at the rate `next`."""
        at = (self._low + self._high) // 2
        self.tries.append((self.rates[at], run))
        if not run.summary.dropped:
            self._low = at + 1
        elif sum(rate == self.rates[at] for rate, _ in self.tries) == TRIES:
            self._high = at


def run_rates(
    plan: StreamBench, rates: Sequence[float], tick: Tick = lambda _: None, before: int = 0
) -> dict[str, list[RateTry]]:
    """Search the highest rate of each method with the first of the plan's questions; return each method's tries.

    Args:
        plan: settings; its speed is replaced for each rate.
        rates: rates to try, in windows a second, rising.
        tick: called with the method's name after every run, warm-ups included.
        before: number of earlier parts of the same measurement; each part begins with another order.

    Raises:
        CrossdraftError: the rates do not rise.
    """
    searches, question = {name: RateSearch(rates) for name in plan.names}, plan.asked[0]
    turns = orders(plan.names, after=before)
    with prepared(plan, tick) as watched:
        while any(search.next is not None for search in searches.values()):
            for name in next(turns):
                search = searches[name]
                if (rate := search.next) is not None:
                    namespace = f"try {len(search.tries)}"
                    search.note(watched.run(name, question, namespace, rate * plan.windowing.every_s))
                    tick(name)
    return {name: search.tries for name, search in searches.items()}
