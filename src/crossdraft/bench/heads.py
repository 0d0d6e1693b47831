"""`crossdraft bench heads`: every trained drafter on the same questions; what it costs, and what it is worth."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from crossdraft.bench.assembly import Models, close_all, line_up
from crossdraft.bench.blank import blank_window
from crossdraft.bench.cores import Cores
from crossdraft.bench.divergence import Divergence, find_divergence
from crossdraft.bench.environment import environment
from crossdraft.bench.heads_select import Facts, Roster, as_chain, facts_of, labels_of
from crossdraft.bench.heads_tau import Accepted, Finding, Part, accepted, check_claims
from crossdraft.bench.heads_timing import DraftTime, Times, time_drafts
from crossdraft.bench.identity import Known, answer_alone, shown
from crossdraft.bench.measure import measure
from crossdraft.bench.specs import is_blind
from crossdraft.bench.statistics import Interval, ratio
from crossdraft.bench.words import describe
from crossdraft.bench.workload import Workload, items
from crossdraft.drafters.evaluate import AcceptanceStats, decode_all
from crossdraft.engine.drafter import Drafter
from crossdraft.engine.pinning import pinned
from crossdraft.engine.sampling import Sampling
from crossdraft.engine.target import Target
from crossdraft.errors import CrossdraftError
from crossdraft.specs import Spec

BATCH = {"tree": 4, "chain": 1}  # answers in a pass: the target's own tokens must come out either way
WARM_UPS = 2
Tick = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Trials:
    """What everybody has to do.

    Args:
        nodes: of a tree.
        chain: tokens of a chain; 0 = none. Chains are measured at temperature 0.
        temperatures: at which trees are measured.
        timed: answers along which drafts are clocked, the longest; 0 = none.
        raced: pairs on which the adaptive engine races against the target alone; 0 = none.

    Raises:
        CrossdraftError: a number that makes no sense, or nothing to do.
    """

    nodes: int = 60
    chain: int = 5
    temperatures: tuple[float, ...] = (0.0, 1.0)
    timed: int = 6
    raced: int = 0

    def __post_init__(self) -> None:
        if self.nodes < 1 or min(self.chain, self.timed, self.raced) < 0:
            raise CrossdraftError(
                "A tree needs at least 1 node (--nodes), and --chain, --timed and --speed are 0 or more."
            )
        if not self.temperatures or len(set(self.temperatures)) != len(self.temperatures):
            raise CrossdraftError("Name each temperature once, and at least one, such as --temperatures 0,1.")
        for temperature in self.temperatures:
            Sampling(temperature=temperature)  # refuses what no request may have, before anything is loaded

    @property
    def parts(self) -> tuple[Part, ...]:
        """In the order in which they are told: the first stands for a drafter where one figure must."""
        trees = [Part("tree", self.nodes, temperature) for temperature in sorted(self.temperatures)]
        chains = [Part("chain", self.chain, 0.0)] if self.chain and 0 in self.temperatures else []
        return (*trees[:1], *chains, *trees[1:])


@dataclass(frozen=True, slots=True)
class Row:
    """One drafter.

    Args:
        name: what it was asked for by, its spec; `label` is that for people.
        accepted: by part.
        equal, total: greedy answers that were the target's own, of how many, races included.
        drafting: `None` if nothing was clocked.
        speedup: Σ time of the target alone / Σ time with this drafter; `None` without a race.
    """

    name: str
    label: str
    facts: Facts
    accepted: Mapping[Part, Accepted]
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
    """What came out. `findings` are about the first part."""

    environment: dict[str, object]
    workload: dict[str, object]
    parts: tuple[Part, ...]
    rows: list[Row]
    findings: list[Finding]
    times: Times | None
    notes: tuple[str, ...]


@dataclass
class _Scores:
    """What one drafter has to show so far."""

    tallies: dict[Part, list[AcceptanceStats]]
    divergences: list[Divergence]
    compared: int = 0


@dataclass(frozen=True, slots=True)
class Heads:
    """The whole measurement: who, on what, and where."""

    models: Models
    work: Workload
    roster: Roster
    trials: Trials = Trials()
    cores: Cores | None = None

    @property
    def ticks(self) -> int:
        """What a progress bar counts to."""
        trials, many = self.trials, len(self.roster.drafters)
        races = trials.raced and (1 + many) * (WARM_UPS + self._least(trials.raced))
        return self.work.pairs + many * len(trials.parts) + self._least(trials.timed) + races

    def _least(self, pairs: int) -> int:
        return min(pairs, self.work.pairs)


def run_heads(heads: Heads, tick: Tick | None = None) -> HeadsReport:
    """Measure everybody, pinned to the target's cores.

    Raises:
        CrossdraftError: a model or a head that cannot be loaded, or answers too short to clock a draft along.
    """
    with pinned(None if heads.cores is None else heads.cores.target):
        return _run(heads, tick)


def _run(heads: Heads, tick: Tick | None) -> HeadsReport:
    where = environment()  # before this process itself is the load
    models, trials, drafters = heads.models, heads.trials, heads.roster.drafters
    facts = {name: facts_of(models.named(spec), models.target) for name, spec in drafters.items()}
    target = models.load_target()
    built = {name: models.beside(spec, target) for name, spec in drafters.items()}  # refused before anything runs
    known = list(answer_alone(target, items(heads.work), tick))
    times = _clocked(heads, target, built, known, tick)
    scores = {name: _score(heads, target, spec, known, tick, name) for name, spec in drafters.items()}
    speedups = _race(heads, target, known, scores, tick)
    kinds = [pair.item.kind for pair in known]
    first, labels = trials.parts[0], labels_of(drafters)
    return HeadsReport(
        environment={
            **where,
            "device": models.device,
            "dtype": str(target.model.dtype).removeprefix("torch."),
            "target_cores": None if heads.cores is None else list(heads.cores.target),
        },
        workload={**describe(heads.work), "timed": trials.timed, "raced": trials.raced, "batch": BATCH},
        parts=trials.parts,
        rows=[
            Row(
                name,
                labels[name],
                facts[name],
                {part: accepted(found, kinds) for part, found in scores[name].tallies.items()},
                tuple(scores[name].divergences),
                scores[name].compared,
                None if times is None else times.drafters[name],
                speedups.get(name),
            )
            for name in drafters
        ],
        findings=check_claims(
            {name: scores[name].tallies[first] for name in drafters},
            {name: spec.name for name, spec in drafters.items()},
        ),
        times=times,
        notes=heads.roster.notes,
    )


def _clocked(
    heads: Heads, target: Target, built: Mapping[str, Drafter[Any]], known: Sequence[Known], tick: Tick | None
) -> Times | None:
    """Along the longest answers: short ones have few places to draft from."""
    if not heads.trials.timed:
        return None
    longest = sorted(known, key=lambda pair: -len(pair.tokens))[: heads.trials.timed]
    return time_drafts(target, built, longest, heads.trials.nodes, tick)


def _score(heads: Heads, target: Target, spec: Spec, known: Sequence[Known], tick: Tick | None, name: str) -> _Scores:
    """Every part, each with a drafter made anew: what one learns in a part must not help it in the next."""
    scores = _Scores({}, [])
    asked = shown(known, blank_window(heads.models.blind)) if is_blind(spec) else known
    for part in heads.trials.parts:
        drafter = heads.models.beside(as_chain(spec) if part.shape == "chain" else spec, target)
        requests = [
            replace(request, sampling=replace(request.sampling, temperature=part.temperature))
            for request in (pair.item.request for pair in asked)
        ]
        answers = decode_all(target, drafter, requests, part.nodes, BATCH[part.shape])
        scores.tallies[part] = [AcceptanceStats.of(answer.stats) for answer in answers]
        if part.temperature == 0:
            _compare(target, scores, known, [answer.tokens for answer in answers])
        if tick is not None:
            tick(name)
    return scores


def _compare(target: Target, scores: _Scores, known: Sequence[Known], answers: Sequence[tuple[int, ...]]) -> None:
    """Greedy answers with the target's own."""
    for pair, tokens in zip(known, answers, strict=True):
        divergence = find_divergence(target, pair.item, pair.tokens, tokens)
        scores.compared += 1
        if divergence is not None:
            scores.divergences.append(divergence)


def _race(
    heads: Heads, target: Target, known: Sequence[Known], scores: Mapping[str, _Scores], tick: Tick | None
) -> dict[str, Interval]:
    """Whole answers against the target alone, as `crossdraft bench` races them."""
    asked = list(known[: heads.trials.raced])
    if not asked:
        return {}
    names = tuple(heads.roster.drafters)
    contestants = line_up(("target",), target, heads.models, heads.cores, names)
    warm_ups = items(replace(heads.work, pairs=WARM_UPS, split="validation", first=0))
    try:
        results = measure(contestants, [pair.item for pair in asked], 1, list(warm_ups), tick)
    finally:
        close_all(contestants.values())
    for name in names:
        _compare(target, scores[name], asked, [run.tokens for run in results.of(name)])
    return {name: ratio(results.seconds("target"), results.seconds(name)) for name in names}
