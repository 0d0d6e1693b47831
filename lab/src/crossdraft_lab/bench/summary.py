"""Rows of `crossdraft bench`, a method each: figures of its runs, as JSON and as tables."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.markup import escape
from rich.table import Table

from crossdraft.cli.cores import Cores
from crossdraft_lab.bench.common import table
from crossdraft_lab.bench.measure import Divergence, Results, Run, gaps_in_words
from crossdraft_lab.bench.specs import ALONE, ALWAYS, LLAMA_DRAFTED, PROMPT_METHODS, UNDRAFTED
from crossdraft_lab.bench.statistics import FEW_PAIRS, INTERVALS, Interval, per_position, quartiles, ratio
from crossdraft_lab.bench.study import plain, shown
from crossdraft_lab.bench.traces import Trace

BASELINES = (*UNDRAFTED, "hf-lookup", "hf-assisted", LLAMA_DRAFTED)
HOW = (
    "peak resident set of a process that loads this method alone and answers one question, plus that of its drafter's "
    "process if it has one; pages that both map, such as libraries, count in each, and where the first is a fork "
    "(Linux without CUDA) all that a benchmark imports counts in it"
)
SPEEDUPS = {  # comparisons in the table of speedups
    "answer": "Σ time of the baseline / Σ time of the method",
    "token": "time per token of the baseline / that of the method",
}
LEGEND = (
    f"τ = mean acceptance length: tokens per verify pass, bonus included {INTERVALS}. hidden = part of the hidden "
    "drafting that ran while the target prepared, encoded and prefilled. prefill = slowdown of the target's encoding "
    "and prefill. engine = its own part of a round, talking to the drafter included."
)
ALL = "all"  # of `by_kind`: every pair
FIGURES = ("tau", "hidden_share", "prefill_slowdown", "overhead_share")  # their intervals have names of their own
Row = dict[str, Any]
Differing = Mapping[str, Sequence[Divergence]] | None  # by method


@dataclass(frozen=True, slots=True)
class BenchReport:
    """Results: rows as `summarise` makes them, with memory (`footprints`) and cores by method.

    `footprints` is empty if no memory was measured.
    """

    environment: Mapping[str, Any]
    workload: Mapping[str, Any]
    methods: Sequence[Row]
    traces: Sequence[Trace] = ()
    footprints: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict[str, Mapping[str, float | None]])
    cores: Mapping[str, Cores | None] = field(default_factory=dict[str, Cores | None])


def summarise(results: Results, kinds: Sequence[str], differing: Differing, *, greedy: bool = True) -> list[Row]:
    """Compute a row for each method over all its runs; the method named `target` gives the expected tokens.

    `kinds` are those of the pairs; `differing` is what `measure.divergences` finds.

    `identical` counts the runs whose tokens were the target's; it is None when sampling, where equal tokens are not to
    be expected, and when the target did not run. `lossless` is None in these cases, too: a benchmark cannot show that
    distributions are equal, tests do; answers by a lossy rule are never lossless, even if they are equal.
    `first_provisional_ms` is over the runs that could show a drafted token before their first final one. `speedups`
    holds every baseline that ran; the headline is `against` the fastest way to run the target alone, by us or by
    Hugging Face, on its own share of the cores or on all that the pair uses. `per` says whether times of answers are
    compared or, when sampling, where answers differ in length, times per token. `hidden_share` is the part of the
    hidden drafting inside the target's prefill, `prefill_slowdown` Σ of this method's times of encoding and prefill / Σ
    of the target's in the same pairs and repeats, minus 1, `overhead_share` the engine's own part of the rounds after
    the prefill; each is None where a method has no such part. `stage_means` add up to the mean time of an answer.
    `by_kind` has, for all pairs and those of each kind, tokens over seconds, the speedup over `against` and over the
    target alone, and Σ its time to the first token / Σ the method's.
    """
    against = fastest_alone(results, per_token=not greedy)
    rows = [_row(name, results, differing, against, greedy=greedy) for name in results.runs]
    parts = {kind: [index for index, one in enumerate(kinds) if one == kind] for kind in dict.fromkeys(kinds)}
    for kind, chosen in {ALL: range(len(kinds)), **parts}.items():
        part = Results({name: [found[index] for index in chosen] for name, found in results.runs.items()})
        for row in rows:
            row["by_kind"][kind] = _of_kind(row["name"], part, against, greedy=greedy)
    return rows


def _of_kind(name: str, part: Results, against: str | None, *, greedy: bool) -> dict[str, Any]:
    found: dict[str, Any] = {
        "pairs": len(part.runs[name]), "tokens_per_s": sum(part.tokens(name)) / sum(part.seconds(name))
    }  # fmt: skip
    if against is not None:
        found["speedup"] = part.speedup(name, against, per_token=not greedy)
    if "target" in part.runs:
        first, own = ([sum(run.ttft_s for run in runs) for runs in part.runs[one]] for one in ("target", name))
        found |= {"over_target": part.speedup(name, "target", per_token=not greedy), "ttft": ratio(first, own)}
    return found


def fastest_alone(results: Results, *, per_token: bool) -> str | None:
    """Name the method of `UNDRAFTED` that took the least time over all pairs; None if none ran."""

    def cost(name: str) -> float:
        return sum(results.seconds(name)) / (sum(results.tokens(name)) if per_token else 1)

    return min((name for name in UNDRAFTED if name in results.runs), key=cost, default=None)


def _row(name: str, results: Results, differing: Differing, against: str | None, *, greedy: bool) -> Row:
    runs = results.of(name)
    provisional = [run.provisional_s for run in runs if run.provisional_s is not None]
    compared = differing is not None
    divergences = list(differing.get(name, ())) if compared else []
    equal = len(runs) - len(divergences)
    lossy = next((run.lossy for run in runs if run.lossy is not None), None)
    stages = {stage: [run.stages_s.get(stage, 0.0) for run in runs] for stage in runs[0].stages_s}
    baselines = [one for one in BASELINES if one in results.runs]
    return {
        "name": name,
        "lossless": False if lossy is not None else equal == len(runs) if compared else None,
        "lossy": lossy,
        "identical": {"equal": equal, "total": len(runs)} if compared else None,
        "divergences": divergences,
        "first_provisional_ms": quartiles(provisional) if provisional else None,
        "ttft_ms": quartiles([run.ttft_s for run in runs]),
        "total_ms": quartiles([run.total_s for run in runs]),
        "tokens_per_s": quartiles([len(run.tokens) / run.total_s for run in runs]).median,
        "against": against,
        "per": "answer" if greedy else "token",
        "speedups": {one: results.speedup(name, one, per_token=not greedy) for one in baselines},
        "tau": results.tau(name),
        "accepted_per_position": per_position([run.accepted_at for run in runs], [run.offered_at for run in runs]),
        "hidden_share": results.share(name, lambda run: run.hidden_inside_s, lambda run: run.hidden_drafting_s),
        "prefill_slowdown": _slowdown(name, results),
        "overhead_share": results.share(name, lambda run: run.overhead_s, lambda run: run.rounds_s),
        "stage_ms": {stage: quartiles(seconds) for stage, seconds in stages.items()},
        "mask_ms_per_node": _mask_ms(runs),
        "stage_means": {stage: sum(seconds) / len(seconds) for stage, seconds in stages.items()},
        "notes": sorted({note for run in runs for note in run.notes}),
        "by_kind": {},
    }


def _mask_ms(runs: Sequence[Run]) -> float | None:
    """Milliseconds of a structure's masks for a place that an answer takes; `None` where no answer has a structure."""
    nodes = sum(run.masked_nodes for run in runs)
    return round(1e3 * sum(run.masks_s for run in runs) / nodes, 4) if nodes else None


