"""`crossdraft bench heads`: every trained drafter on the same questions; what it costs, and what it is worth."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from crossdraft.cli.cores import Cores
from crossdraft.drafters.evaluate import AcceptanceStats, decode_all, total
from crossdraft.engine.drafter import Drafter
from crossdraft.engine.fast.pinning import pinned
from crossdraft.engine.sampling import Sampling
from crossdraft.engine.target import Target
from crossdraft.errors import CrossdraftError
from crossdraft.specs import Spec
from crossdraft_lab.bench.assembly import Models, close_all, make_methods
from crossdraft_lab.bench.baselines import blank_window
from crossdraft_lab.bench.environment import environment
from crossdraft_lab.bench.heads_select import HeadSelection, WeightFacts, as_chain, short_labels, weight_facts
from crossdraft_lab.bench.heads_timing import DraftTime, DraftTimes, time_drafts
from crossdraft_lab.bench.identity import ReferenceAnswer, reference_answers, with_events
from crossdraft_lab.bench.measure import Divergence, find_divergence, measure
from crossdraft_lab.bench.specs import ALONE, is_blind
from crossdraft_lab.bench.statistics import AcceptanceFigures, Interval, acceptance_figures, tau_ratio
from crossdraft_lab.bench.summary import fastest_alone
from crossdraft_lab.bench.workload import Workload, describe, items

BATCH = {"tree": 4, "chain": 1}  # answers in a pass: the target's own tokens must come out either way
WARM_UPS = 2
Tick = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class DraftSetting:
    """One way of drafting that every drafter is measured at.

    Args:
        shape: `tree`, or `chain`: of a head that grows trees otherwise, its likeliest path alone.
        nodes: most nodes of a draft.
        temperature: of the answers.
    """

    shape: str
    nodes: int
    temperature: float

    @property
    def name(self) -> str:
        """As in a table's head."""
        return f"{self.shape} of {self.nodes}, T={self.temperature:g}"


@dataclass(frozen=True, slots=True)
class Expectation:
    """An order that papers report: the best of `better` accepts more than `worse`, or (not `strict`) no less."""

    text: str
    better: tuple[str, ...]
    worse: str
    strict: bool = False


EXPECTATIONS = (
    Expectation("EAGLE-3 ≥ EAGLE-2", ("eagle3",), "eagle2"),
    Expectation("EAGLE-2 ≥ EAGLE-1", ("eagle2",), "eagle1"),
    Expectation("EAGLE-1 > Medusa", ("eagle1",), "medusa", strict=True),
    Expectation("Hydra > Medusa", ("hydra",), "medusa", strict=True),
    Expectation("HiViS or ViSpec ≥ EagleVLM", ("hivis", "vispec"), "eaglevlm"),
)


@dataclass(frozen=True, slots=True)
class ExpectationResult:
    """τ of one drafter over τ of another, as an expectation orders them.

    It holds if the measured ratio says so; the interval says how surely another draw of pairs would say the same.
    """

    expectation: Expectation
    better: str
    worse: str
    ratio: Interval

    @property
    def holds(self) -> bool:
        """True if the measured order is the expected one."""
        return self.ratio.value > 1 or (not self.expectation.strict and self.ratio.value == 1)

    def sentence(self, labels: Mapping[str, str]) -> str:
        """In a sentence, the drafters by their labels."""
        outcome = "holds" if self.holds else "does not hold"
        return f"{self.expectation.text}: {outcome}, τ of {labels[self.better]} / {labels[self.worse]} = {self.ratio}"

    def to_json(self) -> dict[str, object]:
        """Plain values."""
        return {
            "claim": self.expectation.text,
            "holds": self.holds,
            "better": self.better,
            "worse": self.worse,
            "ratio": self.ratio.to_json(),
        }


@dataclass(frozen=True, slots=True)
class HeadsSettings:
    """Settings of a measurement of drafters.

    Args:
        nodes: of a tree.
        chain: tokens of a chain; 0 = none. Chains are measured at temperature 0.
        temperatures: at which trees are measured.
        timed: answers along which drafts are clocked, the longest; 0 = none.
        speed_pairs: pairs on which whole answers of the adaptive engine are timed against the target alone; 0 = none.

    Raises:
        CrossdraftError: a number that makes no sense, or nothing to do.
    """

    nodes: int = 60
    chain: int = 5
    temperatures: tuple[float, ...] = (0.0, 1.0)
    timed: int = 6
    speed_pairs: int = 0

    def __post_init__(self) -> None:
        if self.nodes < 1 or min(self.chain, self.timed, self.speed_pairs) < 0:
            raise CrossdraftError(
                "A tree needs at least 1 node (--nodes), and --chain, --timed and --speed are 0 or more."
            )
        if not self.temperatures or len(set(self.temperatures)) != len(self.temperatures):
            raise CrossdraftError("Name each temperature once, and at least one, such as --temperatures 0,1.")
        for temperature in self.temperatures:
            Sampling(temperature=temperature)  # refuses what no request may have, before anything is loaded

    @property
    def draft_settings(self) -> tuple[DraftSetting, ...]:
        """In the order of the report: the first stands for a drafter where one figure must."""
        trees = [DraftSetting("tree", self.nodes, temperature) for temperature in sorted(self.temperatures)]
        chains = [DraftSetting("chain", self.chain, 0.0)] if self.chain and 0 in self.temperatures else []
        return (*trees[:1], *chains, *trees[1:])


