"""`crossdraft bench throughput` as a table, as sentences and as JSON."""

from typing import TYPE_CHECKING

from crossdraft_lab.bench.common import table
from crossdraft_lab.bench.throughput import ALL, Throughput, ThroughputReport
from crossdraft_lab.bench.workload import describe

if TYPE_CHECKING:
    from rich.table import Table

FLOOR = 0.98  # what our engine may lose at most against its own target in the same batches
HF_CONTINUOUS = (
    "hf-continuous feeds token ids alone: clips are encoded first, inside the clock, and its embedding layer looks "
    "their features up; the rest is its own."
)


def results_table(plan: Throughput, report: ThroughputReport) -> "Table":
    """The figures for people."""
    columns = ("requests", "tokens/s", "E2E median", "p95", "TTFT", "identical", f"{plan.drafter} ÷ it")
    shown = table("N requests at once, each about a clip of its own", "contestant", columns)
    for number, row in enumerate(report.rows):
        times = (f"{value:.0f} ms" for value in (*row.e2e_ms, row.ttft_ms[0]))
        over = "" if row.name == plan.drafter else str(row.ratio)
        identical = f"{row.identical}/{row.total}"
        shown.add_row(row.name, str(row.size), row.tokens_per_s.shown(digits=0), *times, identical, over)
        if number + 1 < len(report.rows) and report.rows[number + 1].size != row.size:
            shown.add_section()
    return shown


def lines(plan: Throughput, report: ThroughputReport) -> list[str]:
    """Sentences: who used which cores, what Hugging Face was given, whether drafting ever lost."""
    cores = "not restricted" if plan.cores is None else f"{plan.cores} ({ALL[1:]}: all of them)"
    least = report.least_over_target
    beyond = "" if least.value >= FLOOR else f", below {FLOOR}: here drafting costs more than it saves"
    shown = least.shown("batches", 3)
    said = [
        f"Cores: {cores}. Greedy, clips from files, no cache between requests.",
        f"Least ratio over the target alone in the same batches (on one core or on all): {shown}{beyond}.",
    ]
    if "hf-continuous" in plan.others:
        said.append(HF_CONTINUOUS)
    gaps = [gap.gap for row in report.rows for gap in row.divergences]
    if gaps:
        said.append(
            f"{len(gaps)} answers differ from the target's own; top-2 logit gaps there: at most {max(gaps):.2g}."
        )
    if plan.others != plan.baselines:
        said.append("vLLM was left out; name the Python of an environment that has it: --vllm-python.")
    return said


def to_json(plan: Throughput, report: ThroughputReport) -> dict[str, object]:
    """Plain values."""
    return {
        "environment": dict(report.environment),
        "seconds": round(report.seconds, 1),
        "workload": {**describe(plan.work), "pairs": plan.questions},
        "repeats": {str(size): plan.repeats_of(size) for size in plan.sizes},
        "cores": None if plan.cores is None else str(plan.cores),
        "drafter": plan.drafter,
        "prefill_chunk": plan.prefill_chunk,
        "about": {name: dict(about) for name, about in report.about.items()},
        "rows": [row.to_json() for row in report.rows],
        "against": [
            {"requests": size, "baseline": baseline, "faster": name, **ratio.to_json()}
            for size, baseline, name, ratio in report.baselines
        ],
        "least_over_target": report.least_over_target.to_json(),
    }