def _slowdown(name: str, results: Results) -> Interval | None:
    if name in ALONE or "target" not in results.runs:
        return None
    ours, alone = (
        [sum(run.prefill_s or 0.0 for run in runs) for runs in results.runs[one]] for one in (name, "target")
    )
    known = all(ours) and all(alone)
    return ratio([one - other for one, other in zip(ours, alone, strict=True)], alone) if known else None


def label(row: Row) -> str:
    """A method for people: its name, and the rule if it was a lossy one."""
    return row["name"] if row["lossy"] is None else f"{row['name']} (lossy: {row['lossy']})"


def headline(row: Row) -> Interval | None:
    """Speed-up over the fastest way to run the target alone."""
    return row["speedups"].get(row["against"])


def to_json(report: BenchReport) -> dict[str, object]:
    """The whole report in plain values; times in milliseconds as {median, q1, q3}."""
    rows = []
    for row in report.methods:
        name, own = row["name"], report.cores.get(row["name"])
        cores = None if own is None else {"target": list(own.target), "drafter": list(own.draft)}
        rows.append({**method_json(row), "cores": cores, "memory": report.footprints.get(name)})
    environment, workload = report.environment, report.workload
    return {"environment": environment, "workload": workload, "memory": {"how": HOW}, "methods": rows}


def method_json(row: Row) -> Row:
    """Row as plain values; value and interval of a missing figure are null."""
    found = {name: value for name, value in row.items() if name not in ("against", "per", "stage_means")}
    speedups = {name: {**one.to_json(), "against": name, "per": row["per"]} for name, one in row["speedups"].items()}
    for name in FIGURES:
        one = {} if row[name] is None else row[name].to_json(name)
        found |= {name: one.get(name), f"{name}_ci95": one.get("ci95")}
    return plain(found) | {
        "divergences": row["divergences"],
        "tokens_per_s": round(row["tokens_per_s"], 2),
        "speedup": speedups.get(row["against"]),
        "speedups": list(speedups.values()),
        **{name: value for name, value in found.items() if name.startswith(FIGURES)},
    }


