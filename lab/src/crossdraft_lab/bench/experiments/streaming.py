"""Experiment 4: a standing question on a stream of 30 frames a second: windows answered, windows dropped, and delay.

It also finds the highest rate of windows at which none is dropped, for the pair and for the target alone.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from operator import itemgetter
from typing import Any

from crossdraft.streams import WatchSummary, Windowing
from crossdraft_lab.bench.charts import interval_bars
from crossdraft_lab.bench.experiments.record import Experiment, FigureTable, Findings, RowFaults, Setting, UnitResult
from crossdraft_lab.bench.specs import ALONE
from crossdraft_lab.bench.statistics import Interval, percentile, ratio, ratio_of_some
from crossdraft_lab.bench.study import MODELS, FigureColumn, bar, figure_table, note_lines, plain, rows_json, shown
from crossdraft_lab.bench.watch import (
    COLUMNS,
    RateTry,
    Runs,
    StreamBench,
    StreamRun,
    rate_over,
    rows,
    run_rates,
    run_watch,
    stream_seeds,
)
from crossdraft_lab.scenes import VIDEO_FPS

Tried = Mapping[str, Sequence[Sequence[RateTry]]]
"""For each method, the rates tried with each question."""


QUESTION, RATES = "question ", "rates, question "  # first part of the keys of units


def highest(tries: Sequence[RateTry]) -> float:
    """Highest of the tried rates at which no window was dropped; 0 if there is none."""
    return max((rate for rate, run in tries if not run.summary.dropped), default=0.0)


def unequal(tried: Tried) -> list[str]:
    """Methods that gave a window an answer unlike the target's own, at any rate."""
    found = []
    for name, questions in tried.items():
        for tries, alone in zip(questions, tried[ALONE[0]], strict=True):
            own = {number: tokens for _, run in alone for number, tokens in run.tokens.items()}
            if any(own.get(number, tokens) != tokens for _, run in tries for number, tokens in run.tokens.items()):
                found.append(name)
    return list(dict.fromkeys(found))


def rate_rows(tried: Tried, drafter: str) -> list[dict[str, Any]]:
    """Highest rates over all questions, a row for each method.

    `each`: windows a second, in the order of the questions; `mean`: their mean, drawn over questions; `over`: ratio of
    the mean to that of the faster way to run the target alone, `None` where that way does not keep up with the lowest
    rate; `late_ms`: the largest delay of a frame.
    """
    each = {name: list(map(highest, questions)) for name, questions in tried.items()}
    best = max((name for name in each if name != drafter), key=lambda name: sum(each[name]))
    return [
        {
            "name": name,
            "each": own,
            "mean": ratio(own, [1] * len(own)),
            "over": ratio(own, each[best]) if all(each[best]) else None,
            "best": best,
            "late_ms": 1e3 * max(run.summary.late_s for tries in tried[name] for _, run in tries),
        }
        for name, own in each.items()
    ]


def rate_sentence(rows: Sequence[Mapping[str, Any]], drafter: str) -> str:
    """Sentence on the highest rates."""
    by_name = {row["name"]: row for row in rows}
    own, best = by_name[drafter], by_name[rows[0]["best"]]
    times = "" if own["over"] is None else f": {own['over']} times the rate"
    return (
        f"Without dropping one {drafter} keeps up with {own['mean']} windows a second, {best['name']} with "
        f"{best['mean']}{times}."
    )


def rate_table(found: Sequence[Mapping[str, Any]], rates: Sequence[float], windows: int) -> FigureTable:
    """Table of the highest rates, a row for each method."""
    columns = (
        FigureColumn("", "", itemgetter("name")),
        FigureColumn("", "windows a second", itemgetter("mean")),
        FigureColumn("", "lowest, highest", lambda row: f"{min(row['each']):g}, {max(row['each']):g}"),
        FigureColumn("", f"over {found[0]['best']}", itemgetter("over")),
        FigureColumn("", "frames late, at most, ms", lambda row: f"{row['late_ms']:.0f}"),
    )
    return figure_table(
        f"The highest rate at which none of {windows} windows is dropped",
        columns,
        [(row,) for row in found],
        f"Of {', '.join(f'{rate:g}' for rate in rates)} a second, by bisection, methods in turn; 0 is none of "
        "them, and what keeps up with the last one may with more. The stream is replayed at the speed that gives "
        "the rate; a rate that fails is tried twice. One window may wait while another is answered. The mean of "
        "the questions; intervals of so few are narrower than the truth.",
    )


RATE_FIGURES = (
    FigureColumn("rate_without_drops", "", lambda row: {**row["mean"].to_json(), "each": row["each"]}, json=dict),
    FigureColumn("rate_without_drops_over_alone", "", itemgetter("over")),
    FigureColumn("rate_without_drops_late_ms", "", itemgetter("late_ms"), json=lambda ms: round(ms, 1)),
)


