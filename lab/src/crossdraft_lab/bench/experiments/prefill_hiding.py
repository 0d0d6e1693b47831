"""Experiment 1: the gain of hiding the draft in the prefill as the prefill grows, and the upper bound of this gain.

A draft that is made during the prefill saves decode passes. It never shortens the prefill: if ρ is the prefill's share
of the baseline's time, no such speed-up exceeds 1/ρ. Only reading less does: compression (lossy), or a prefix cache.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from crossdraft.engine.target import Target
from crossdraft.heads.drafting.head_drafter import HeadDrafter
from crossdraft_lab.bench.assembly import EngineMethod, Models
from crossdraft_lab.bench.charts import ChartCurve, curves
from crossdraft_lab.bench.experiments.record import Experiment, FigureTable, Findings, UnitResult
from crossdraft_lab.bench.measure import BenchMethod
from crossdraft_lab.bench.study import (
    ALL,
    OWN,
    Answers,
    Study,
    faults_of,
    figure_table,
    name_column,
    point,
    rows_json,
    runs_of,
    speed_columns,
    sure,
)
from crossdraft_lab.bench.variants import Variant
from crossdraft_lab.bench.workload import Workload
from crossdraft_lab.datasets.sample import counted

TRAINED = 8  # frames of the clips that the shipped pair was trained on
BOUND = "bound 1/ρ"


@dataclass(frozen=True, slots=True)
class PrefillConfig:
    """Numbers of frames, drafters, and compressions of a target that answers alone (lossy)."""

    frames: tuple[int, ...] = (1, 4, 8, 16, 32, 64)
    drafters: tuple[str, ...] = ("eagle2", "eaglevlm", "event", "glance", "union:event,memory")
    compressions: tuple[str, ...] = ("fastv:keep=0.5", "token_packer")
    pairs: int = 16
    block: int = 8
    repeats: int = 1
    warm_ups: int = 3
    max_new_tokens: int = 96


@dataclass(frozen=True, slots=True)
class LongerModels(Models):
    """The pair with a target whose context is long enough for the largest number of frames.

    Positions are extended: rotary embeddings have no end. The weights have seen clips of 8 frames.
    """

    longest: int = 0

    def load_target(self, *, packed: bool = True) -> Target:
        """Load the target, with a context of at least `longest` tokens."""
        target = super(LongerModels, self).load_target(packed=packed)
        target.context = max(target.context, self.longest)
        target.text_config.max_position_embeddings = target.context  # what a prompt is checked against
        return target


def lengthen(longest: int, method: BenchMethod) -> None:
    """Let a head that reads the target's features read texts of `longest` tokens, as its target does."""
    runner = method.engine.drafter if isinstance(method, EngineMethod) else None
    if runner is not None and isinstance(runner.drafter, HeadDrafter):
        runner.drafter.lengthen(longest)


def studies(config: PrefillConfig, folder: Path | None = None) -> list[Study]:
    """One study for each number of frames, with clips decoded beforehand; compressed targets have all cores."""
    compressed = (Variant(spec, ALL, spec) for spec in config.compressions)
    variants = (Variant(OWN), Variant(ALL), *map(Variant, config.drafters), *compressed)
    return [
        Study(
            variants,
            Workload(config.pairs, max_new_tokens=config.max_new_tokens, frames=frames),
            (),
            config.block,
            config.repeats,
            config.warm_ups,
            f"{frames} frames, pairs",
            LongerModels(dtype="float32", longest=64 * frames + 512),
            prepare=partial(lengthen, 64 * frames + 512),
        )
        for frames in config.frames
    ]


def summarise(config: PrefillConfig, found: Sequence[UnitResult]) -> Findings:
    """Summarise each size in a table, and draw the speed-ups as curves below their bound."""
    plans = studies(config)
    sizes = {frames: plan.pooled(found) for frames, plan in zip(config.frames, plans, strict=True)}
    shares = {frames: group.reading_share(group.alone) for frames, group in sizes.items()}
    least, most = (extreme(shares.values(), key=lambda one: one.value) for extreme in (min, max))
    names = [variant.name for variant in plans[0].variants if variant.name not in (OWN, ALL)]
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
    drawn = [
        ChartCurve(name, tuple(point(frames, group.speedup(name)) for frames, group in sizes.items())) for name in names
    ]
    bound = ChartCurve(BOUND, tuple(point(frames, one.inverse) for frames, one in shares.items()), dashed=True)
    title = "Speed-up over the target alone, by frames"
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
        tables=tuple(_table(frames, group) for frames, group in sizes.items()),
        figure=curves(title, [*drawn, bound], "frames", "×", log_x=True, log_y=True),
        figures={
            str(frames): {
                "rho": shares[frames].to_json(),
                "bound": shares[frames].inverse.to_json(),
                "against": group.alone,
                "prompt_tokens": group.mean(OWN, "prompt_tokens").value,
                **{name: rows_json(speed_columns(""), group, name) for name in group.names},
            }
            for frames, group in sizes.items()
        },
        negative=(f"Slower than the target alone: {'; '.join(lost)}.",) if lost else (),
        faults=faults_of(zip(plans, sizes.values(), strict=True)),
    )


def _table(frames: int, group: Answers) -> FigureTable:
    prompt, share = group.mean(OWN, "prompt_tokens").value, group.reading_share(group.alone)
    return figure_table(
        f"{frames} {'frame' if frames == 1 else 'frames'}, prompts of {prompt:.0f} tokens",
        (name_column(), *speed_columns(f"× {group.alone}")),
        [(group, name) for name in group.names],
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
    *runs_of(studies),
    summarise,
)  # fmt: skip
