"""From runs to one line per method: the figures of the table, the JSON and the plot."""

from collections.abc import Sequence
from dataclasses import dataclass

from crossdraft.engine.target import Target
from crossdraft_lab.bench.measure import Divergence, Results, Run, find_divergence
from crossdraft_lab.bench.specs import ALONE
from crossdraft_lab.bench.statistics import Interval, Quartiles, per_position, quartiles, ratio
from crossdraft_lab.bench.workload import Item

BASELINES = ("target", "target-all", "hf", "hf-all", "hf-lookup", "hf-assisted")


@dataclass(frozen=True, slots=True)
class MethodSummary:
    """Figures of one method. Times are in seconds, over all runs.

    Args:
        name: of the method.
        equal, total: greedy: runs whose tokens were the target's, of how many. `equal` is None when sampling, where
            equal tokens are not to be expected, and when the target did not run.
        per: what `speedups` compares: the time of an `answer`, or when sampling, where answers differ in length, that
            of a `token`.
        divergences: one for each run that differed.
        ttft, latency: time to the first final token; time of the whole answer.
        provisional: time to the first drafted token that could be shown, over the runs that had one before their first
            final token; None if none had.
        tokens_per_s: median over runs.
        speedups: Σ time of a baseline / Σ time of this method, by baseline; per token when sampling.
        against: the baseline of the headline: the faster of the target alone on its own share of the cores and on all
            that the pair uses; None if neither ran.
        tau: tokens of the answers per verify pass, bonus included: Σ tokens / Σ passes.
        per_position: share of offered drafts accepted at each depth, pooled.
        hidden_share: part of the hidden drafting inside the target's prefill, pooled; None if nothing was hidden.
        prefill_slowdown: Σ of this method's times of encoding and prefill / Σ of the target's in the same pairs and
            repeats, minus 1; None where there is nothing to compare.
        overhead_share: the engine's own part of the rounds after the prefill, pooled; None without such rounds.
        stages: time on the target's lane by stage.
        stage_means: the same as means, which add up to the mean time of an answer.
        notes: what the engine wanted to be known.
        lossy: the acceptance rule with its settings, if it was a lossy one: the answers need not be the target's.
    """

    name: str
    equal: int | None
    total: int
    per: str
    divergences: tuple[Divergence, ...]
    ttft: Quartiles
    provisional: Quartiles | None
    latency: Quartiles
    tokens_per_s: float
    speedups: dict[str, Interval]
    against: str | None
    tau: Interval
    per_position: tuple[float, ...]
    hidden_share: Interval | None
    prefill_slowdown: Interval | None
    overhead_share: Interval | None
    stages: dict[str, Quartiles]
    stage_means: dict[str, float]
    notes: tuple[str, ...]
    lossy: str | None = None

    @property
    def headline(self) -> Interval | None:
        """Speed-up over the faster of the two targets alone."""
        return None if self.against is None else self.speedups[self.against]

    @property
    def label(self) -> str:
        """The name, and the rule if it was a lossy one."""
        return self.name if self.lossy is None else f"{self.name} (lossy: {self.lossy})"

    @property
    def lossless(self) -> bool | None:
        """True if every run gave the target's tokens. None if nothing was compared: a benchmark shows no distribution.

        Sampled answers have the target's distribution by construction, and it is the tests that show it. Answers by a
        lossy rule are never lossless, whatever they came out as.
        """
        if self.lossy is not None:
            return False
        return None if self.equal is None else self.equal == self.total


def summarise(results: Results, items: Sequence[Item], target: Target) -> list[MethodSummary]:
    """One `MethodSummary` per method; the one named `target` is what the others must reproduce."""
    against = fastest_alone(results, per_token=not items[0].request.sampling.greedy)
    return [_method(name, results, items, target, against) for name in results.runs]


def fastest_alone(results: Results, *, per_token: bool) -> str | None:
    """Which of `ALONE` took the least time over all pairs; None if neither ran."""

    def cost(name: str) -> float:
        return sum(results.seconds(name)) / (sum(results.tokens(name)) if per_token else 1)

    return min((name for name in ALONE if name in results.runs), key=cost, default=None)


def _method(name: str, results: Results, items: Sequence[Item], target: Target, against: str | None) -> MethodSummary:
    runs = results.of(name)
    provisional = [run.provisional_s for run in runs if run.provisional_s is not None]
    greedy = items[0].request.sampling.greedy
    compared = greedy and "target" in results.runs
    divergences = _divergences(name, results, items, target) if compared else ()
    stages = {stage: [run.stages_s.get(stage, 0.0) for run in runs] for stage in runs[0].stages_s}
    return MethodSummary(
        name=name,
        equal=len(runs) - len(divergences) if compared else None,
        total=len(runs),
        per="answer" if greedy else "token",
        divergences=divergences,
        ttft=quartiles([run.ttft_s for run in runs]),
        provisional=quartiles(provisional) if provisional else None,
        latency=quartiles([run.total_s for run in runs]),
        tokens_per_s=quartiles([len(run.tokens) / run.total_s for run in runs]).median,
        speedups={
            baseline: results.speedup(name, baseline, per_token=not greedy)
            for baseline in BASELINES
            if baseline in results.runs
        },
        against=against,
        tau=results.tau(name),
        per_position=tuple(per_position([run.accepted_at for run in runs], [run.offered_at for run in runs])),
        hidden_share=results.share(name, lambda run: run.hidden_inside_s, lambda run: run.hidden_drafting_s),
        prefill_slowdown=_slowdown(name, results),
        overhead_share=results.share(name, lambda run: run.overhead_s, lambda run: run.rounds_s),
        stages={stage: quartiles(values) for stage, values in stages.items()},
        stage_means={stage: sum(values) / len(values) for stage, values in stages.items()},
        notes=tuple(sorted({note for run in runs for note in run.notes})),
        lossy=next((run.lossy for run in runs if run.lossy is not None), None),
    )


def _divergences(name: str, results: Results, items: Sequence[Item], target: Target) -> tuple[Divergence, ...]:
    found = [
        find_divergence(target, item, own[0].tokens, run.tokens)
        for item, own, runs in zip(items, results.runs["target"], results.runs[name], strict=True)
        for run in runs
    ]
    return tuple(divergence for divergence in found if divergence is not None)


def _slowdown(name: str, results: Results) -> Interval | None:
    if name in ALONE or "target" not in results.runs:
        return None
    ours, alone = (
        [sum(run.prefill_s or 0.0 for run in runs) for runs in results.runs[one]] for one in (name, "target")
    )
    known = all(ours) and all(alone)
    return ratio([one - other for one, other in zip(ours, alone, strict=True)], alone) if known else None


def mean_tokens(runs: Sequence[Run]) -> float:
    """Mean length of the answers."""
    return sum(len(run.tokens) for run in runs) / len(runs)
