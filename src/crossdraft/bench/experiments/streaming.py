"""Experiment 4: a standing question on a stream of 30 frames a second: what is answered, dropped, and how late."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from crossdraft.bench.experiments.blocks import MODELS
from crossdraft.bench.experiments.record import Experiment, FigureTable, Findings, Setting, UnitResult
from crossdraft.bench.watch import Runs, StreamBench, StreamRow, StreamRun, rate_over, rows, run_watch, stream_seeds
from crossdraft.drawing.charts import IntervalBar, interval_bars
from crossdraft.streams import WatchSummary, Windowing


@dataclass(frozen=True, slots=True)
class StreamingConfig:
    """A window for each frame of the stream, and one that shows so many seconds up to it."""

    fps: float = 30.0
    window_s: float = 1.0
    seconds: int = 8
    questions: int = 16
    drafter: str = "glance"
    max_new_tokens: int = 96

    def bench(self, setting: Setting | None = None) -> StreamBench:
        """All questions."""
        cores = None if setting is None else setting.cores
        made = StreamBench(
            MODELS,
            Windowing(1 / self.fps, self.window_s),
            self.drafter,
            seconds=self.seconds,
            max_new_tokens=self.max_new_tokens,
            cores=cores,
        )
        return replace(made, questions=made.asked[: self.questions])


def units(config: StreamingConfig) -> list[str]:
    """A unit for each question: all methods watch the stream with it, one after another."""
    return [f"question {number}" for number in range(len(config.bench().questions))]


def measure(config: StreamingConfig, keys: Sequence[str], setting: Setting) -> Iterator[UnitResult]:
    """Question after question."""
    plan = config.bench(setting)
    for key in keys:
        question = plan.questions[int(key.removeprefix("question "))]
        runs = run_watch(replace(plan, questions=(question,)), setting.tick)
        found = {name: [_run_json(run) for run in each] for name, each in runs.items()}
        yield UnitResult(key, stream_seeds(config.seconds), {"question": question, "runs": found})


def _run_json(run: StreamRun) -> dict[str, Any]:
    tokens = [[number, list(answer)] for number, answer in run.tokens.items()]
    return {"summary": asdict(run.summary), "tokens": tokens}


def _run_of(found: dict[str, Any]) -> StreamRun:
    return StreamRun(WatchSummary(**found["summary"]), {number: tuple(answer) for number, answer in found["tokens"]})


def summarise(config: StreamingConfig, found: Sequence[UnitResult]) -> Findings:
    """A row for each method, of all questions."""
    names = list(found[0].found["runs"])
    runs: Runs = {name: [_run_of(run) for unit in found for run in unit.found["runs"][name]] for name in names}
    shown = {row.name: row for row in rows(runs)}
    pair, alone = shown[config.drafter], [row for row in shown.values() if row.name != config.drafter]
    best = max(alone, key=lambda row: row.rate.value)
    table = FigureTable(
        f"{config.seconds} s of {config.fps:g} frames a second, a window of {config.window_s:g} s at each frame",
        ("", "answered", "dropped", "answers a second", "first token p50 / p99, ms", "whole answer p50 / p99, ms",
         "same tokens", "τ"),
        tuple(_row(row) for row in shown.values()),
        "The latest window wins: one that comes while another is answered waits, and is dropped for the next. Answers "
        "a second is the rate that the method sustains. Times count from a window's last frame.",
    )  # fmt: skip
    faster = rate_over(runs, config.drafter, best.name)
    slower = pair.whole_ms and best.whole_ms and pair.whole_ms["p99"] > best.whole_ms["p99"]
    return Findings(
        found=(
            f"{config.drafter} answers {pair.answered} of {pair.due} windows, {pair.rate} a second; {best.name} "
            f"{best.answered} of {best.due}, {best.rate} a second: {faster} times the rate. "
            f"{pair.identical} of {pair.compared} answers to the same windows are the same."
        ),
        sure=(
            f"{len(found)} questions, one run of each method each, methods in turn in one process, all of one stream "
            f"of {config.seconds} scenes: n counts questions, and no interval covers other streams. Windows of one run "
            "overlap, so intervals are 95 % bootstrap over runs; percentiles of times have none."
        ),
        tables=(table,),
        figure=interval_bars(
            "Answers a second on a stream",
            [_bar(row, config) for row in shown.values()],
            "/ s",
            None,
        ),
        figures={name: row.to_json() for name, row in shown.items()},
        negative=(f"The slowest answers (p99) are slower than those of {best.name}.",) if slower else (),
    )  # fmt: skip


def _bar(row: StreamRow, config: StreamingConfig) -> IntervalBar:
    return IntervalBar(row.name, row.rate.value, row.rate.low, row.rate.high, row.rate.n, _style(row, config))


def _style(row: StreamRow, config: StreamingConfig) -> str:
    return "draft" if row.name == config.drafter else "prefill"


def _row(row: StreamRow) -> tuple[str, ...]:
    return (
        row.name,
        f"{row.answered}/{row.due}",
        f"{row.dropped / row.due:.0%}" if row.due else "–",
        str(row.rate),
        _times(row.first_ms),
        _times(row.whole_ms),
        f"{row.identical}/{row.compared}",
        "–" if row.tau is None else str(row.tau),
    )


def _times(found: dict[str, float] | None) -> str:
    return "–" if found is None else f"{found['p50']:.0f} / {found['p99']:.0f}"


STREAMING = Experiment(
    "streaming",
    4,
    "Streaming at 30 frames a second",
    "Of a window at every frame, how many are answered and how many dropped, how late are the answers, and which rate "
    "is sustained?",
    StreamingConfig(),
    StreamingConfig(seconds=3, questions=1),
    units,
    measure,
    summarise,
)
