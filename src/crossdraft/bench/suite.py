"""`crossdraft bench`: load, measure, sum up."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

from crossdraft.bench.contestants import METHODS, Models, close_all, drafter_memory, line_up
from crossdraft.bench.cores import Cores, pinned
from crossdraft.bench.environment import environment, memory
from crossdraft.bench.measure import measure
from crossdraft.bench.summary import Method, mean_tokens, summarise
from crossdraft.bench.workload import Workload, items

WARM_UPS = 3


@dataclass(frozen=True, slots=True)
class Suite:
    """What to measure, on what, and how often.

    Args:
        methods: names out of `METHODS`; the first that is also a baseline gives `speedup`.
        models: the checkpoints, devices and dtypes.
        work: the questions.
        repeats: runs of each pair.
        cores: of the target's process and of a drafter's own; `None` leaves the affinity as it is (GPUs).
        warm_ups: pairs that are thrown away; they come from the validation split.
    """

    models: Models
    work: Workload
    methods: tuple[str, ...] = METHODS
    repeats: int = 3
    cores: Cores | None = None
    warm_ups: int = WARM_UPS


@dataclass(frozen=True, slots=True)
class Report:
    """What came out."""

    environment: dict[str, object]
    workload: dict[str, object]
    memory: dict[str, object]
    methods: list[Method]


def run_suite(suite: Suite, tick: Callable[[str], None] | None = None) -> Report:
    """Measure, pinned to the target's cores.

    Raises:
        CrossdraftError: an unknown method, or a model that cannot be loaded.
    """
    with pinned(None if suite.cores is None else suite.cores.target):
        return _run(suite, tick)


def _run(suite: Suite, tick: Callable[[str], None] | None) -> Report:
    target = suite.models.load_target()
    pairs = list(items(suite.work))
    warm = replace(suite.work, pairs=max(1, suite.warm_ups), split="validation", first=0)
    warm_ups = list(items(warm))[: suite.warm_ups]
    contestants = line_up(suite.methods, target, suite.models, suite.cores)
    try:
        results = measure(contestants, pairs, suite.repeats, warm_ups, tick)
        used = {**memory(), "drafter_processes_mib": drafter_memory(contestants)}
    finally:
        close_all(contestants.values())
    methods = summarise(results, pairs, target)
    first = next(iter(results.runs))
    return Report(
        environment={
            **environment(),
            **placement_of(suite),
            "dtype": str(target.model.dtype).removeprefix("torch."),
        },
        workload={
            **describe(suite.work),
            "repeats": suite.repeats,
            "warm_ups": suite.warm_ups,
            "prompt_tokens": len(target.prepare(pairs[0].request)),
            "mean_tokens": round(mean_tokens(results.of("target" if "target" in results.runs else first)), 1),
        },
        memory=used,
        methods=methods,
    )


def runs_of(suite: Suite) -> int:
    """How many answers a suite asks for; what a progress bar counts to."""
    return len(suite.methods) * (suite.warm_ups + suite.work.pairs * suite.repeats)


def describe(work: Workload) -> dict[str, object]:
    """A workload in plain values, with what the clock does and does not cover."""
    covered = (
        "preprocessing, prompt, rendering of event frames, models" if work.files is None else "everything"
    )
    return {
        **asdict(work),
        "kinds": list(work.kinds) or "all",
        "files": work.files is not None,
        "held_out_wordings": work.held_out,
        "timed": f"{covered}; "
        + ("files are read inside the clock" if work.files else "files are read beforehand"),
    }


def placement_of(suite: Suite) -> dict[str, object]:
    """Who ran where."""
    models, cores = suite.models, suite.cores
    return {
        "models": {"target": models.target, "event": models.event, "blind": models.blind},
        "device": models.device,
        "draft_device": models.draft_device,
        "target_cores": None if cores is None else list(cores.target),
        "draft_cores": None if cores is None else list(cores.draft),
        "cores_shared": None if cores is None else cores.shared,
    }


def check_methods(text: str | None) -> tuple[str, ...]:
    """The methods of `--methods a,b`; all by default."""
    return tuple(part.strip() for part in text.split(",") if part.strip()) if text else METHODS