@dataclass(frozen=True, slots=True)
class HeadResult:
    """One drafter.

    Args:
        name: what it was asked for by, its spec; `label` is that for people.
        accepted: by setting.
        equal, total: greedy answers that were the target's own, of how many, timed answers included.
        drafting: `None` if nothing was clocked.
        speedup: Σ time of the target alone / Σ time with this drafter; `None` if none was timed.
    """

    name: str
    label: str
    facts: WeightFacts
    accepted: Mapping[DraftSetting, AcceptanceFigures]
    divergences: tuple[Divergence, ...]
    total: int
    drafting: DraftTime | None = None
    speedup: Interval | None = None

    @property
    def equal(self) -> int:
        """Answers that were identical."""
        return self.total - len(self.divergences)


@dataclass(frozen=True, slots=True)
class HeadsReport:
    """Results of the measurement. `expectations` are about the first setting."""

    environment: dict[str, object]
    workload: dict[str, object]
    settings: tuple[DraftSetting, ...]
    rows: list[HeadResult]
    expectations: list[ExpectationResult]
    times: DraftTimes | None
    notes: tuple[str, ...]


@dataclass
class _Scores:
    """Results of one drafter so far."""

    stats: dict[DraftSetting, list[AcceptanceStats]]
    divergences: list[Divergence]
    compared: int = 0


@dataclass(frozen=True, slots=True)
class HeadsBench:
    """The whole measurement: who, on what, and where."""

    models: Models
    work: Workload
    selection: HeadSelection
    settings: HeadsSettings = HeadsSettings()
    cores: Cores | None = None

    @property
    def ticks(self) -> int:
        """Number of steps of the progress bar."""
        settings, many = self.settings, len(self.selection.drafters)
        timed = settings.speed_pairs and (len(ALONE) + many) * (WARM_UPS + self._least(settings.speed_pairs))
        return self.work.pairs + many * len(settings.draft_settings) + self._least(settings.timed) + timed

    def _least(self, pairs: int) -> int:
        return min(pairs, self.work.pairs)


def run_heads(heads: HeadsBench, tick: Tick | None = None) -> HeadsReport:
    """Measure every drafter, pinned to the target's cores.

    Raises:
        CrossdraftError: a model or a head that cannot be loaded, or answers too short to time drafts along.
    """
    with pinned(None if heads.cores is None else heads.cores.target):
        return _run(heads, tick)


def _run(heads: HeadsBench, tick: Tick | None) -> HeadsReport:
    where = environment()  # before this process itself is the load
    models, settings, drafters = heads.models, heads.settings, heads.selection.drafters
    facts = {name: weight_facts(models.named(spec), models.target) for name, spec in drafters.items()}
    target = models.load_target()
    built = {name: models.build(spec, target) for name, spec in drafters.items()}  # refused before anything runs
    known = list(reference_answers(target, items(heads.work), tick))
    times = _clocked(heads, target, built, known, tick)
    scores = {name: _score(heads, target, spec, known, tick, name) for name, spec in drafters.items()}
    speedups = _speedups(heads, target, known, scores, tick)
    kinds = [pair.item.kind for pair in known]
    first, labels = settings.draft_settings[0], short_labels(drafters)
    return HeadsReport(
        environment={
            **where,
            "device": models.device,
            "dtype": str(target.model.dtype).removeprefix("torch."),
            "target_cores": None if heads.cores is None else list(heads.cores.target),
        },
        workload={**describe(heads.work), "timed": settings.timed, "raced": settings.speed_pairs, "batch": BATCH},
        settings=settings.draft_settings,
        rows=[
            HeadResult(
                name,
                labels[name],
                facts[name],
                {setting: figures_of(found, kinds) for setting, found in scores[name].stats.items()},
                tuple(scores[name].divergences),
                scores[name].compared,
                None if times is None else times.drafters[name],
                speedups.get(name),
            )
            for name in drafters
        ],
        expectations=check_expectations(
            {name: scores[name].stats[first] for name in drafters}, {name: spec.name for name, spec in drafters.items()}
        ),
        times=times,
        notes=heads.selection.notes,
    )


