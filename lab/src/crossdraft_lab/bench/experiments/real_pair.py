"""The real pair: recorded answers of Video-LLaVA-7B and EventGPT-7B under replay. Tokens are exact, times simulated."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median

from crossdraft.methods import build
from crossdraft.records import DrafterContext, Method
from crossdraft_lab.bench.experiments.record import FigureTable
from crossdraft_lab.bench.replay import (
    RecordedDrafter,
    ReplayConfig,
    StageCosts,
    TraceReplay,
    hidden_over_clips,
    over_clips,
    play,
    tau_over_clips,
)
from crossdraft_lab.bench.traces import Trace, read_traces

RECORDED = "trace"
DRAFTERS = (RECORDED, "memory", f"union:{RECORDED},memory")
CHEAP, AS_RECORDED = 1.05, 4.5  # V(n)/t: with a good kernel; as recorded for 22 tokens in 4 bits
EVERY = "all questions"


def real_pair(paths: Sequence[Path]) -> tuple[str, tuple[FigureTable, ...]]:
    """Replay every file with each drafter, question by question; return notes on the figures, and a table per file.

    Args:
        paths: files of recorded answers, as `crossdraft replay` takes them; they are read in place.

    Raises:
        CrossdraftError: a file that cannot be read, or holds no recorded drafts.
    """
    files = {path: read_traces(path) for path in paths}
    known = [times for traces in files.values() for trace in traces if (times := trace.measured) is not None]
    prefill, step = (median(times) for times in zip(*known, strict=True)) if known else (None, None)
    times = "No file holds stage times: speed-ups are left out."
    if prefill is not None:
        times = (
            "Stage times are the recorded ones; a file without any has the medians of the others, "
            f"{prefill:.0f} ms of prefill and {step:.1f} ms a token."
        )
    setting = (
        "SIMULATED, all but acceptance. The answers were recorded, each model alone, greedily; EventGPT as released, "
        f"never tuned on this target. Drafting is free during the prefill and, by {RECORDED}, always; nothing adapts. "
        f"{times} A verifying pass costs {CHEAP} steps, or {AS_RECORDED} as recorded of 4-bit weights. Recordings "
        "overlap in time, so even clips, over which the intervals are, are no independent evidence; what memory knows "
        "is from earlier answers, in order."
    )
    costs = {verify: StageCosts(prefill, step, verify) for verify in (CHEAP, AS_RECORDED)}
    return setting, tuple(_table(path.stem, traces, costs) for path, traces in files.items())


def _table(name: str, traces: Sequence[Trace], costs: Mapping[float, StageCosts]) -> FigureTable:
    heads = (
        "",
        "drafter",
        "answers",
        "accepted of the hidden draft",
        "τ",
        *(f"speed-up, V = {one:g}" for one in costs),
    )
    rows = [row for drafter in DRAFTERS for row in _rows(drafter, traces, costs)]
    note = "Each speed-up is simulated; the bound 1/ρ is what no way to hide a draft passes."
    return FigureTable(f"{name}: {len(traces)} recorded answers", (*heads, "bound 1/ρ"), tuple(rows), note)


def _rows(drafter: str, traces: Sequence[Trace], costs: Mapping[float, StageCosts]) -> Iterator[tuple[str, ...]]:
    """One row for all questions, and one for each question where there are several."""
    recorded = Method(RECORDED, "what was recorded", "crossdraft", lambda *_: RecordedDrafter(traces))
    made = build(drafter, DrafterContext(target=None, methods={RECORDED: recorded}))
    config = ReplayConfig()
    played = [play(trace, made, config, next(iter(costs.values()))) for trace in traces]
    yield question_row(EVERY, drafter, played, costs)
    questions = dict.fromkeys(trace.question for trace in traces)
    if len(questions) > 1:
        for question in questions:
            own = [one for one in played if one.trace.question == question]
            yield question_row(question, drafter, own, costs)


def question_row(
    question: str, drafter: str, played: Sequence[TraceReplay], costs: Mapping[float, StageCosts]
) -> tuple[str, ...]:
    """Row of figures for some answers by one drafter."""
    speedups = []
    for cost in costs.values():
        times = [found for one in played if (found := one.times(cost)) is not None]
        whole = len(times) == len(played)
        ms = [t.alone for t in times], [t.drafted for t in times]
        speedups.append(over_clips(played, *ms).shown("clips") if whole else "–")
    stages = [(found, one) for one in played if (found := next(iter(costs.values())).of(one.trace)) is not None]
    prefill = sum(found[0] for found, _ in stages)
    decode = sum(found[1] * (len(one.trace.target_tokens) - 1) for found, one in stages)
    bound = f"{(prefill + decode) / prefill:.2f}" if len(stages) == len(played) else "–"
    hidden, tau = (one(played).shown("clips") for one in (hidden_over_clips, tau_over_clips))
    return question, drafter, str(len(played)), hidden, tau, *speedups, bound
