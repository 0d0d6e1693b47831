"""The stages of a pair, measured on a few answers, for `crossdraft plan --measure`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import fmean, median

from crossdraft.api import Engine, Options
from crossdraft.cli.cores import Cores
from crossdraft.engine.cost_model import CostModel
from crossdraft.engine.ledger import READING
from crossdraft.engine.request import Answer, Request
from crossdraft.engine.target import Target
from crossdraft.errors import CrossdraftError
from crossdraft_lab.bench.plan import LEAST_TOKENS, SHORTEST, Stages
from crossdraft_lab.bench.scale_measure import measure_passes
from crossdraft_lab.bench.workload import Item, Workload, items

NODES = 16  # of every draft, the hidden one included: nothing adapts, so that acceptance depends on the drafter alone
BUDGET_S = 0.1  # seconds for each width of V(n)


@dataclass(frozen=True, slots=True)
class Pair:
    """Models and their devices. A drafter without a core or a device of its own drafts before the prefill."""

    target: str = "reference"
    drafter: str = "event"
    device: str | None = None
    dtype: str | None = None
    draft_device: str | None = None
    cores: Cores | None = None
    quantize: str | None = None
    draft_quantize: str | None = None

    @property
    def options(self) -> Options:
        """Options with drafts of a fixed length, in the drafter's own process if it has cores of its own."""
        shared = self.cores is not None and self.cores.shared
        return Options(
            placement="inline" if shared else "process",
            hidden="before" if shared else "beside",
            device=self.device,
            dtype=self.dtype,
            draft_device=self.draft_device,
            quantize=self.quantize,
            draft_quantize=self.draft_quantize,
            target_cores=None if self.cores is None else self.cores.target,
            draft_cores=None if self.cores is None or shared else self.cores.draft,
            nodes=NODES,
            hidden_nodes=NODES,
            adaptive=False,
            cache_bytes=0,
        )


def measure_stages(pair: Pair, pairs: int, tick: Callable[[str], None]) -> Stages:
    """Answer every pair by the target alone and with the drafter, in turn; then measure V(n) after the first prompt.

    One pair of another split warms up. `tick` is called after every answer and after V(n): 2·(pairs + 1) + 1 times.

    Raises:
        CrossdraftError: a model cannot be loaded, the drafter was lost, or the answers are too short to tell.
    """
    questions = list(items(Workload(pairs)))
    options = pair.options  # made before the engine pins this process, which then may not use the drafter's cores
    warm_up = next(items(Workload(1, split="validation")))
    with Engine.load(pair.target, pair.drafter, options) as engine:
        alone = Engine(engine.target, None, Options(cache_bytes=0), CostModel())
        without, drafting = [], []
        for item in (warm_up, *questions):
            without.append(_answer(alone, item, tick, "alone"))
            drafting.append(_answer(engine, item, tick, "drafting"))
        passes = _passes(engine.target, questions[0].request)
        tick("V(n)")
    return stages_of(without[1:], drafting[1:], passes, shared=options.placement == "inline")


def stages_of(
    without: Sequence[Answer], drafting: Sequence[Answer], passes: Sequence[tuple[int, float]], *, shared: bool
) -> Stages:
    """Compute stages as means and medians over answers by the target alone, and with drafts of a fixed length.

    Args:
        without, drafting: answers to the same pairs, by the target alone and with the drafter.
        passes: (n, V(n)) in milliseconds, n = 1 first.
        shared: true if the drafter has no device of its own, and drafted before the prefill.
    """
    drafted = sum(answer.stats.drafted - answer.stats.hidden_drafted for answer in drafting)
    if not drafted:
        raise CrossdraftError("The answers end before a round of drafting; measure more pairs.")
    reading = [_reading(answer) for answer in without]
    hidden = [answer.timeline.total("drafter", "read", "hidden draft") for answer in drafting]
    waited = sum(answer.stats.stages_s.get(stage, 0.0) for answer in drafting for stage in ("draft", "communication"))
    slowed = sum(_reading(answer) for answer in drafting) - sum(reading)
    overlap = sum(min(pair) for pair in zip(reading, hidden, strict=True))
    contention = 1.0 if shared else max(0.0, slowed) / overlap if overlap else 0.0
    whole = [_reading(answer) + answer.stats.stages_s["ride-along"] for answer in without]
    return Stages(
        prefill=1e3 * median(whole),
        step=passes[0][1],
        draft_step=1e3 * waited / drafted,
        acceptance=(_alpha(drafting),),
        tokens=max(LEAST_TOKENS, round(fmean(len(answer.tokens) for answer in without))),
        draft_prefill=1e3 * median(answer.timeline.total("drafter", "read") for answer in drafting),
        passes=tuple(passes),
        contention=contention,
    )


def _answer(engine: Engine, item: Item, tick: Callable[[str], None], name: str) -> Answer:
    answer = engine.generate(item.request)
    if answer.other_notes:
        raise CrossdraftError(f"Nothing can be planned from this pair: {answer.other_notes[0]}")
    tick(name)
    return answer


def _reading(answer: Answer) -> float:
    """Seconds of the target's prefill up to its last piece, which the ride-along draft waits for."""
    return sum(answer.stats.stages_s[stage] for stage in READING)


def _alpha(answers: Sequence[Answer]) -> float:
    """Accepted over verified nodes: a node counts as verified if all its ancestors were accepted."""
    accepted = verified = 0
    for answer in answers:
        offered, kept = answer.stats.drafted_at, answer.stats.accepted_at
        accepted += sum(kept)
        verified += sum(min(tried, above) for tried, above in zip(offered, [*offered[:1], *kept], strict=False))
    return accepted / verified if verified else 0.0


def _passes(target: Target, request: Request) -> list[tuple[int, float]]:
    """V(n) in milliseconds after a request's own prompt."""
    prompt = target.prepare(request)
    fixed = target.reading(lambda _: prompt)
    measured = measure_passes(fixed, BUDGET_S)
    return undisturbed([(each["n"], max(SHORTEST, each["extend_ms"]["median"])) for each in measured])


def undisturbed(passes: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """Lower each time to the least of its own and wider passes: other work on a machine only adds to times.

    >>> undisturbed([(1, 13.0), (2, 12.0), (4, 21.0), (8, 20.0)])
    [(1, 12.0), (2, 12.0), (4, 20.0), (8, 20.0)]
    """
    least = list(accumulate((time for _, time in reversed(passes)), min))[::-1]
    return [(n, time) for (n, _), time in zip(passes, least, strict=True)]