@dataclass(frozen=True, slots=True)
class StreamingConfig:
    """Settings of the stream: a window for each frame, which shows the `window_s` seconds up to it.

    Args:
        rates: windows a second; sought is the highest rate at which no window is dropped.
        rate_every_s: seconds between the windows whose rate is sought: a multiple of the time between frames, so that
            windows are evenly spaced.
        rate_questions, rate_seconds: number of questions with which the rate is sought, and length of their stream.
    """

    fps: float = 30.0
    window_s: float = 1.0
    seconds: int = 8
    questions: int = 16
    drafter: str = "glance"
    max_new_tokens: int = 96
    rates: tuple[float, ...] = (2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 14, 16, 20, 24)
    rate_every_s: float = 0.125
    rate_questions: int = 4
    rate_seconds: int = 4

    def bench(self, setting: Setting | None = None) -> StreamBench:
        """Bench with all questions."""
        cores = None if setting is None else setting.cores
        made = StreamBench(
            MODELS,
            Windowing(1 / self.fps, self.window_s),
            self.drafter,
            seconds=self.seconds,
            max_new_tokens=self.max_new_tokens,
            fps=self.fps,
            cores=cores,
        )
        return replace(made, questions=made.asked[: self.questions])


def units(config: StreamingConfig) -> list[str]:
    """Keys: a unit for each question, in which all methods watch the stream in turn; then those of the rates."""
    questions = range(len(config.bench().questions))
    return [f"{QUESTION}{number}" for number in questions] + [
        f"{RATES}{number}" for number in questions[: config.rate_questions]
    ]


def measure(config: StreamingConfig, keys: Sequence[str], setting: Setting) -> Iterator[UnitResult]:
    """Measure the units of the keys, question after question."""
    plan = config.bench(setting)
    for key in keys:
        if key.startswith(RATES):
            yield _rates_unit(config, plan, key, setting)
            continue
        number = int(key.removeprefix(QUESTION))
        question = plan.questions[number]
        runs = run_watch(replace(plan, questions=(question,)), setting.tick, before=number)
        found = {name: [_run_json(run) for run in each] for name, each in runs.items()}
        yield UnitResult(key, stream_seeds(config.seconds), {"question": question, "runs": found})


def _rate_windowing(config: StreamingConfig) -> Windowing:
    """Windows of the stream whose highest rate is sought."""
    return Windowing(config.rate_every_s, config.window_s)


def _rates_unit(config: StreamingConfig, plan: StreamBench, key: str, setting: Setting) -> UnitResult:
    number = int(key.removeprefix(RATES))
    question = plan.questions[number]
    asked = replace(
        plan, questions=(question,), seconds=config.rate_seconds, windowing=_rate_windowing(config), fps=VIDEO_FPS
    )
    tries = run_rates(asked, config.rates, setting.tick, before=number)
    found = {name: [[rate, _run_json(run)] for rate, run in each] for name, each in tries.items()}
    return UnitResult(key, stream_seeds(config.rate_seconds), {"question": question, "rates": found})


def _run_json(run: StreamRun) -> dict[str, Any]:
    tokens = [[number, list(answer)] for number, answer in run.tokens.items()]
    return {
        "summary": asdict(run.summary), "tokens": tokens, "notes": run.notes, "drafter_error": run.drafter_error,
    }  # fmt: skip


def _run_of(found: dict[str, Any]) -> StreamRun:
    tokens = {number: tuple(answer) for number, answer in found["tokens"]}
    return StreamRun(
        WatchSummary(**found["summary"]), tokens, tuple(found.get("notes", ())), found.get("drafter_error")
    )


def times_of(runs: Sequence[StreamRun]) -> dict[str, dict[str, Interval | None]]:
    """Return p50 and p99 in ms from a window's last frame to the first token and to the end, drawn over runs."""
    every = {"first": [run.summary.first_s for run in runs], "whole": [run.summary.whole_s for run in runs]}
    return {
        name: {f"p{rank}": None if (one := percentile(each, rank)) is None else one.scaled(1e3) for rank in (50, 99)}
        for name, each in every.items()
    }


def dropped_shares(runs: Runs) -> dict[str, Interval | None]:
    """Σ dropped over Σ due windows of each method, drawn over runs; `None` where no window was due."""
    sums = {name: [(run.summary.dropped, run.summary.due) for run in each] for name, each in runs.items()}
    return {name: ratio_of_some(each) for name, each in sums.items()}


