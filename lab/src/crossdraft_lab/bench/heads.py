"""`crossdraft bench heads`: costs and acceptance of every trained drafter on the same questions.

The report is plain values, as its JSON has them; tables, sentences and the picture are made from the report.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from crossdraft.cli.cores import Cores
from crossdraft.drawing.shapes import Drawing
from crossdraft.engine.fast.pinning import pinned
from crossdraft.engine.request import Answer
from crossdraft.engine.sampling import Sampling
from crossdraft.engine.target import Target
from crossdraft.errors import CrossdraftError
from crossdraft.specs import Spec
from crossdraft_lab.bench.assembly import Models
from crossdraft_lab.bench.baselines import blank_window
from crossdraft_lab.bench.charts import IntervalBar, below_one_another, interval_bars
from crossdraft_lab.bench.environment import environment
from crossdraft_lab.bench.experiments.record import FigureTable, Setting, Tick
from crossdraft_lab.bench.heads_select import as_chain, weight_facts
from crossdraft_lab.bench.heads_timing import time_drafts
from crossdraft_lab.bench.identity import ReferenceAnswer, reference_answers, with_events
from crossdraft_lab.bench.measure import Divergence, find_divergence, gaps_in_words, measure
from crossdraft_lab.bench.specs import ALONE, is_blind
from crossdraft_lab.bench.statistics import FEW_PAIRS, INTERVALS, Interval, acceptance_figures, tau_ratio
from crossdraft_lab.bench.study import FigureColumn, Study, bar, figure_table, plain, shown
from crossdraft_lab.bench.summary import fastest_alone
from crossdraft_lab.bench.variants import Variant
from crossdraft_lab.bench.workload import Workload, describe, items
from crossdraft_lab.drafters.evaluate import TAU, AcceptanceStats, decode_all, total

BATCH = {"tree": 4, "chain": 1}  # answers in a pass: the target's own tokens must come out either way
WARM_UPS = 2
ABREAST = 7  # drafters in one table by kind of question
PARAMETERS = (
    "parameters: all that the drafter runs of its own (head, event model); what it borrows of the target is not "
    "counted. stored, min: of the trained part, its files and its training"
)
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class DraftSetting:
    """One way of drafting that every drafter is measured at.

    Args:
        shape: `tree` or `chain`; a head that grows trees otherwise drafts only its likeliest path as a `chain`.
        nodes: most nodes of a draft.
        temperature: temperature of the answers.
    """

    shape: str
    nodes: int
    temperature: float

    @property
    def name(self) -> str:
        """Name of the setting in a table's head."""
        return f"{self.shape} of {self.nodes}, T={self.temperature:g}"


# Orders that papers report: the best of some drafters accepts no less than another, or more where the paper says so.
EXPECTATIONS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "EAGLE-3 ≥ EAGLE-2": (("eagle3",), "eagle2"),
    "EAGLE-2 ≥ EAGLE-1": (("eagle2",), "eagle1"),
    "EAGLE-1 > Medusa": (("eagle1",), "medusa"),
    "Hydra > Medusa": (("hydra",), "medusa"),
    "HiViS or ViSpec ≥ EagleVLM": (("hivis", "vispec"), "eaglevlm"),
}


@dataclass(frozen=True, slots=True)
class HeadsBench:
    """A measurement of drafters.

    Args:
        models, work: the pair, and the questions.
        drafters: specs by the name that they are reported under; see `select_heads`.
        nodes: number of nodes of a tree.
        chain: tokens of a chain; 0 = no chains. Chains are measured at temperature 0.
        temperatures: temperatures at which trees are measured.
        timed: number of answers, the longest ones, along which drafts are timed; 0 = none.
        speed_pairs: pairs on which whole answers of the adaptive engine are timed against the target alone; 0 = none.
        cores: cores of the pair.
        notes: sentences about heads that are not here.

    Raises:
        CrossdraftError: a number that is out of range, or nothing to measure.
    """

    models: Models
    work: Workload
    drafters: Mapping[str, Spec]
    nodes: int = 60
    chain: int = 5
    temperatures: tuple[float, ...] = (0.0, 1.0)
    timed: int = 6
    speed_pairs: int = 0
    cores: Cores | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.nodes < 1 or min(self.chain, self.timed, self.speed_pairs) < 0:
            raise CrossdraftError(
                "A tree needs at least 1 node (--nodes), and --chain, --timed and --speed are 0 or more."
            )
        if not self.temperatures or len(set(self.temperatures)) != len(self.temperatures):
            raise CrossdraftError("Name each temperature once, and at least one, such as --temperatures 0,1.")
        for temperature in self.temperatures:
            Sampling(temperature=temperature)  # refuses an invalid temperature before anything is loaded

    @property
    def draft_settings(self) -> tuple[DraftSetting, ...]:
        """Settings in the order of the report; where only one figure is shown, it is that of the first setting."""
        trees = [DraftSetting("tree", self.nodes, temperature) for temperature in sorted(self.temperatures)]
        chains = [DraftSetting("chain", self.chain, 0.0)] if self.chain and 0 in self.temperatures else []
        return (*trees[:1], *chains, *trees[1:])

    @property
    def ticks(self) -> int:
        """Number of steps of the progress bar."""
        pairs, many = self.work.pairs, len(self.drafters)
        timed = self.speed_pairs and (len(ALONE) + many) * (WARM_UPS + min(self.speed_pairs, pairs))
        return pairs + many * len(self.draft_settings) + min(self.timed, pairs) + timed


