"""A report as one picture: the time per stage as stacked bars, speedup and τ with their intervals, peak memory."""

from typing import TYPE_CHECKING

from crossdraft_lab.bench.charts import BarPart, StackedBar, below_one_another, interval_bars, stacked_bars
from crossdraft_lab.bench.study import bar
from crossdraft_lab.bench.summary import BenchReport, Row, headline, label

if TYPE_CHECKING:
    from crossdraft.drawing.shapes import Drawing

# stage: (its name in the picture, style), in the order of an answer.
STAGES = {
    "prepare": ("preprocess", "preprocess"),
    "encode": ("vision encoder", "encoder"),
    "prefill": ("prefill", "prefill"),
    "ride-along": ("ride-along", "ride-along"),
    "draft": ("draft", "draft"),
    "communication": ("wait for the drafter's process", "parallel-draft"),
    "verify": ("verify", "verify"),
    "decode": ("decode steps", "decode"),
    "engine": ("engine", "other"),
    "other": ("other", "border"),
}


def draw(report: BenchReport) -> "Drawing":
    """A row per method, the slowest on top: the stages of the mean answer, then speedup, τ and memory.

    The speedup is over the fastest way to run the target alone. Without a baseline there is no speedup, and without
    measured memory no field for it.
    """
    methods = sorted(report.methods, key=lambda row: -sum(row["stage_means"].values()))
    work, against = report.workload, methods[0]["against"]
    clips = "from files" if work.get("files") else "clips in memory"
    asked = f"{work['pairs']} held-out pairs × {work['repeats']}, {work['mean_tokens']} tokens on average, {clips}"
    bars = [StackedBar(label(row), tuple(_stages(row))) for row in methods]
    fields = [stacked_bars(f"Mean time of an answer: {asked}", bars, "ms")]
    if against is not None:
        best = max(methods, key=lambda row: row["speedups"][against].value)
        per = " per token" if methods[0]["per"] == "token" else ""
        speedups = [
            bar(label(row), row["speedups"][against], "hidden-draft" if row is best else "encoder") for row in methods
        ]
        fields.append(interval_bars(f"Speedup over {against}{per}", speedups, "×"))
    taus = [bar(label(row), row["tau"], "draft") for row in methods]
    fields.append(interval_bars("τ, tokens per verify pass", taus, ""))
    memory = {label(row): report.footprints.get(row["name"], {}).get("total_mib") or 0.0 for row in methods}
    if all(memory.values()):
        each = [StackedBar(name, (BarPart("peak memory", "preprocess", total),)) for name, total in memory.items()]
        fields.append(stacked_bars("Peak memory, all processes together", each, "MiB"))
    return below_one_another(title(report), fields)


def title(report: BenchReport) -> str:
    """State the fastest method, and by how much it is faster."""
    rated = [(found.value, found, row) for row in report.methods if (found := headline(row))]
    if not rated:
        return "Time of an answer by method"
    _, best, row = max(rated, key=lambda one: one[0])
    if best.value <= 1:  # the fastest way to run the target alone is itself a row
        return f"No method is faster than {row['against']}"
    speed = f"{best.value:.2f}x as fast as {row['against']} [{best.ends()}; n={best.n}]"
    tokens = {True: ", identical tokens", False: ", NOT the same tokens", None: ""}[row["lossless"]]
    return f"{label(row)}: {speed}{tokens}"


def _stages(row: Row) -> list[BarPart]:
    """The mean time of each stage; a method that drafts nothing has decode steps, not verify passes."""
    renamed = {} if row["tau"].value > 1 else {"verify": "decode"}
    means = {renamed.get(stage, stage): seconds for stage, seconds in row["stage_means"].items()}
    return [BarPart(name, style, 1e3 * means[stage]) for stage, (name, style) in STAGES.items() if stage in means]
