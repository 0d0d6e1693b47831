"""The target alone, on hardware equal to the pair's, for comparison with the pair's times."""

import threading

from crossdraft.api import Engine
from crossdraft.drawing.figures import Baseline
from crossdraft.engine.request import Request


def baselines(engine: Engine) -> dict[str, tuple[int, ...] | None]:
    """Return core sets for the target alone: its share, and all cores of the pair if these are more.

    The cores are None where the target has no share of its own.
    """
    options = engine.options
    whole = tuple(sorted({*(options.target_cores or ()), *(options.draft_cores or ())}))
    shares = {"share": options.target_cores}
    if options.target_cores and len(whole) > len(options.target_cores):
        shares["all"] = whole
    return shares


def target_alone(engine: Engine, request: Request, stop: threading.Event | None = None) -> Baseline:
    """Run the target alone, once on its share and once on all cores of the pair; return the faster answer.

    Once `stop` is set, the run ends within a round, and its result is incomplete.
    """
    answers = [(engine.alone(request, cores, stop), cores) for cores in baselines(engine).values()]
    answer, cores = min(answers, key=lambda found: found[0].stats.total_s)
    return Baseline(answer, cores=None if cores is None else len(cores))
