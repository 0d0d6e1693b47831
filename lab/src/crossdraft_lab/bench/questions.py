"""`crossdraft bench questions`: several questions about each clip, with the prefix cache and without it.

The clip is new to every method at its first question. Our methods keep what they read of it for the next questions;
`target` and `target-all` are measured with and without the cache.
"""

from collections.abc import Sequence

from crossdraft.cli.cores import Cores
from crossdraft_lab.bench.assembly import Models
from crossdraft_lab.bench.common import check_repeats
from crossdraft_lab.bench.measure import Run
from crossdraft_lab.bench.specs import ALONE, check_methods
from crossdraft_lab.bench.statistics import quartiles, ratio
from crossdraft_lab.bench.study import Answers, FigureColumn, Study, name_column
from crossdraft_lab.bench.variants import Variant
from crossdraft_lab.bench.workload import Workload

DRAFTERS = ("glance", "event", "eagle2")
UNCACHED = " (no cache)"
HF = ("hf", "hf-all")
BASELINES = {
    "hf": HF,
    "target without cache": tuple(name + UNCACHED for name in ALONE),
    "target with cache": ALONE,
}  # the faster of each is what all are compared with


def questions_study(
    models: Models,
    work: Workload,
    drafters: Sequence[str] = DRAFTERS,
    repeats: int = 1,
    cores: Cores | None = None,
    warm_ups: int = 1,
) -> Study:
    """Study of every clip with all its questions, by each method; an assignment of cores equal to another is left out.

    Args:
        models: the checkpoints, devices and dtypes.
        work: clips, and number of questions about each.
        drafters: specs of drafters.
        repeats: runs of every clip with all its questions.
        cores: cores of the target's process and of the drafter's.
        warm_ups: number of clips of another split that are asked about before the clock starts.

    Raises:
        CrossdraftError: a drafter that is unknown or named twice, or a number that is too small.
    """
    check_methods((*HF, *ALONE), tuple(drafters))
    check_repeats(repeats)
    shares = 1 if cores is None or cores.pair == cores.target else 2
    kept = {"cache_bytes": None}
    variants = (
        *map(Variant, HF[:shares]),
        *(Variant(name + UNCACHED, name) for name in ALONE[:shares]),
        *(Variant(name, options=kept) for name in (*ALONE[:shares], *drafters)),
    )
    title = f"{work.scenes} clips, {work.questions} questions about each"
    return Study(
        variants, work, COLUMNS, repeats=repeats, warm_ups=warm_ups * work.questions, models=models, title=title
    )


def fastest(found: Answers, baseline: str) -> str:
    """Name of the fastest way of a baseline, by the total time of all answers."""
    ran = [name for name in BASELINES[baseline] if name in found.names]
    return min(ran, key=lambda name: sum(found.results.seconds(name)))


def runs_at(found: Answers, name: str, *, first: bool) -> list[Run]:
    """Runs of the first question about each clip, or of the later ones; of all, where clips have one question each."""
    new = [scene not in found.scenes[:at] for at, scene in enumerate(found.scenes)]
    chosen = new if first or all(new) else [not one for one in new]
    return [run for use, runs in zip(chosen, found.results.runs[name], strict=True) if use for run in runs]


def _median(key: str, head: str, figure: str, *, first: bool) -> FigureColumn:
    def median(found: Answers, name: str) -> float:
        return 1e3 * quartiles([getattr(run, figure) for run in runs_at(found, name, first=first)]).median

    return FigureColumn(key, head, median, lambda ms: f"{ms:.0f} ms", lambda ms: round(ms, 2))


def _speedups(found: Answers, name: str) -> dict[str, object]:
    seconds = found.by_scene.seconds
    return {of: ratio(seconds(fastest(found, of)), seconds(name)) for of in BASELINES}


COLUMNS = (
    name_column("method", "name"),
    FigureColumn("identical", "identical", lambda found, name: "{}/{}".format(
        *found.equal(name, fastest(found, "target without cache")))),
    _median("first_ms", "first question", "total_s", first=True),
    _median("next_ms", "next ones", "total_s", first=False),
    _median("next_ttft_ms", "their TTFT", "ttft_s", first=False),
    FigureColumn("speedup", "", _speedups),
    *(FigureColumn("", f"× {of}", lambda found, name, of=of: _speedups(found, name)[of]) for of in BASELINES),
)  # fmt: skip
