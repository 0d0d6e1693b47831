"""`crossdraft bench partial`: the target over a part of its keys and values, on longer and longer prompts (SpecPV).

Prompts grow with the frames of the clip. Beyond the reference target's context its positions were never trained, and
its words mean nothing; how long passes take, and how often the partial target says what the whole one says, can still
be measured. Answers are given a second time by the rule `specpv`, SpecPV's LOSSY form: what the partial target says
stands.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch

from crossdraft.checks import whole
from crossdraft.drafters.independent import IndependentState
from crossdraft.engine.cache import KVCache
from crossdraft.engine.decode import Decoder
from crossdraft.engine.drafter import Budget, Draft, VerifyOutput
from crossdraft.engine.passes import Chunk
from crossdraft.engine.request import Answer, Request
from crossdraft.engine.runner.runner import DraftRunner
from crossdraft.engine.target import Target
from crossdraft.engine.tree import DraftTree
from crossdraft_lab.align.checked import rouge_l
from crossdraft_lab.bench.assembly import Models
from crossdraft_lab.bench.common import table
from crossdraft_lab.bench.statistics import Interval, acceptance_length, ratio, ratio_of_some
from crossdraft_lab.bench.workload import Workload, items
from crossdraft_lab.drafters.partial import PartialDrafter
from crossdraft_lab.drafters.settings import PartialSettings

if TYPE_CHECKING:
    from rich.table import Table

REPEATS = 7
LOSSY = "specpv"


@dataclass(frozen=True)
class PartialBench:
    """Settings of a measurement of the target over a part of its keys and values.

    Args:
        models: the target.
        frames: of the clips; 50 tokens each for the reference target.
        pairs: questions at each size.
        nodes: of every draft.
        part: how much of the cache the drafter keeps.

    Raises:
        CrossdraftError: a number that cannot be.
    """

    models: Models
    frames: Sequence[int] = (2, 8, 18, 40, 80, 160)
    pairs: int = 4
    nodes: int = 8
    part: PartialSettings = field(default_factory=PartialSettings)
    max_new_tokens: int = 48

    def __post_init__(self) -> None:
        for name, count in (("pairs", self.pairs), ("nodes", self.nodes), *(("frames", n) for n in self.frames)):
            whole(f"The number of {name}", count)

    @property
    def runs(self) -> int:
        """Number of answers it asks for: the steps of the progress bar."""
        return 3 * len(self.frames) * self.pairs


@dataclass(frozen=True)
class PartialResult:
    """One size of prompt.

    Args:
        prompt, kept: tokens, and those that a partial pass attends to of them.
        own: answers that are the target's own, of `total`.
        tau: tokens per verify pass.
        refused: of the partial target's tokens that were compared, the share that the whole target says otherwise.
        lossy_own, lossy_tau, lossy_rouge_l: the same of the LOSSY answers, and their mean ROUGE-L with the target's.
        drafted: tokens a round.
        one_ms, verify_ms, step_ms: processor time of the target's pass over one token, over a draft, and of the partial
            target's over one token.
        faster: Σ processor time of the answers alone over that of the drafted ones, from beginning to end, prefill and
            the choice of the part included.
    """

    prompt: int
    kept: int
    own: int
    total: int
    tau: Interval
    refused: Interval | None
    lossy_own: int
    lossy_tau: Interval
    lossy_rouge_l: Interval
    drafted: float
    one_ms: float
    verify_ms: float
    step_ms: float
    faster: Interval

    @property
    def speedup(self) -> float:
        """COMPUTED from these: the time of decode passes alone over that with drafts, the choice left out."""
        return self.tau.value * self.one_ms / (self.verify_ms + self.drafted * self.step_ms)

    def to_json(self) -> dict[str, object]:
        """Plain values."""
        return {
            "prompt_tokens": self.prompt,
            "kept_tokens": self.kept,
            "own_answers": {"equal": self.own, "total": self.total},
            "tau": self.tau.to_json(),
            "refused": None if self.refused is None else self.refused.to_json(),
            "lossy": {
                "rule": LOSSY,
                "own_answers": {"equal": self.lossy_own, "total": self.total},
                "tau": self.lossy_tau.to_json(),
                "rouge_l": self.lossy_rouge_l.to_json(),
            },
            "drafted": round(self.drafted, 3),
            "one_ms": round(self.one_ms, 3),
            "verify_ms": round(self.verify_ms, 3),
            "step_ms": round(self.step_ms, 3),
            "computed_speedup": round(self.speedup, 3),
            "measured_speedup": self.faster.to_json(),
        }


@dataclass
class AnswerCounts:
    """Counts of the drafts for one answer: rounds, and tokens drafted, accepted and refused."""

    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    refused: int = 0


class CountingDrafter(PartialDrafter):
    """Counts what becomes of its drafts, and the processor time that they take."""

    def __init__(self, target: Target, banned: Sequence[int], part: PartialSettings) -> None:
        super().__init__(target, banned, part)
        self.answers: list[AnswerCounts] = []
        self.kept = 0
        self.step_s: list[float] = []
        self._last = 0

    @property
    def tau(self) -> Interval:
        """Tokens per verify pass."""
        return acceptance_length([(one.rounds + one.accepted, one.rounds) for one in self.answers])

    def _propose(self, state: IndependentState, budget: Budget) -> Draft:
        before, start = len(state.drafted), time.process_time()
        draft = super()._propose(state, budget)
        self._last = len(draft.tree)
        if len(state.drafted) > before:
            self.step_s.append((time.process_time() - start) / (len(state.drafted) - before))
        return draft

    def _commit(self, state: IndependentState, output: VerifyOutput) -> None:
        super()._commit(state, output)
        if output.prompt is not None:  # nothing was drafted for the prompt's own pass
            self.kept = len(state.prompt)
            self.answers.append(AnswerCounts())
            return
        answer = self.answers[-1]
        answer.rounds += 1
        answer.drafted += self._last
        answer.accepted += len(output.path)
        answer.refused += len(output.path) < min(self._last, len(output.tokens))


def compare_partial(
    plan: PartialBench, target: Target, tick: Callable[[str], None] | None = None
) -> list[PartialResult]:
    """Answer questions about longer and longer clips, alone and drafted for by the partial target."""
    found = []
    for frames in plan.frames:
        longest = 64 * frames + 512
        target.context = max(target.context, longest)
        target.text_config.max_position_embeddings = target.context  # what the prompt is checked against
        drafter, letting = (CountingDrafter(target, sorted(target.reserved), plan.part) for _ in range(2))
        own = prompt = 0
        lossy: list[tuple[Answer, Answer]] = []
        spent: tuple[list[float], list[float]] = [], []
        asked = list(items(Workload(plan.pairs, max_new_tokens=plan.max_new_tokens, frames=frames)))
        for item in asked:
            start = time.process_time()
            alone = _answer(Decoder(target), item.request, tick)
            spent[0].append((between := time.process_time()) - start)
            runner = DraftRunner(drafter, "off")
            drafted = _answer(Decoder(target, runner, adaptive=False, nodes=plan.nodes), item.request, tick)
            spent[1].append(time.process_time() - between)
            lax = Decoder(target, DraftRunner(letting, "off"), adaptive=False, nodes=plan.nodes, rule=LOSSY)
            lossy.append((_answer(lax, item.request, tick), alone))
            own += drafted.tokens == alone.tokens
            prompt += alone.stats.prompt_tokens
        one, verify = _pass_times(target, asked[0].request, plan.nodes)
        counts = drafter.answers
        found.append(
            PartialResult(
                prompt // len(asked),
                drafter.kept,
                own,
                len(asked),
                drafter.tau,
                ratio_of_some([(one.refused, one.accepted + one.refused) for one in counts]),
                sum(one.tokens == other.tokens for one, other in lossy),
                letting.tau,
                ratio([rouge_l(one.tokens, other.tokens) for one, other in lossy], [1] * len(lossy)),
                sum(one.drafted for one in counts) / max(1, sum(one.rounds for one in counts)),
                one,
                verify,
                1e3 * float(np.median(drafter.step_s)),
                ratio(*spent),
            )
        )
    return found


def results_table(found: Sequence[PartialResult]) -> "Table":
    """The figures for people."""
    heads = (
        "kept",
        "own answers",
        "τ",
        "refused",
        "LOSSY: own, τ, ROUGE-L",
        "V(1) ms",
        "verify ms",
        "partial step ms",
        "computed speedup",
        "measured",
    )
    shown = table(None, "prompt tokens", heads)
    for row in found:
        times = f"{row.one_ms:.2f}", f"{row.verify_ms:.2f}", f"{row.step_ms:.2f}"
        own = f"{row.own}/{row.total}"
        shown.add_row(
            str(row.prompt), str(row.kept), own, str(row.tau), "–" if row.refused is None else row.refused.percent(),
            f"{row.lossy_own}/{row.total}, {row.lossy_tau}, {row.lossy_rouge_l}", *times, f"{row.speedup:.2f}",
            str(row.faster),
        )  # fmt: skip
    return shown


def _answer(decoder: Decoder, request: Request, tick: Callable[[str], None] | None) -> Answer:
    answer = decoder.generate([request])[0]
    decoder.close()
    if tick is not None:
        tick(f"{answer.stats.prompt_tokens} tokens")
    return answer


def _pass_times(target: Target, request: Request, nodes: int) -> tuple[float, float]:
    """Processor time in ms of a pass over one token, and over one and a chain of `nodes`; the least of several."""
    prompt = target.prepare(request)
    room = len(prompt) + nodes + 64
    cache = target.new_cache(capacity=room)
    with torch.inference_mode():
        target.prefill(cache, prompt, target.encode(prompt), room)
        one, verify = (min(_timed(target, cache, count) for _ in range(REPEATS)) for count in (0, nodes))
    return 1e3 * one, 1e3 * verify


def _timed(target: Target, cache: KVCache, nodes: int) -> float:
    """Seconds of a pass after all that is in the cache; nothing of it stays there."""
    length = cache.lengths[0]
    start = time.process_time()
    target.extend(cache, slice(0, 1), [Chunk(torch.tensor([5]))], [DraftTree.chain([5] * nodes)])
    took = time.process_time() - start
    cache.truncate(0, length)
    return took
