"""Experiment 1: what hiding the draft in the prefill gains as the prefill grows, and the bound that nothing beats.

A draft that is made during the prefill saves decode passes. It never shortens the prefill: with ρ, the prefill's share
of the baseline's time, no such speed-up passes 1/ρ. Only reading less does, as compression (lossy) and a prefix cache.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from crossdraft.drawing.charts import ChartCurve, curves
from crossdraft.engine.target import Target
from crossdraft.heads.drafting.head_drafter import HeadDrafter
from crossdraft_lab.bench.assembly import EngineMethod, Models
from crossdraft_lab.bench.experiments.blocks import (
    ALL,
    OWN,
    SPEED_HEADS,
    BlockPlan,
    Pooled,
    answer_block,
    faults_of,
    loaded_methods,
    pooled,
    speed_json,
    speed_row,
    sure,
    warm_up_items,
)
from crossdraft_lab.bench.experiments.record import Experiment, FigureTable, Findings, Setting, UnitResult
from crossdraft_lab.bench.experiments.variants import Variant
from crossdraft_lab.bench.measure import BenchMethod
from crossdraft_lab.bench.statistics import Interval
from crossdraft_lab.bench.workload import Workload
from crossdraft_lab.datasets.sample import counted

TRAINED = 8  # frames of the clips that the shipped pair was trained on
BOUND = "bound 1/ρ"


@dataclass(frozen=True, slots=True)
class PrefillConfig:
    """Numbers of frames, drafters, and compressions of a target that answers alone (lossy)."""

    frames: tuple[int, ...] = (1, 4, 8, 16, 32, 64)
    drafters: tuple[str, ...] = ("eaglevlm", "specvlm", "event", "glance", "union:event,memory")
    compressions: tuple[str, ...] = ("fastv:keep=0.5", "token_packer")
    pairs: int = 16
    block: int = 8
    repeats: int = 1
    warm_ups: int = 3
    max_new_tokens: int = 96

    @property
    def variants(self) -> tuple[Variant, ...]:
        """The target alone twice, then the rest; compressed targets have all cores."""
        alone = (Variant(spec, ALL, spec) for spec in self.compressions)
        return (Variant(OWN), Variant(ALL), *map(Variant, self.drafters), *alone)

    def plan(self, frames: int) -> BlockPlan:
        """The blocks of clips of so many frames, decoded beforehand."""
        work = Workload(self.pairs, max_new_tokens=self.max_new_tokens, frames=frames)
        return BlockPlan(self.variants, work, self.block, self.repeats, self.warm_ups, f"{frames} frames, pairs")


def units(config: PrefillConfig) -> list[str]:
    """Blocks of all sizes."""
    return [key for frames in config.frames for key in config.plan(frames).keys]


@dataclass(frozen=True, slots=True)
class LongerModels(Models):
    """The pair with a target whose context takes as many frames as are asked for.

    Positions are extended: rotary embeddings have no end. The weights have seen clips of 8 frames.
    """

    longest: int = 0

    def load_target(self, *, packed: bool = True) -> Target:
        """The target, its context at least `longest` tokens."""
        target = super(LongerModels, self).load_target(packed=packed)
        target.context = max(target.context, self.longest)
        target.text_config.max_position_embeddings = target.context  # what a prompt is checked against
        return target


def lengthen(method: BenchMethod, longest: int) -> None:
    """The same for a head that reads the target's features: it reads as long a text."""
    runner = method.engine.drafter if isinstance(method, EngineMethod) else None
    if runner is not None and isinstance(runner.drafter, HeadDrafter):
        runner.drafter.lengthen(longest)


def measure(config: PrefillConfig, keys: Sequence[str], setting: Setting) -> Iterator[UnitResult]:
    """Size after size."""
    for frames in config.frames:
        plan = config.plan(frames)
        pending = [key for key in plan.keys if key in keys]
        if not pending:
            continue
        models = LongerModels(dtype="float32", longest=64 * frames + 512)
        with loaded_methods(plan.variants, setting, models) as (target, made):
            for method in made.values():
                lengthen(method, models.longest)
            warm = warm_up_items(plan)
            for key in pending:
                yield answer_block(key, plan, made, target, warm, setting)
                warm = []