def _clocked(
    heads: HeadsBench,
    target: Target,
    built: Mapping[str, Drafter[Any]],
    known: Sequence[ReferenceAnswer],
    tick: Tick | None,
) -> DraftTimes | None:
    """Along the longest answers: short ones have few positions to draft from."""
    if not heads.settings.timed:
        return None
    longest = sorted(known, key=lambda pair: -len(pair.tokens))[: heads.settings.timed]
    return time_drafts(target, built, longest, heads.settings.nodes, tick)


def _score(
    heads: HeadsBench, target: Target, spec: Spec, known: Sequence[ReferenceAnswer], tick: Tick | None, name: str
) -> _Scores:
    """Every setting, each with a drafter made anew: what one learns in a setting must not help it in the next."""
    scores = _Scores({}, [])
    pairs = with_events(known, blank_window(heads.models.blind)) if is_blind(spec) else known
    for setting in heads.settings.draft_settings:
        drafter = heads.models.build(as_chain(spec) if setting.shape == "chain" else spec, target)
        requests = [
            replace(request, sampling=replace(request.sampling, temperature=setting.temperature))
            for request in (pair.item.request for pair in pairs)
        ]
        answers = decode_all(target, drafter, requests, setting.nodes, BATCH[setting.shape])
        scores.stats[setting] = [AcceptanceStats.of(answer.stats) for answer in answers]
        if setting.temperature == 0:
            _compare(target, scores, known, [answer.tokens for answer in answers])
        if tick is not None:
            tick(name)
    return scores


def _compare(
    target: Target, scores: _Scores, known: Sequence[ReferenceAnswer], answers: Sequence[tuple[int, ...]]
) -> None:
    """Greedy answers with the target's own."""
    for pair, tokens in zip(known, answers, strict=True):
        divergence = find_divergence(target, pair.item, pair.tokens, tokens)
        scores.compared += 1
        if divergence is not None:
            scores.divergences.append(divergence)


def _speedups(
    heads: HeadsBench,
    target: Target,
    known: Sequence[ReferenceAnswer],
    scores: Mapping[str, _Scores],
    tick: Tick | None,
) -> dict[str, Interval]:
    """Whole answers against the target alone, the faster way, as `crossdraft bench` does: heads have all cores, too."""
    timed = list(known[: heads.settings.speed_pairs])
    if not timed:
        return {}
    names = tuple(heads.selection.drafters)
    methods = make_methods(ALONE, target, heads.models, heads.cores, names)
    warm_ups = items(replace(heads.work, pairs=WARM_UPS, split="validation", first=0))
    try:
        results = measure(methods, [pair.item for pair in timed], 1, list(warm_ups), tick)
    finally:
        close_all(methods.values())
    for name in names:
        _compare(target, scores[name], timed, [run.tokens for run in results.of(name)])
    against = fastest_alone(results, per_token=False) or ALONE[0]
    return {name: results.speedup(name, against, per_token=False) for name in names}


def check_expectations(
    found: Mapping[str, Sequence[AcceptanceStats]], methods: Mapping[str, str]
) -> list[ExpectationResult]:
    """Every expectation whose drafters were measured.

    Args:
        found: for each drafter its answers to the same pairs.
        methods: of some of them, which method each is; the first of a method stands for it.
    """
    first: dict[str, str] = {}
    for name in found:
        first.setdefault(methods.get(name, name), name)
    counts = {name: counts_of(stats) for name, stats in found.items()}
    results = []
    for expectation in EXPECTATIONS:
        able = [first[method] for method in expectation.better if method in first]
        if not able or expectation.worse not in first:
            continue
        better = max(able, key=lambda name: total(found[name]).tau)
        worse = first[expectation.worse]
        results.append(ExpectationResult(expectation, better, worse, tau_ratio(counts[better], counts[worse])))
    return results


def counts_of(stats: Sequence[AcceptanceStats]) -> list[tuple[int, int]]:
    """Tokens and verify passes of each answer."""
    return [(each.emitted, each.passes) for each in stats]


def figures_of(stats: Sequence[AcceptanceStats], kinds: Sequence[str]) -> AcceptanceFigures:
    """The figures of one drafter's answers, one for each pair, and the kind of question each was about."""
    return acceptance_figures(
        counts_of(stats), [each.kept_at for each in stats], [each.offered_at for each in stats], kinds
    )