def run_heads(heads: HeadsBench, tick: Tick = lambda _: None) -> Json:
    """Measure every drafter, pinned to the target's cores; return plain values.

    Raises:
        CrossdraftError: a model or a head that cannot be loaded, or answers too short to time drafts along.
    """
    with pinned(None if heads.cores is None else heads.cores.target):
        return _run(heads, tick)


def _run(heads: HeadsBench, tick: Tick) -> Json:
    where = environment()  # before this process itself is the load
    models, drafters = heads.models, heads.drafters
    facts = {name: weight_facts(models.named(spec), models.target) for name, spec in drafters.items()}
    target = models.load_target()
    built = {name: models.build(spec, target) for name, spec in drafters.items()}  # refused before anything runs
    known = list(reference_answers(target, items(heads.work), tick))
    passes, drafts = None, dict[str, Json]()
    if heads.timed:  # along the longest answers: short ones have few positions to draft from
        longest = sorted(known, key=lambda pair: -len(pair.tokens))[: heads.timed]
        passes, drafts = time_drafts(target, built, longest, heads.nodes, tick)
    stats: dict[str, dict[DraftSetting, list[AcceptanceStats]]] = {}
    compared: dict[str, list[Divergence | None]] = {name: [] for name in drafters}  # greedy answers; `None` = the same
    for name, spec in drafters.items():
        stats[name] = {}
        for setting, answers in _answers(heads, target, spec, known):
            stats[name][setting] = [AcceptanceStats.of(answer.stats) for answer in answers]
            if setting.temperature == 0:
                compared[name] += _divergences(target, known, [answer.tokens for answer in answers])
            tick(name)
    speedups = _speedups(heads, target, known, compared, tick)
    kinds, first = [pair.item.kind for pair in known], heads.draft_settings[0]
    rows = [
        {
            "name": name,
            **facts[name],
            "drafting": drafts.get(name),
            "accepted": [{**asdict(at), **figures_of(found, kinds)} for at, found in stats[name].items()],
            "identical": {"equal": own.count(None), "total": len(own)} if own else None,
            "divergences": [divergence for divergence in own if divergence is not None],
            "speedup": plain(speedups.get(name)),
        }
        for name, own in compared.items()
    ]
    return {
        "environment": {
            **where,
            "device": models.device,
            "dtype": str(target.model.dtype).removeprefix("torch."),
            "target_cores": None if heads.cores is None else list(heads.cores.target),
        },
        "workload": {**describe(heads.work), "timed": heads.timed, "raced": heads.speed_pairs, "batch": BATCH},
        "tau": TAU,
        "target": passes,
        "drafters": rows,
        "claims": check_expectations(
            {name: own[first] for name, own in stats.items()}, {name: spec.name for name, spec in drafters.items()}
        ),
        "notes": list(heads.notes),
    }


def _answers(
    heads: HeadsBench, target: Target, spec: Spec, known: Sequence[ReferenceAnswer]
) -> Iterator[tuple[DraftSetting, list[Answer]]]:
    """Answers at every setting, each with a new drafter: what a drafter learns must not help it in the next setting."""
    pairs = with_events(known, blank_window(heads.models.blind)) if is_blind(spec) else known
    for setting in heads.draft_settings:
        drafter = heads.models.build(as_chain(spec) if setting.shape == "chain" else spec, target)
        requests = [
            replace(request, sampling=replace(request.sampling, temperature=setting.temperature))
            for request in (pair.item.request for pair in pairs)
        ]
        yield setting, decode_all(target, drafter, requests, setting.nodes, BATCH[setting.shape])


