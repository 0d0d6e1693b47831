"""A method: the target alone, or with a drafter, compressed or not, under options of its own."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from crossdraft.api import Engine
from crossdraft.assembly import assemble
from crossdraft.cli.cores import Cores
from crossdraft.compressions import compressed
from crossdraft.engine.cost_model import CostModel
from crossdraft.engine.runner.runner import DraftRunner, Worker
from crossdraft.engine.target import Target
from crossdraft_lab.bench.assembly import EngineMethod, Models, cores_of, make_method, options_of
from crossdraft_lab.bench.baselines import blank_window
from crossdraft_lab.bench.measure import BenchMethod
from crossdraft_lab.bench.specs import ALONE, is_blind, needs_no_process, spec_of


@dataclass(frozen=True, slots=True)
class Variant:
    """A variant: what answers under a name.

    Args:
        name: of the row.
        method: `target`, `target-all`, or what drafts, as `bench --methods` takes it; default the name.
        compress: a compression of the target (lossy).
        options: fields of `Options` that differ from those of the bench.
        one_core: drafter and target share the target's core.
        lends: whether the drafter's core serves the target while the drafter has nothing to do.
        make: makes the method of the target and the pair, where no option says what it is.
    """

    name: str
    method: str = ""
    compress: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    one_core: bool = False
    lends: bool = True
    make: Callable[[Target, Models], BenchMethod] | None = None

    @property
    def drafts(self) -> str:
        """The drafter's method or spec; `target` or `target-all` if nothing drafts."""
        return self.method or self.name

    @property
    def lossless(self) -> bool:
        """True if its answers must be the target's own."""
        return self.compress is None and "rule" not in self.options


def fixed(name: str, drafts: str, nodes: int, compress: str | None = None, **options: object) -> Variant:
    """A variant that drafts `nodes` in every round, the first included, in the target's process; nothing adapts."""
    same = {"adaptive": False, "nodes": nodes, "hidden_nodes": nodes, "placement": "inline", "hidden": "before"}
    return Variant(name, drafts, compress, {**same, **options})


class KeptCore:
    """A worker that lends its cores to nobody."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    @property
    def alive(self) -> bool:
        """See `Worker`."""
        return self._worker.alive

    def spare_cores(self) -> tuple[int, ...]:
        """None, ever."""
        return ()

    def stop(self) -> None:
        """See `Worker`."""
        self._worker.stop()

    def restart(self) -> None:
        """See `Worker`."""
        self._worker.restart()

    def close(self) -> None:
        """See `Worker`."""
        self._worker.close()


def make_variant(variant: Variant, target: Target, models: Models, cores: Cores | None) -> BenchMethod:
    """Make the method of a variant; close it when done.

    Raises:
        CrossdraftError: a model cannot be loaded, or the target cannot be compressed so.
    """
    if variant.make is not None:
        return variant.make(target, models)
    if not variant.options and variant.compress is None and variant.lends and not variant.one_core:
        return make_method(variant.drafts, target, models, cores)
    own = target if variant.compress is None else compressed(target, variant.compress)
    shared = None if cores is None else Cores(cores.target, cores.target)
    found = shared if variant.one_core else cores
    if variant.drafts in ALONE:
        return _alone(variant, own, models, found)
    spec = spec_of(variant.drafts)
    options = options_of(variant.drafts, models, found, process=not needs_no_process(spec))
    options = replace(options, **variant.options)
    runner = assemble(models.named(spec), models.context(own), own, options)
    if not variant.lends:
        runner = DraftRunner(runner.drafter, runner.hidden, None, _kept(runner.workers))
    engine = Engine(own, runner, options, CostModel())
    return EngineMethod(engine, blank_window(models.blind), blind=is_blind(spec), cores=cores_of(variant.drafts, found))


def _alone(variant: Variant, target: Target, models: Models, cores: Cores | None) -> EngineMethod:
    """Without a drafter, on its own core or on all of them."""
    options = replace(options_of(variant.drafts, models, cores, process=False), **variant.options)
    return EngineMethod(Engine(target, None, options, CostModel()), cores=cores_of(variant.drafts, cores))


def _kept(workers: Sequence[Worker]) -> list[Worker]:
    return [KeptCore(worker) for worker in workers]
