"""The ways of running a drafter that must all give the target's own tokens: placements, and batches."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

from crossdraft.assembly import assemble
from crossdraft.bench.assembly import Models
from crossdraft.bench.cores import Cores
from crossdraft.bench.specs import POLICIES, spec_of
from crossdraft.engine.decode import Decoder
from crossdraft.engine.drafter import Drafter
from crossdraft.engine.fast.pinning import pinned
from crossdraft.engine.runner.parallel import BEST
from crossdraft.engine.runner.runner import DraftRunner
from crossdraft.engine.target import Target
from crossdraft.errors import CrossdraftError
from crossdraft.methods import SHIPPED
from crossdraft.options import Options

PROCESS = "process"  # every other placement is an inline one's hidden mode
ALL = "all"
# What `all` stands for: every example of every drafter of ours, and every policy of parallel drafting.
ALL_SPECS = (*(spec for method in SHIPPED.values() for spec in method.examples or ()), *POLICIES)


@dataclass(frozen=True, slots=True)
class RunConfig:
    """One way of running a drafter.

    Args:
        name: of the way, for people.
        spec: of the drafter.
        placements: where the drafter runs and how many requests share a pass; taken in turn, wave by wave.
        adaptive: let the cost model trim and silence the drafter, as it does for users. If not, every round verifies
            as much as the drafter will write, whether that pays or not.
    """

    name: str
    spec: str
    placements: tuple[tuple[str, int], ...]
    adaptive: bool = True


EVENT_CONFIGS = (  # every placement of the event drafter, its blind twin, and shared passes
    RunConfig("event", "event", ((PROCESS, 1),)),
    *(RunConfig(f"event-inline, hidden {hidden}", "event", ((hidden, 1),)) for hidden in ("before", "beside", "off")),
    RunConfig("blind", "blind", ((PROCESS, 1),)),
    *(RunConfig(f"batch of up to {size}", "event", ((PROCESS, size),)) for size in (1, 2, 3)),
    RunConfig("batch of up to 4", "event", (("before", 4),)),
)


def configs_of(spec: str) -> tuple[RunConfig, ...]:
    """For any drafter: as it is used, in this process, and in batches of every size."""
    return (
        RunConfig(f"{spec}, process", spec, ((PROCESS, 1),)),
        RunConfig(f"{spec}, inline", spec, (("beside", 1),), adaptive=False),
        RunConfig(f"{spec}, batches of 2 to 4", spec, ((PROCESS, 2), ("before", 3), ("off", 4)), adaptive=False),
    )


def choose_configs(drafters: Sequence[str]) -> list[tuple[RunConfig, ...]]:
    """Groups of ways that are open together: one for each drafter named, or the event drafter's if none is.

    Raises:
        CrossdraftError: a spec that cannot be read, or that stands there twice.
    """
    if not drafters:
        return [EVENT_CONFIGS]
    specs = [spec for name in drafters for spec in (ALL_SPECS if name == ALL else (name,))]
    for spec in specs:
        spec_of(spec)
        if specs.count(spec) > 1:
            raise CrossdraftError(f"The drafter {spec} is named twice; name each once.")
    return [configs_of(spec) for spec in specs]


@contextmanager
def open_configs(
    target: Target, models: Models, cores: Cores | None, configs: Sequence[RunConfig]
) -> Iterator[list[tuple[Decoder, ...]]]:
    """For each way a decoder for each placement. Ways of the same drafter share its process, and its inline one."""
    with ExitStack() as stack:

        @cache
        def runner(spec: str) -> DraftRunner[Any]:
            """As users run it; a policy of parallel drafting even where the two share a core."""
            with pinned(None if cores is None else cores.pair):  # of which this process may have the target's only
                options = Options(
                    placement="process",
                    parallel=POLICIES.get(spec, BEST),
                    target_cores=None if cores is None else cores.target,
                    draft_cores=None if cores is None else cores.draft or None,
                )
            made = assemble(models.spec(spec), models.context(target), target, options)
            stack.callback(made.close)
            return made

        @cache
        def drafter(spec: str) -> Drafter[Any]:
            return models.build(spec_of(spec), target)

        def runner_at(spec: str, where: str) -> DraftRunner[Any]:
            if where == PROCESS:
                return runner(spec)
            made = DraftRunner(drafter(spec), where, target.device)
            stack.callback(made.close)
            return made

        yield [
            tuple(
                Decoder(target, runner_at(config.spec, where), max_batch=size, adaptive=config.adaptive)
                for where, size in config.placements
            )
            for config in configs
        ]