def tables(report: BenchReport) -> list[Table]:
    """Tables for the terminal: speed and cost of each method; their causes; ratios to the other baselines."""
    work, first = report.workload, report.methods[0]
    title = f"{work['pairs']} held-out pairs × {work['repeats']}, answers of {work['mean_tokens']} tokens on average"
    heads = ["cores", "identical", "provisional", "TTFT ms", "total ms", "MiB"]
    heads += [] if first["against"] is None else [f"× {first['against']}"]
    fast = table(title, "method", heads, _caption(report))
    how = table("how it comes about", "method", ("tok/s", "τ", "hidden", "prefill", "engine"), LEGEND)
    shown = ALONE if first["against"] in ALONE else (first["against"],)
    others = [name for name in first["speedups"] if name not in shown]
    ratios = table(f"{SPEEDUPS[first['per']]} {INTERVALS}", "method", [f"× {name}" for name in others])
    for row in report.methods:
        named = escape(label(row))
        fast.add_row(named, *_speed(report, row))
        drafted = row["tau"].value > 1  # else every pass gave one token, and there is no more to say
        shares = ("" if row[name] is None else row[name].percent() for name in FIGURES[1:])
        how.add_row(named, f"{row['tokens_per_s']:.0f}", str(row["tau"]) if drafted else "1", *shares)
        ratios.add_row(named, *(str(row["speedups"][name]) for name in others))
    kinds = [*first["by_kind"]] if first["against"] is not None else []
    return [fast, how, *([ratios] if others else []), *([_kinds(report, kinds)] if len(kinds) > 2 else [])]


def _kinds(report: BenchReport, kinds: Sequence[str]) -> Table:
    """Table of the speedups by kind, and of the slowdown of the first token, which stands beside them."""
    first = report.methods[0]
    heads = [f"{kind}, {first['by_kind'][kind]['pairs']}" for kind in kinds]
    title = f"{SPEEDUPS[first['per']]}, over {first['against']}, by kind and number of pairs {INTERVALS}"
    clocked = ["TTFT"] if "ttft" in first["by_kind"][ALL] else []
    found = table(title, "method", ["tok/s", *heads, *clocked], "TTFT = Σ that of the target / Σ that of the method.")
    for row in report.methods:
        each, whole = row["by_kind"], row["by_kind"][ALL]
        ratios = [each[kind]["speedup"] for kind in kinds] + [whole["ttft"] for _ in clocked]
        cells = (f"{one.value:.2f}" + (f" [{one.ends()}]" if one.n > 1 else "") for one in ratios)
        found.add_row(escape(label(row)), f"{whole['tokens_per_s']:.1f}", *cells)
    return found


def _speed(report: BenchReport, row: Row) -> list[str]:
    cores, memory = report.cores.get(row["name"]), report.footprints.get(row["name"], {}).get("total_mib")
    times = (row["first_provisional_ms"], row["ttft_ms"], row["total_ms"])
    return [
        "" if cores is None else str(cores),
        _identical(row),
        *("" if one is None else f"{one.median * 1e3:.1f}" for one in times),
        "" if memory is None else f"{memory:.0f}",
        *([] if row["against"] is None else [str(headline(row))]),
    ]


def _identical(row: Row) -> str:
    """Count of answers that were the target's own; a dash if none was compared (sampled, or without a target)."""
    found = shown(row["identical"] and tuple(row["identical"].values()))
    return f"[red]{found}[/]" if row["identical"] and not row["lossless"] else found


def _caption(report: BenchReport) -> str:
    gaps = gaps_in_words([divergence for row in report.methods for divergence in row["divergences"]])
    notes = sorted({note for row in report.methods for note in row["notes"]})
    about = [*map(escape, report.workload.get("in_words", ()))]
    return "\n".join([*about, *_columns(report), *_caveats(report), *gaps, *map(escape, notes)])


def _columns(report: BenchReport) -> list[str]:
    """Explain the figures of the first table."""
    found = ["medians: provisional = first drafted token; TTFT = first final token; total = whole answer (E2E)"]
    first = report.methods[0]
    if (against := first["against"]) is not None:
        ways = [name for name in UNDRAFTED if name in first["speedups"]]
        fastest = f"the fastest of {', '.join(ways)}" if len(ways) > 1 else "alone"
        found.append(f"× {against} ({fastest}) = {SPEEDUPS[first['per']]} {INTERVALS}")
    masks = [f"{row['name']} {row['mask_ms_per_node']:.2f} ms" for row in report.methods if row["mask_ms_per_node"]]
    found += [f"a structure's masks for a place that the answer takes: {', '.join(masks)}"] if masks else []
    return [*found, f"MiB: {HOW}."] if report.footprints else found


def _caveats(report: BenchReport) -> list[str]:
    """List what a reader must know before comparing rows."""
    found, first = [], report.methods[0]
    if first["per"] == "token":
        found.append("sampled: the tokens may differ, so none are compared, and speedups are per token")
    elif first["identical"] is None:
        found.append("the target alone did not run: no tokens are compared")
    able = ALWAYS if report.workload.get("prompts") is None else PROMPT_METHODS
    absent = [name for name in ALWAYS if name in able and name not in {row["name"] for row in report.methods}]
    if absent:
        found.append(f"not measured: {', '.join(absent)}")
    if report.workload["pairs"] < FEW_PAIRS:
        found.append(f"fewer than {FEW_PAIRS} pairs: the intervals are narrower than the truth")
    return found
