"""`crossdraft bench partial`: the target over a part of its keys and values, on longer and longer prompts (SpecPV).

Prompts grow with the frames of the clip. Beyond the reference target's context its positions were never trained, and
its words mean nothing; the time of passes, and the share of tokens on which partial and whole target agree, can still
be measured. Answers are given a second time by the rule `specpv`, SpecPV's LOSSY form: tokens of the partial target
are final.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from crossdraft.checks import whole
from crossdraft.drafters.independent import IndependentState
from crossdraft.engine.cache import KVCache
from crossdraft.engine.drafter import Budget, Draft, VerifyOutput
from crossdraft.engine.loop import DecodeLoop
from crossdraft.engine.passes import Chunk, PassRow
from crossdraft.engine.prefill import prefill
from crossdraft.engine.request import Answer, Request
from crossdraft.engine.runner.runner import DraftRunner
from crossdraft.engine.target import Target
from crossdraft.engine.tree import DraftTree
from crossdraft_lab.align.checked import rouge_l
from crossdraft_lab.bench.assembly import Models
from crossdraft_lab.bench.experiments.record import Tick
from crossdraft_lab.bench.statistics import Interval, acceptance_length, ratio, ratio_of_some
from crossdraft_lab.bench.study import FigureColumn
from crossdraft_lab.bench.workload import Workload, items
from crossdraft_lab.drafters.partial import PartialSettings
from crossdraft_lab.drafters.partial.drafter import PartialDrafter

REPEATS = 7
LOSSY = "specpv"


@dataclass(frozen=True)
class PartialBench:
    """Settings of a measurement of the target over a part of its keys and values.

    Args:
        models: the target.
        frames: numbers of frames of the clips; 50 tokens each for the reference target.
        pairs: number of questions at each size.
        nodes: number of nodes of every draft.
        part: settings of the part of the cache that the drafter keeps.

    Raises:
        CrossdraftError: a number is out of range.
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
        """Number of answers that the measurement asks for: the steps of the progress bar."""
        return 3 * len(self.frames) * self.pairs


@dataclass
class AnswerCounts:
    """Counts of the drafts for one answer: rounds, and tokens drafted, accepted and refused."""

    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    refused: int = 0


class CountingDrafter(PartialDrafter):
    """Partial drafter that counts its accepted and refused tokens, and its processor time."""

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


def compare_partial(plan: PartialBench, target: Target, tick: Tick = lambda _: None) -> list[dict[str, Any]]:
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
            alone = _answer(DecodeLoop(target), item.request, tick)
            spent[0].append((between := time.process_time()) - start)
            runner = DraftRunner(drafter, "off")
            given = _answer(DecodeLoop(target, runner, adaptive=False, nodes=plan.nodes), item.request, tick)
            spent[1].append(time.process_time() - between)
            lax = DecodeLoop(target, DraftRunner(letting, "off"), adaptive=False, nodes=plan.nodes, rule=LOSSY)
            lossy.append((_answer(lax, item.request, tick), alone))
            own += given.tokens == alone.tokens
            prompt += alone.stats.prompt_tokens
        one, verify = _pass_times(target, asked[0].request, plan.nodes)
        counts, step = drafter.answers, 1e3 * float(np.median(drafter.step_s))
        drafted = sum(one.drafted for one in counts) / max(1, sum(one.rounds for one in counts))
        found.append(
            {
                "prompt_tokens": prompt // len(asked),
                "kept_tokens": drafter.kept,
                "own_answers": {"equal": own, "total": len(asked)},
                "tau": drafter.tau,
                "refused": ratio_of_some([(one.refused, one.accepted + one.refused) for one in counts]),
                "lossy": {
                    "rule": LOSSY,
                    "own_answers": {"equal": sum(a.tokens == b.tokens for a, b in lossy), "total": len(asked)},
                    "tau": letting.tau,
                    "rouge_l": ratio([rouge_l(a.tokens, b.tokens) for a, b in lossy], [1] * len(lossy)),
                },
                "drafted": drafted,
                "one_ms": one,
                "verify_ms": verify,
                "step_ms": step,
                "computed_speedup": drafter.tau.value * one / (verify + drafted * step),
                "measured_speedup": ratio(*spent),
            }
        )
    return found


def _of_all(answers: Mapping[str, int]) -> str:
    return f"{answers['equal']}/{answers['total']}"


def _lossy(row: Mapping[str, Any]) -> str:
    lossy = row["lossy"]
    return f"{_of_all(lossy['own_answers'])}, {lossy['tau']}, {lossy['rouge_l']}"


# Refused: of the partial target's tokens that were compared, the share where the whole target differs. Drafted:
# tokens a round. Times: processor time of the target's pass over one token, over a draft, and of the partial target's
# over one token. Computed: the time of decode passes alone over that with drafts, the choice left out. Measured:
# Σ processor time of the answers alone over that of the drafted ones, prefill and the choice of the part included.
COLUMNS = (
    FigureColumn("prompt_tokens", "prompt tokens", lambda row: row["prompt_tokens"]),
    FigureColumn("kept_tokens", "kept", lambda row: row["kept_tokens"]),
    FigureColumn("own_answers", "own answers", lambda row: row["own_answers"], _of_all),
    FigureColumn("tau", "τ", lambda row: row["tau"]),
    FigureColumn("refused", "refused", lambda row: row["refused"], lambda one: "–" if one is None else one.percent()),
    FigureColumn("lossy", "", lambda row: row["lossy"]),
    FigureColumn("", "LOSSY: own, τ, ROUGE-L", _lossy),
    FigureColumn("drafted", "", lambda row: row["drafted"]),
    FigureColumn("one_ms", "V(1) ms", lambda row: row["one_ms"]),
    FigureColumn("verify_ms", "verify ms", lambda row: row["verify_ms"]),
    FigureColumn("step_ms", "partial step ms", lambda row: row["step_ms"]),
    FigureColumn("computed_speedup", "computed speedup", lambda row: row["computed_speedup"]),
    FigureColumn("measured_speedup", "measured", lambda row: row["measured_speedup"]),
)


def _answer(decoder: DecodeLoop, request: Request, tick: Tick) -> Answer:
    answer = decoder.generate([request])[0]
    decoder.close()
    tick(f"{answer.stats.prompt_tokens} tokens")
    return answer


def _pass_times(target: Target, request: Request, nodes: int) -> tuple[float, float]:
    """Processor time in ms of a pass over one token, and over one and a chain of `nodes`; the least of several."""
    prompt = target.prepare(request)
    room = len(prompt) + nodes + 64
    cache = target.new_cache(capacity=room)
    with torch.inference_mode():
        prefill(target, cache, prompt, target.encode(prompt), room)
        one, verify = (min(_timed(target, cache, count) for _ in range(REPEATS)) for count in (0, nodes))
    return 1e3 * one, 1e3 * verify


def _timed(target: Target, cache: KVCache, nodes: int) -> float:
    """Seconds of a pass after all that is in the cache; nothing of it stays there."""
    length = cache.lengths[0]
    start = time.process_time()
    target.extend(cache, [PassRow(0, Chunk(torch.tensor([5])), DraftTree.chain([5] * nodes))])
    took = time.process_time() - start
    cache.truncate(0, length)
    return took
