"""`crossdraft bench`: load, measure, sum up."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from crossdraft.bench.assembly import Models, ahead_of, close_all, cores_of, make_methods
from crossdraft.bench.cores import Cores
from crossdraft.bench.environment import environment
from crossdraft.bench.footprint import Footprint, measure_footprints
from crossdraft.bench.measure import Results, Run, measure
from crossdraft.bench.specs import METHODS, POLICIES, SPECS, check_methods, runs_apart, spec_of
from crossdraft.bench.summary import MethodSummary, mean_tokens, summarise
from crossdraft.bench.traces import Trace
from crossdraft.bench.words import cores_in_words, describe, words_of
from crossdraft.bench.workload import Item, Workload, items
from crossdraft.engine.fast.pinning import pinned
from crossdraft.errors import CrossdraftError

WARM_UPS = 3


@dataclass(frozen=True, slots=True)
class Suite:
    """What to measure, on what, and how often.

    Args:
        methods: names out of `ALL_METHODS`.
        drafters: specs of further drafters, which race under their specs.
        models: the checkpoints, devices and dtypes.
        work: the questions.
        repeats: runs of each pair.
        cores: of the target's process and of a drafter's own; `None` leaves the affinity as it is (GPUs).
        warm_ups: pairs that are thrown away; they come from the validation split.
        memory: measure the peak memory of each contestant before the race.

    Raises:
        CrossdraftError: as `check_methods`, or a number is too small; so that nothing is loaded for nothing.
    """

    models: Models
    work: Workload
    methods: tuple[str, ...] = METHODS
    repeats: int = 3
    cores: Cores | None = None
    warm_ups: int = WARM_UPS
    drafters: tuple[str, ...] = ()
    memory: bool = True

    def __post_init__(self) -> None:
        check_methods(self.methods, self.drafters)
        if self.repeats < 1:
            raise CrossdraftError(f"The number of repeats is {self.repeats}; run each pair at least once.")
        if self.warm_ups < 0:
            raise CrossdraftError(f"The number of warm-ups is {self.warm_ups}; give 0 or more.")


@dataclass(frozen=True, slots=True)
class BenchReport:
    """What came out; `pairs` is how many there were to draw the intervals from.

    `footprints` and `cores` are of each contestant, the former empty if no memory was measured.
    """

    pairs: int
    environment: dict[str, object]
    workload: dict[str, object]
    methods: list[MethodSummary]
    traces: tuple[Trace, ...] = ()
    footprints: Mapping[str, Footprint] = field(default_factory=dict[str, Footprint])
    cores: Mapping[str, Cores | None] = field(default_factory=dict[str, Cores | None])


def run_suite(suite: Suite, tick: Callable[[str], None] | None = None) -> BenchReport:
    """Measure, pinned to the cores of the pair; each contestant answers on its own of them.

    Raises:
        CrossdraftError: a model that cannot be loaded.
    """
    with pinned(None if suite.cores is None else suite.cores.pair):
        return _run(suite, tick)


def _run(suite: Suite, tick: Callable[[str], None] | None) -> BenchReport:
    found = environment()  # before this process itself is the load
    everybody = (*suite.methods, *suite.drafters)
    warm_ups, pairs = list(_warm_ups(suite)), list(items(suite.work))
    footprints = (
        measure_footprints(everybody, suite.models, suite.cores, (warm_ups or pairs)[0], tick) if suite.memory else {}
    )
    target = suite.models.load_target()
    methods = make_methods(suite.methods, target, suite.models, suite.cores, suite.drafters)
    try:
        results = measure(methods, pairs, suite.repeats, warm_ups, tick)
    finally:
        close_all(methods.values())
    first = next(iter(results.runs))
    mean = mean_tokens(results.of("target" if "target" in results.runs else first))
    return BenchReport(
        pairs=len(pairs),
        environment={**found, **placement_of(suite), "dtype": str(target.model.dtype).removeprefix("torch.")},
        workload={
            **describe(suite.work),
            "repeats": suite.repeats,
            "warm_ups": suite.warm_ups,
            "prompt_tokens": len(target.prepare(pairs[0].request)),
            "mean_tokens": round(mean, 1),
            "in_words": [*words_of(suite.work, pairs, mean), *cores_in_words(everybody, suite.cores)],
        },
        methods=summarise(results, pairs, target),
        traces=traces_of(results, pairs),
        footprints=footprints,
        cores={name: cores_of(name, suite.cores) for name in everybody},
    )


def traces_of(results: Results, pairs: Sequence[Item]) -> tuple[Trace, ...]:
    """The target's own answers, first run of each pair, for `replay`; none if it did not run, or not greedily."""
    if "target" not in results.runs or not pairs[0].request.sampling.greedy:
        return ()
    return tuple(
        Trace(str(item.seed), item.request.prompt, runs[0].tokens, (), _stages(runs[0]))
        for item, runs in zip(pairs, results.runs["target"], strict=True)
    )


def _stages(run: Run) -> tuple[float, ...]:
    """Milliseconds of loading, preprocessing, encoding, prefill and decoding."""
    times = {name: 1e3 * seconds for name, seconds in run.stages_s.items()}
    prefill = times.get("prefill", 0.0) + times.get("ride-along", 0.0)
    decode = 1e3 * run.total_s - sum(times.get(name, 0.0) for name in ("prepare", "encode")) - prefill
    return 0.0, times.get("prepare", 0.0), times.get("encode", 0.0), prefill, max(0.0, decode)


def _warm_ups(suite: Suite) -> Iterator[Item]:
    """Pairs of another split, so that nobody meets a question again."""
    if not suite.warm_ups:
        return iter(())
    return items(replace(suite.work, pairs=suite.warm_ups, split="validation", first=0))


def runs_of(suite: Suite) -> int:
    """How many answers a suite asks for; what a progress bar counts to."""
    answers = suite.memory + suite.warm_ups + suite.work.pairs * suite.repeats
    return (len(suite.methods) + len(suite.drafters)) * answers


def placement_of(suite: Suite) -> dict[str, object]:
    """Who ran where."""
    models, cores, everybody = suite.models, suite.cores, (*suite.methods, *suite.drafters)
    return {
        "models": {"target": models.target, "event": models.event, "blind": models.blind},
        "drafters": {name: str(spec_of(name)) for name in suite.methods if name in {*SPECS, *POLICIES}},
        "ahead": {name: ahead_of(name, models, cores) for name in everybody if runs_apart(name)},
        "device": models.device,
        "draft_device": models.draft_device,
        "target_cores": None if cores is None else list(cores.target),
        "draft_cores": None if cores is None else list(cores.draft),
        "cores_shared": None if cores is None else cores.shared,
    }