def summarise(config: StreamingConfig, found: Sequence[UnitResult]) -> Findings:
    """Summarise all questions in a table with a row for each method."""
    asked, rated = ([unit for unit in found if part in unit.found] for part in ("runs", "rates"))
    names = list(asked[0].found["runs"])
    runs: Runs = {name: [_run_of(run) for unit in asked for run in unit.found["runs"][name]] for name in names}
    tried = {name: [[(r, _run_of(run)) for r, run in unit.found["rates"][name]] for unit in rated] for name in names}
    rates = {row["name"]: row for row in rate_rows(tried, config.drafter)}
    found_rows = {row["name"]: row for row in rows(runs)}
    times = {name: times_of(each) for name, each in runs.items()}
    dropped = dropped_shares(runs)
    pair, alone = found_rows[config.drafter], [row for name, row in found_rows.items() if name != config.drafter]
    best = max(alone, key=lambda row: row["rate"].value)
    table = figure_table(
        f"{config.seconds} s of {config.fps:g} frames a second, a window of {config.window_s:g} s at each frame",
        TABLE,
        [({**row, **times[name], "share": dropped[name]},) for name, row in found_rows.items()],
        "The latest window wins: one that comes while another is answered waits, and is dropped for the next. Answers "
        "a second is the rate that the method sustains, over the whole of the stream; the first window is due after "
        f"{config.window_s:g} s. Times count from a window's last frame.",
    )
    every = {name: [*runs[name], *(run for tries in tried[name] for _, run in tries)] for name in names}
    over = {name: rate_over(runs, name, best["name"]) for name in names}
    wrong = {*unequal(tried), *(name for name, row in found_rows.items() if len(set(row["identical"])) > 1)}
    slower = pair["whole_ms"] and best["whole_ms"] and pair["whole_ms"]["p99"] > best["whole_ms"]["p99"]
    same, compared = pair["identical"]
    return Findings(
        found=(
            f"{config.drafter} answers {pair['answered']} of {pair['due']} windows, {pair['rate']} a second; "
            f"{best['name']} {best['answered']} of {best['due']}, {best['rate']} a second: {over[config.drafter]} "
            f"times the rate. {same} of {compared} answers to the same windows are the same. "
            f"{rate_sentence([*rates.values()], config.drafter)}"
        ),
        sure=(
            f"{len(asked)} questions, one run of each method each, methods in turn in one process, all of one stream "
            f"of {config.seconds} scenes: n counts questions, and no interval covers other streams. Windows of one run "
            "overlap, so intervals are 95 % bootstrap over runs, those of percentiles too. The highest rates are of "
            f"the first {len(rated)} questions, on {config.rate_seconds} s; that rates below one that holds hold, too, "
            "is taken for granted."
        ),
        tables=(table, rate_table([*rates.values()], config.rates, _rate_windowing(config).count(config.rate_seconds))),
        figure=interval_bars(
            "Answers a second on a stream",
            [
                bar(name, row["rate"], "draft" if name == config.drafter else "prefill")
                for name, row in found_rows.items()
            ],
            "/ s",
            None,
        ),
        figures={
            name: {
                **rows_json(COLUMNS, row),
                "last_frame_to_first_token_ms": plain(times[name]["first"]),
                "last_frame_to_whole_answer_ms": plain(times[name]["whole"]),
                "windows_dropped_share": plain(dropped[name]),
                "rate_over_alone": over[name].to_json(),
                **rows_json(RATE_FIGURES, rates[name]),
            }
            for name, row in found_rows.items()
        },
        negative=(f"The slowest answers (p99) are slower than those of {best['name']}.",) if slower else (),
        faults=faults_of_runs(every, [name for name in names if name in wrong]),
    )  # fmt: skip


def faults_of_runs(runs: Runs, unequal: Sequence[str]) -> RowFaults:
    """Faults of runs whose methods are all lossless and greedy."""
    lost = tuple(name for name, each in runs.items() if any(run.drafter_error for run in each))
    return RowFaults(
        tuple(unequal), lost, note_lines((name, note) for name in runs for run in runs[name] for note in run.notes)
    )


def _ranks(found: Mapping[str, Interval | None]) -> str:
    return " / ".join("–" if one is None else one.shown(digits=0) for one in found.values())


TABLE = (
    FigureColumn("", "", itemgetter("name")),
    FigureColumn("", "answered", lambda row: (row["answered"], row["due"])),
    FigureColumn("", "dropped", itemgetter("share"), lambda one: shown(one and one.percent())),
    FigureColumn("", "answers a second", itemgetter("rate")),
    FigureColumn("", "first token p50 / p99, ms", itemgetter("first"), _ranks),
    FigureColumn("", "whole answer p50 / p99, ms", itemgetter("whole"), _ranks),
    FigureColumn("", "same tokens", itemgetter("identical")),
    FigureColumn("", "τ", itemgetter("tau")),
)


STREAMING = Experiment(
    "streaming",
    4,
    "Streaming at 30 frames a second",
    "Of a window at every frame, how many are answered and how many dropped, how late are the answers, and which rate "
    "is sustained, with windows dropped and with none?",
    StreamingConfig(),
    StreamingConfig(seconds=3, questions=1, rates=(2, 4, 8), rate_questions=1, rate_seconds=3),
    units,
    measure,
    summarise,
)
