"""The result as JSON and as a table."""

from rich.markup import escape
from rich.table import Table

from crossdraft_lab.bench.common import table
from crossdraft_lab.bench.measure import gaps_in_words
from crossdraft_lab.bench.specs import ALONE, ALWAYS
from crossdraft_lab.bench.statistics import FEW_PAIRS, Interval
from crossdraft_lab.bench.suite import HOW, BenchReport
from crossdraft_lab.bench.summary import MethodSummary

SPEEDUPS = {  # what the table of speedups compares
    "answer": "Σ time of the baseline / Σ time of the method",
    "token": "time per token of the baseline / that of the method",
}
INTERVALS = "[95 % bootstrap over pairs]"
LEGEND = (
    f"τ = mean acceptance length: tokens per verify pass, bonus included {INTERVALS}. hidden = part of the hidden "
    "drafting that ran while the target prepared, encoded and prefilled. prefill = slowdown of the target's encoding "
    "and prefill. engine = its own part of a round, talking to the drafter included."
)


def to_json(report: BenchReport) -> dict[str, object]:
    """The whole report in plain values; times in milliseconds as {median, q1, q3}."""
    return {
        "environment": report.environment,
        "workload": report.workload,
        "memory": {"how": HOW},
        "methods": [{**method_json(method), **_where(report, method.name)} for method in report.methods],
    }


def _where(report: BenchReport, name: str) -> dict[str, object]:
    """The cores and the memory of a method."""
    cores, footprint = report.cores.get(name), report.footprints.get(name)
    return {
        "cores": None if cores is None else {"target": list(cores.target), "drafter": list(cores.draft)},
        "memory": None if footprint is None else footprint.to_json(),
    }


def method_json(method: MethodSummary) -> dict[str, object]:
    """One method. `speedup` is the headline; `speedups` holds every baseline that ran.

    The headline is against the faster of the target alone on its own share of the cores and on all that the pair uses.
    Each says what it is `against`, and whether it compares the times per `answer` or, when sampling, per `token`.
    """
    speedups = {
        against: {**interval.to_json(), "against": against, "per": method.per}
        for against, interval in method.speedups.items()
    }
    identical = None if method.equal is None else {"equal": method.equal, "total": method.total}
    return {
        "name": method.name,
        "lossless": method.lossless,
        "lossy": method.lossy,
        "identical": identical,
        "divergences": [divergence.to_json() for divergence in method.divergences],
        "first_provisional_ms": None if method.provisional is None else method.provisional.ms(),
        "ttft_ms": method.ttft.ms(),
        "total_ms": method.latency.ms(),
        "tokens_per_s": round(method.tokens_per_s, 2),
        "speedup": None if method.against is None else speedups[method.against],
        "speedups": list(speedups.values()),
        **_figure("tau", method.tau),
        "accepted_per_position": [round(share, 3) for share in method.per_position],
        **_figure("hidden_share", method.hidden_share),
        **_figure("prefill_slowdown", method.prefill_slowdown),
        **_figure("overhead_share", method.overhead_share),
        "stage_ms": {stage: times.ms() for stage, times in method.stages.items()},
        "notes": list(method.notes),
    }


def _figure(name: str, figure: Interval | None) -> dict[str, object]:
    """A figure and its interval under names of their own; both are null where there is none."""
    found: dict[str, object] = {} if figure is None else figure.to_json(name)
    return {name: found.get(name), f"{name}_ci95": found.get("ci95")}


def tables(report: BenchReport) -> list[Table]:
    """For the terminal: how fast each is and what it takes; how that comes about; the ratios to other baselines."""
    work = report.workload
    title = f"{work['pairs']} held-out pairs × {work['repeats']}, answers of {work['mean_tokens']} tokens on average"
    against = report.methods[0].against
    heads = ["cores", "identical", "provisional", "TTFT ms", "total ms", "MiB"]
    heads += [] if against is None else [f"× {against}"]
    fast = table(title, "method", heads, _caption(report))
    how = table("how it comes about", "method", ("tok/s", "τ", "hidden", "prefill", "engine"), LEGEND)
    others = [name for name in report.methods[0].speedups if name not in ALONE]
    compared = f"{SPEEDUPS[report.methods[0].per]} {INTERVALS}"
    ratios = table(compared, "method", [f"× {name}" for name in others])
    for method in report.methods:
        fast.add_row(escape(method.label), *_speed(report, method))
        how.add_row(escape(method.label), *_ways(method))
        ratios.add_row(escape(method.label), *(str(method.speedups[name]) for name in others))
    return [fast, how, ratios] if others else [fast, how]


def _speed(report: BenchReport, method: MethodSummary) -> list[str]:
    cores, footprint = report.cores.get(method.name), report.footprints.get(method.name)
    memory = None if footprint is None else footprint.total
    return [
        "" if cores is None else str(cores),
        identical(method.equal, method.total, lossless=method.lossy is None),
        "" if method.provisional is None else f"{method.provisional.median * 1e3:.1f}",
        f"{method.ttft.median * 1e3:.1f}",
        f"{method.latency.median * 1e3:.1f}",
        "" if memory is None else f"{memory:.0f}",
        *([] if method.headline is None else [str(method.headline)]),
    ]


def _ways(method: MethodSummary) -> list[str]:
    return [
        f"{method.tokens_per_s:.0f}",
        _tau(method),
        _percent(method.hidden_share),
        _percent(method.prefill_slowdown),
        _percent(method.overhead_share),
    ]


def _tau(method: MethodSummary) -> str:
    drafted = method.tau.value > 1  # else every pass gave one token, and there is no more to say
    return str(method.tau) if drafted else "1"


def identical(equal: int | None, total: int, *, lossless: bool = True) -> str:
    """A cell: how many answers were the target's own; a dash if none was compared (sampled, or without a target)."""
    if equal is None:
        return "–"
    found = f"{equal}/{total}"
    return found if lossless and equal == total else f"[red]{found}[/]"


def _caption(report: BenchReport) -> str:
    gaps = gaps_in_words([divergence for method in report.methods for divergence in method.divergences])
    notes = sorted({note for method in report.methods for note in method.notes})
    words = report.workload.get("in_words", [])
    about = words if isinstance(words, list) else []
    return "\n".join([*map(escape, map(str, about)), *_columns(report), *_caveats(report), *gaps, *map(escape, notes)])


def _columns(report: BenchReport) -> list[str]:
    """Explain the figures of the first table."""
    found = ["medians: provisional = first drafted token; TTFT = first final token; total = whole answer (E2E)"]
    against = report.methods[0].against
    if against is not None:
        faster = f"the faster of {' and '.join(ALONE)}" if set(ALONE) <= set(report.methods[0].speedups) else "alone"
        found.append(f"× {against} ({faster}) = {SPEEDUPS[report.methods[0].per]} {INTERVALS}")
    return [*found, f"MiB: {HOW}."] if report.footprints else found


def _caveats(report: BenchReport) -> list[str]:
    """List what a reader must know before comparing rows."""
    found = []
    if report.methods[0].per == "token":
        found.append("sampled: the tokens may differ, so none are compared, and speedups are per token")
    elif report.methods[0].equal is None:
        found.append("the target alone did not run: no tokens are compared")
    absent = [name for name in ALWAYS if name not in {method.name for method in report.methods}]
    if absent:
        found.append(f"not measured: {', '.join(absent)}")
    if report.pairs < FEW_PAIRS:
        found.append(f"fewer than {FEW_PAIRS} pairs: the intervals are narrower than the truth")
    return found


def _percent(share: Interval | None) -> str:
    return "" if share is None else share.percent()
