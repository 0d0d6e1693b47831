"""Variants of a method: the target alone or with a drafter, compressed or not, under options of its own."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from transformers import PreTrainedModel

from crossdraft.api import Engine
from crossdraft.assembly import assemble
from crossdraft.cli.cores import Cores
from crossdraft.compressions import compressed
from crossdraft.engine.cost_model import CostModel
from crossdraft.engine.runner.runner import DraftRunner, Worker
from crossdraft.engine.target import Target
from crossdraft.errors import CrossdraftError
from crossdraft.load import load_target, tokenizer_of
from crossdraft_lab.bench.assembly import EngineMethod, Models, cores_of, options_of
from crossdraft_lab.bench.baselines import Assistant, HFBaseline, blank_window
from crossdraft_lab.bench.measure import BenchMethod
from crossdraft_lab.bench.specs import ALONE, FORCED, HUGGING_FACE, is_blind, needs_no_process, spec_of


@dataclass(frozen=True, slots=True)
class Variant:
    """A method under a name, with settings of its own.

    Args:
        name: name of the row.
        method: `target`, `target-all`, or a drafter, as `bench --methods` takes it; default the name.
        compress: a compression of the target (lossy).
        options: fields of `Options` that differ from the bench's own.
        one_core: drafter and target share the target's core.
        lends: true if the drafter's core serves the target while the drafter is idle.
        make: makes the method from the target and the pair, for a variant that options cannot describe.
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
    """Variant that drafts `nodes` tokens in every round, the first too, in the target's process; nothing adapts."""
    same = {"adaptive": False, "nodes": nodes, "hidden_nodes": nodes, "placement": "inline", "hidden": "before"}
    return Variant(name, drafts, compress, {**same, **options})


class KeptCore:
    """A worker that never lends its cores; everything else is passed on to the `Worker`."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    @property
    def alive(self) -> bool:
        """See `Worker`."""
        return self._worker.alive

    def spare_cores(self) -> tuple[int, ...]:
        """Return no cores."""
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

    Caches are off unless an option says otherwise: usually the same clips are read by every method, and again in every
    repetition.

    Raises:
        CrossdraftError: a model cannot be loaded, or the target cannot be compressed in this way.
    """
    if variant.make is not None:
        return variant.make(target, models)
    if variant.drafts in HUGGING_FACE:
        return _hf(variant.drafts, target, models, cores)
    return make_engine(variant, target, models, cores)


def make_engine(variant: Variant, target: Target, models: Models, cores: Cores | None) -> EngineMethod:
    """Make the engine of a variant that runs crossdraft's own decoding."""
    name, inline = variant.drafts, variant.drafts == "event-inline"
    own = target if variant.compress is None else compressed(target, variant.compress)
    found = Cores(cores.target, cores.target) if variant.one_core and cores is not None else cores
    spec = None if name in (*ALONE, FORCED) else spec_of("event" if inline else name)
    process = spec is not None and not inline and not needs_no_process(spec)
    options = replace(options_of(name, models, found, process=process), **variant.options)
    if spec is None:
        engine = Engine(own, None, options, CostModel())
        return EngineMethod(engine, forced_text=name == FORCED, cores=cores_of(name, found))
    runner = assemble(models.named(spec), models.context(own), own, options)
    if not variant.lends:
        runner = DraftRunner(runner.drafter, runner.hidden, None, [KeptCore(worker) for worker in runner.workers])
    engine = Engine(own, runner, options, CostModel())
    return EngineMethod(engine, blank_window(models.blind), blind=is_blind(spec), cores=cores_of(name, found))


def _assistant(source: str, plain: Target, models: Models) -> PreTrainedModel:
    """Load a text model in the target's dtype as the assistant of Hugging Face's `generate`.

    Raises:
        CrossdraftError: it cannot be loaded, or its vocabulary is another than the target's.
    """
    dtype = str(plain.model.dtype).removeprefix("torch.")
    model = load_target(source, models.device, dtype, packed=False, tried=False).model
    sizes = [one.config.get_text_config().vocab_size for one in (model, plain.model)]
    if sizes[0] != sizes[1] or tokenizer_of(source).get_vocab() != tokenizer_of(models.target).get_vocab():
        raise CrossdraftError(f"{source} has another vocabulary than {models.target}; name an assistant of its family.")
    return model


def _hf(name: str, plain: Target, models: Models, cores: Cores | None) -> BenchMethod:
    """Build Hugging Face's `generate`, with the layers as Hugging Face loads them."""
    own, tokenizer = cores_of(name, cores), tokenizer_of(models.target)
    if name == "hf-assisted" and models.assistant is not None:
        return HFBaseline(plain, own, assistant=_assistant(models.assistant, plain, models), tokenizer=tokenizer)
    if name == "hf-assisted":
        twin = models.drafter(models.blind, plain)(packed=False)
        return HFBaseline(plain, own, assistant=Assistant(plain, twin), tokenizer=tokenizer)
    return HFBaseline(plain, own, lookup=name == "hf-lookup", tokenizer=tokenizer)