def summarise(config: PrefillConfig, found: Sequence[UnitResult]) -> Findings:
    """A table for each size, and the speed-ups as curves below their bound."""
    sizes = {
        frames: pooled([unit for unit in found if unit.key in set(config.plan(frames).keys)])
        for frames in config.frames
    }
    shares = {frames: group.reading_share(group.alone or OWN) for frames, group in sizes.items()}
    least, most = (extreme(shares.values(), key=lambda one: one.value) for extreme in (min, max))
    names = [variant.name for variant in config.variants if variant.name not in (OWN, ALL)]
    best = {frames: max(config.drafters, key=lambda name: group.speedup(name).value) for frames, group in sizes.items()}
    said = "; ".join(
        f"{frames}: {best[frames]} {group.speedup(best[frames])}, bound {shares[frames].inverse}"
        for frames, group in sizes.items()
    )
    lost = [
        f"{name} with clips of {counted(frames, 'frame')} ({group.speedup(name)})"
        for frames, group in sizes.items()
        for name in names
        if group.speedup(name).below_one
    ]
    drawn = [ChartCurve(name, tuple(_point(frames, group, name) for frames, group in sizes.items())) for name in names]
    bound = ChartCurve(BOUND, tuple((frames, *_ends(one.inverse)) for frames, one in shares.items()), dashed=True)
    return Findings(
        found=(
            f"Fastest lossless drafter by frames: {said}. The prefill's share of an answer grows from "
            f"{least.percent()} to {most.percent()}, and what hiding can gain shrinks with it."
        ),
        sure=(
            f"{sure(next(iter(sizes.values())), config.repeats)} The weights are trained on clips of {TRAINED} frames; "
            "with fewer, and with more, for which positions are extended, a model is outside its training: "
            "times are of real passes, lengths and acceptances of unusual answers."
        ),
        tables=tuple(_table(frames, group, shares[frames]) for frames, group in sizes.items()),
        figure=curves(
            "Speed-up over the target alone, by frames", [*drawn, bound], "frames", "×", log_x=True, log_y=True
        ),
        figures={
            str(frames): {
                "rho": shares[frames].to_json(),
                "bound": shares[frames].inverse.to_json(),
                "against": group.alone,
                "prompt_tokens": group.mean(OWN, "prompt_tokens").value,
                **{name: speed_json(group, name) for name in group.names},
            }
            for frames, group in sizes.items()
        },
        negative=(f"Slower than the target alone: {'; '.join(lost)}.",) if lost else (),
        faults=faults_of((config.plan(frames), group) for frames, group in sizes.items()),
    )  # fmt: skip


def _point(frames: int, group: Pooled, name: str) -> tuple[float, float, float, float]:
    return frames, *_ends(group.speedup(name))


def _ends(one: Interval) -> tuple[float, float, float]:
    return one.value, one.low, one.high


def _table(frames: int, group: Pooled, share: Interval) -> FigureTable:
    prompt = group.mean(OWN, "prompt_tokens").value
    return FigureTable(
        f"{frames} {'frame' if frames == 1 else 'frames'}, prompts of {prompt:.0f} tokens",
        ("", *SPEED_HEADS, f"× {group.alone}"),
        tuple(speed_row(group, name) for name in group.names),
        f"ρ of {group.alone}: {share}; no way to hide a draft passes 1/ρ = {share.inverse}. Rows of compressions "
        "are lossy: their answers are another target's, on all cores, without a drafter. A drafter's core serves the "
        "prefill while it is idle; against the target on one core alone that, which hides nothing, may pass the bound.",
    )


PREFILL_HIDING: Experiment[PrefillConfig] = Experiment(
    "prefill-hiding",
    1,
    "Prefill hiding",
    "How does the gain of drafting during the prefill change as the prefill grows, and how near is it to its bound?",
    PrefillConfig(),
    PrefillConfig(
        frames=(1, 8, 32), drafters=("eaglevlm", "event", "glance", "union:event,memory"),
        compressions=("fastv:keep=0.5",), pairs=2, block=2, warm_ups=1, max_new_tokens=48,
    ),
    units,
    measure,
    summarise,
)  # fmt: skip
