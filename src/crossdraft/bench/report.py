"""The result as JSON and as a table."""

from typing import TYPE_CHECKING

from crossdraft.bench.summary import Method

if TYPE_CHECKING:
    from rich.table import Table

    from crossdraft.bench.suite import Report


SPEEDUPS = {  # what the table of speedups compares
    "answer": "Σ time of the baseline / Σ time of the method",
    "token": "time per token of the baseline / that of the method",
}
INTERVALS = "[95 % bootstrap over pairs]"
FEW_PAIRS = 10  # fewer give a bootstrap too little to draw from


def to_json(report: "Report") -> dict[str, object]:
    """The whole report in plain values; times in milliseconds as {median, q1, q3}."""
    return {
        "environment": report.environment,
        "workload": report.workload,
        "memory": report.memory,
        "methods": [method_json(method) for method in report.methods],
    }


def method_json(method: Method) -> dict[str, object]:
    """One method. `speedup` is against the target alone if it ran; `speedups` holds every baseline that ran.

    Each says what it is `against`, and whether it compares the times per `answer` or, when sampling, per `token`.
    """
    speedups = [
        {**interval.to_json(), "against": against, "per": method.per}
        for against, interval in method.speedups.items()
    ]
    identical = None if method.equal is None else {"equal": method.equal, "total": method.total}
    return {
        "name": method.name,
        "lossless": method.lossless,
        "lossy": method.lossy,
        "identical": identical,
        "divergences": [divergence.to_json() for divergence in method.divergences],
        "ttft_ms": method.ttft.ms(),
        "total_ms": method.latency.ms(),
        "tokens_per_s": round(method.tokens_per_s, 2),
        "speedup": speedups[0] if speedups else None,
        "speedups": speedups,
        "tau": round(method.tau.value, 3),
        "tau_ci95": method.tau.to_json()["ci95"],
        "accepted_per_position": [round(share, 3) for share in method.per_position],
        "hidden_share": rounded(method.hidden_share),
        "prefill_slowdown": rounded(method.prefill_slowdown),
        "overhead_share": rounded(method.overhead_share),
        "stage_ms": {stage: times.ms() for stage, times in method.stages.items()},
        "notes": list(method.notes),
    }


def rounded(value: float | None, digits: int = 4) -> float | None:
    """A share to four digits; None stays."""
    return None if value is None else round(value, digits)


def tables(report: "Report") -> "list[Table]":
    """For the terminal: one line per method, its times first, then its speedups over every baseline."""
    from rich import box
    from rich.table import Table

    work = report.workload
    title = f"{work['pairs']} held-out pairs × {work['repeats']}, answers of {work['mean_tokens']} tokens on average"
    compared = f"{SPEEDUPS[report.methods[0].per]} {INTERVALS}"
    times = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), caption=_caption(report))
    speedups = Table(title=compared, box=box.SIMPLE_HEAD)
    baselines = (f"× {baseline}" for baseline in report.methods[0].speedups)
    heads = ("identical", "TTFT ms", "total ms", "tok/s", "τ", "hidden", "prefill", "engine")
    for table, columns in ((times, heads), (speedups, baselines)):
        table.add_column(
            "method", overflow="fold"
        )  # a long spec goes on in the next line, the figures stay whole
        for head in columns:
            table.add_column(head, justify="right", no_wrap=True)
    for method in report.methods:
        times.add_row(*_cells(method))
        speedups.add_row(_label(method), *map(str, method.speedups.values()))
    return [times, speedups]


def _label(method: Method) -> str:
    from rich.markup import escape

    return escape(method.label)


def _cells(method: Method) -> list[str]:
    return [
        _label(method),
        _identical(method),
        f"{method.ttft.median * 1e3:.1f}",
        f"{method.latency.median * 1e3:.1f}",
        f"{method.tokens_per_s:.0f}",
        _tau(method),
        _percent(method.hidden_share),
        _percent(method.prefill_slowdown, sign=True),
        _percent(method.overhead_share),
    ]


def _tau(method: Method) -> str:
    drafted = method.tau.value > 1  # else every pass gave one token, and there is no more to say
    return str(method.tau) if drafted else f"{method.tau.value:.2f}"


def _identical(method: Method) -> str:
    if method.equal is None:  # sampled, or there was no target to compare with
        return "–"
    found = f"{method.equal}/{method.total}"
    return found if method.lossless else f"[red]{found}[/]"


def _caption(report: "Report") -> str:
    from rich.markup import escape

    gaps = [f"{d.gap:.2g}" for method in report.methods for d in method.divergences]
    told = [f"top-2 logit gaps at divergences: {', '.join(gaps[:8])}"] if gaps else []
    notes = sorted({note for method in report.methods for note in method.notes})
    tau = f"τ = tokens per pass of the target {INTERVALS}"
    legend = "prefill = slowdown of the target's reading; engine = its own part of a round"
    return "\n".join([tau, legend, *_caveats(report), *told, *map(escape, notes)])


def _caveats(report: "Report") -> list[str]:
    """What a reader must know before comparing rows."""
    told = []
    if report.methods[0].per == "token":
        told.append("sampled: the tokens may differ, so none are compared, and speedups are per token")
    elif report.methods[0].equal is None:
        told.append("the target alone did not run: no tokens are compared")
    if report.pairs < FEW_PAIRS:
        told.append(f"fewer than {FEW_PAIRS} pairs: the intervals are narrower than the truth")
    return told


def _percent(value: float | None, *, sign: bool = False) -> str:
    return "" if value is None else f"{value * 100:{'+' if sign else ''}.1f} %"