def _divergences(
    target: Target, known: Sequence[ReferenceAnswer], answers: Sequence[tuple[int, ...]]
) -> list[Divergence | None]:
    """Compare greedy answers with the target's own."""
    pairs = zip(known, answers, strict=True)
    return [find_divergence(target, pair.item, pair.tokens, tokens) for pair, tokens in pairs]


def _speedups(
    heads: HeadsBench,
    target: Target,
    known: Sequence[ReferenceAnswer],
    compared: Mapping[str, list[Divergence | None]],
    tick: Tick,
) -> dict[str, Interval]:
    """Time whole answers against the target alone, by the faster of `ALONE`; heads have all cores, too."""
    timed = list(known[: heads.speed_pairs])
    if not timed:
        return {}
    study = Study(tuple(map(Variant, (*ALONE, *heads.drafters))), heads.work, warm_ups=WARM_UPS, models=heads.models)
    with study.loaded(Setting(heads.cores, Path()), target) as (_, methods):
        results = measure(methods, [pair.item for pair in timed], 1, study.warm_up_items, tick)
    for name in heads.drafters:
        compared[name].extend(_divergences(target, timed, [run.tokens for run in results.of(name)]))
    against = fastest_alone(results, per_token=False) or ALONE[0]
    return {name: results.speedup(name, against, per_token=False) for name in heads.drafters}


def check_expectations(found: Mapping[str, Sequence[AcceptanceStats]], methods: Mapping[str, str]) -> list[Json]:
    """Check every expectation whose drafters were measured, by the ratio of their values of τ.

    An expectation holds if the measured ratio does; the interval says how surely another draw of pairs would agree.

    Args:
        found: answers of each drafter to the same pairs.
        methods: method of some of the drafters; the first drafter of a method stands for the method.
    """
    first: dict[str, str] = {}
    for name in found:
        first.setdefault(methods.get(name, name), name)
    results = list[Json]()
    for claim, (better_ones, worse_one) in EXPECTATIONS.items():
        able = [first[method] for method in better_ones if method in first]
        if not able or worse_one not in first:
            continue
        better, worse = max(able, key=lambda name: total(found[name]).tau), first[worse_one]
        ratio = tau_ratio(counts_of(found[better]), counts_of(found[worse]))
        holds = ratio.value > 1 or ("≥" in claim and ratio.value == 1)
        results.append({"claim": claim, "holds": holds, "better": better, "worse": worse, "ratio": ratio.to_json()})
    return results


def counts_of(stats: Sequence[AcceptanceStats]) -> list[tuple[int, int]]:
    """Tokens and verify passes of each answer."""
    return [(each.emitted, each.passes) for each in stats]


def figures_of(stats: Sequence[AcceptanceStats], kinds: Sequence[str]) -> Json:
    """Acceptance figures of one drafter from its answers, one for each pair, and from each question's kind."""
    return acceptance_figures(
        counts_of(stats), [each.kept_at for each in stats], [each.offered_at for each in stats], kinds
    )


def tau_at(row: Json, at: int) -> Interval:
    """τ of a drafter's row at one of its settings."""
    return Interval.from_json(row["accepted"][at], "tau")


def setting_names(report: Json) -> list[str]:
    """Names of the settings, as in a table's head."""
    accepted = report["drafters"][0]["accepted"]
    return [DraftSetting(each["shape"], each["nodes"], each["temperature"]).name for each in accepted]


def lines(report: Json, labels: Mapping[str, str]) -> list[str]:
    """Lines on the drafters' order in the papers, and on what a reader must know of the tables.

    Args:
        report: the report that `run_heads` returns.
        labels: labels for people, by the drafters' names.
    """
    found = [
        f"{one['claim']}: {'holds' if one['holds'] else 'does not hold'}, τ of {labels[one['better']]} / "
        f"{labels[one['worse']]} = {Interval.from_json(one['ratio'])} {INTERVALS}"
        for one in report["claims"]
    ]
    found += gaps_in_words([one for row in report["drafters"] for one in row["divergences"]])
    for what, count in (("pairs", report["workload"]["pairs"]), ("pairs timed", report["workload"]["raced"])):
        if 0 < count < FEW_PAIRS:
            found.append(f"fewer than {FEW_PAIRS} {what}: the intervals are narrower than the truth")
    return [*found, *report["notes"]]


def tables(report: Json, labels: Mapping[str, str]) -> Iterator[FigureTable]:
    """Tables of τ, of costs, of the shares of tokens accepted at each depth, and of τ by kind of question."""
    rows, names, pairs = report["drafters"], setting_names(report), report["workload"]["pairs"]
    taus = tuple(FigureColumn("", name, lambda row, at=at: tau_at(row, at)) for at, name in enumerate(names))
    label = FigureColumn("", "drafter", lambda row: labels[row["name"]])
    same = FigureColumn("", "identical", lambda row: row["identical"] and tuple(row["identical"].values()))
    raced = rows[0]["speedup"] is not None
    speed = (FigureColumn("", "× target alone", lambda row: Interval.from_json(row["speedup"])),) if raced else ()
    title = f"τ {INTERVALS}, {pairs} held-out pairs"
    yield figure_table(title, (label, *taus, same, *speed), [(row,) for row in rows], report["tau"])
    yield _costs(report, label)
    greedy = [at for at, each in enumerate(rows[0]["accepted"]) if each["temperature"] == 0] or [0]
    kept = (FigureColumn("", names[at], lambda row, at=at: _depths(row, at)) for at in greedy)
    title = f"drafts kept at each depth: shares, pooled over {pairs} pairs"
    yield figure_table(title, (label, *kept), [(row,) for row in rows])
    for first in range(0, len(rows), ABREAST):
        shown = [row["accepted"][0]["by_kind"] for row in rows[first : first + ABREAST]]
        yield FigureTable(
            f"τ by kind of question, {names[0]}",
            ("kind", *(labels[row["name"]] for row in rows[first : first + ABREAST])),
            tuple((kind, *(str(Interval.from_json(own[kind], "tau")) for own in shown)) for kind in shown[0]),
        )


def _depths(row: Json, at: int) -> str:
    return " ".join(f"{share:.2f}" for share in row["accepted"][at]["accepted_per_position"][:8])


def _costs(report: Json, label: FigureColumn) -> FigureTable:
    def own(show: Callable[[Json], str]) -> Callable[[Json], str]:
        return lambda row: show(row) if row["parameters"] else "–"

    columns = [
        label,
        FigureColumn("", "parameters", own(lambda row: f"{row['parameters']:,}")),
        FigureColumn("", "of them trained", own(lambda row: f"{row['trained_parameters']:,}")),
        FigureColumn("", "stored MB", own(lambda row: f"{row['stored_bytes'] / 1e6:.2f}")),
        FigureColumn("", "min", own(lambda row: shown(row["training_minutes"]))),
    ]
    caption = PARAMETERS
    if (clocked := report["target"]) is not None:
        positions, single, wide = clocked.values()
        name = f"V({list(clocked)[2].removeprefix('v').removesuffix('_ms')})"
        columns += [
            FigureColumn("", "ms a draft", lambda row: row["drafting"]["draft_ms"]["median"]),
            FigureColumn("", f"/ {name}", lambda row: row["drafting"]["over_verifying_pass"]),
            FigureColumn("", "/ t", lambda row: row["drafting"]["over_t"]),
            FigureColumn("", "nodes", lambda row: f"{row['drafting']['mean_nodes']:.0f}"),
        ]
        caption += (
            f"\n{name} = {wide['median']:.1f} ms, t = V(1) = {single['median']:.1f} ms, one request; "
            f"medians of {positions} positions, where all drafted in turn"
        )
    return figure_table("what it costs", columns, [(row,) for row in report["drafters"]], caption)


def draw(report: Json, labels: Mapping[str, str]) -> Drawing:
    """Draw τ of every drafter at the settings with the first one's temperature, and the milliseconds of a draft."""
    rows, names = report["drafters"], setting_names(report)
    warm = rows[0]["accepted"][0]["temperature"]
    chosen = [at for at, each in enumerate(rows[0]["accepted"]) if each["temperature"] == warm]
    taus = [
        bar(f"{labels[row['name']]}, {names[at]}", tau_at(row, at), ("draft", "encoder")[number % 2])
        for row in rows
        for number, at in enumerate(chosen)
    ]
    fields = [interval_bars(f"τ, tokens per pass; {report['workload']['pairs']} held-out pairs", taus, "")]
    if report["target"] is not None:
        passes = {name: times for name, times in report["target"].items() if name.endswith("_ms")}
        times = {labels[row["name"]]: row["drafting"]["draft_ms"] for row in rows} | passes
        drafts = [
            IntervalBar(
                name, one["median"], one["q1"], one["q3"], report["target"]["positions"],
                "verify" if name in passes else "draft",
            )
            for name, one in times.items()
        ]  # fmt: skip
        title = "Milliseconds of a draft, and of the target's passes; quartiles"
        fields.append(interval_bars(title, drafts, "ms", None))
    return below_one_another("Trained drafters", fields)
