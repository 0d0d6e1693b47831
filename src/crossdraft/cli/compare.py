"""The same question to the target alone: is it the same text, and how much faster was it?"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from statistics import median

from crossdraft.api import Engine
from crossdraft.bench.divergence import first_difference, top2_gap
from crossdraft.bench.order import orders
from crossdraft.engine.cost import CostModel
from crossdraft.engine.request import Answer, Request
from crossdraft.engine.target import Target

REPEATS = 3


@dataclass(frozen=True, slots=True)
class Difference:
    """Where two greedy answers part.

    Args:
        position: index of the first token that differs.
        alone, drafted: the text of the token on either side; empty where an answer had ended.
        gap: the target's top logit minus its second there. Rounding may flip a gap near zero, a wide one is a fault.
    """

    position: int
    alone: str
    drafted: str
    gap: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """The drafted answer beside the target's own, both measured without anybody watching, in turns.

    Args:
        identical: greedy: the tokens are the same in every run. None when sampling: there only the distribution is.
        difference: where they part, if they do.
        speedup: median time a token of the target alone, over that with the drafter.
        alone_ms, drafted_ms: median time of an answer.
        repeats: runs of each.
        cores: CPU cores of the target, the same in both; None = all.
        notes: what the engine wanted to be known, such as a lost drafter.
    """

    identical: bool | None
    difference: Difference | None
    speedup: float
    alone_ms: float
    drafted_ms: float
    repeats: int
    cores: tuple[int, ...] | None = None
    notes: tuple[str, ...] = ()
    lossy: str | None = None  # the rule that the drafted answers were judged by, if it changes what is said

    def to_json(self) -> dict[str, object]:
        """Plain values."""
        return asdict(self)

    def sentence(self) -> str:
        """For people."""
        return " ".join([f"{self._verdict()}.", *self.notes])

    def _verdict(self) -> str:
        count = len(self.cores or ())
        alike = (
            f", the target and what lives beside it on {count} {'core' if count == 1 else 'cores'} in both"
        )
        cores = "" if self.cores is None else alike
        times = f"{self.alone_ms:.0f} ms alone, {self.drafted_ms:.0f} ms with the drafter{cores}"
        speed = (
            f"{self.speedup:.2f}x as fast as the target alone ({times}; median of {self.repeats} runs each)"
        )
        if self.identical is None:
            if self.lossy is not None:
                return f"{speed}; sampled by the lossy rule '{self.lossy}', so not even the distribution is the same"
            return f"{speed}; sampled, so the tokens may differ while their distribution is the same"
        if self.lossy is not None:
            speed += f"; judged by the lossy rule '{self.lossy}'"
        if self.difference is None:
            return f"{speed}; the tokens are identical"
        at = self.difference
        return (
            f"{speed}; the tokens DIFFER from token {at.position} on: {at.alone!r} alone, {at.drafted!r} drafted; "
            f"the target's top two logits are {at.gap:.2g} apart there"
        )


def compare(engine: Engine, request: Request, answer: Answer, repeats: int = REPEATS) -> Comparison:
    """Answer again with and without the drafter, in turns; `answer` was given before and is compared as well.

    The target alone is judged exactly, whatever rule the drafted answers are judged by.
    """
    exact = replace(engine.options, rule=None, draft_cores=None)  # which this process, pinned, may not use
    engines = {"drafted": engine, "alone": Engine(engine.target, None, exact, CostModel())}
    runs: dict[str, list[Answer]] = {name: [] for name in engines}
    for turn in islice(orders(list(engines)), repeats):
        for name in turn:
            runs[name].append(engines[name].generate(request))
    return summarise(engine, request, runs["alone"], runs["drafted"], answer)


def summarise(
    engine: Engine, request: Request, alone: Sequence[Answer], drafted: Sequence[Answer], watched: Answer
) -> Comparison:
    """The figures of all runs; the answer that somebody watched counts for its tokens, not for its time."""
    greedy = request.sampling.greedy
    pair = first_unequal(alone, (watched, *drafted)) if greedy else None
    notes = [note for run in drafted for note in run.notes]
    if greedy and len({run.tokens for run in alone}) > 1:
        notes.append("The target alone did not repeat its own tokens either.")
    if engine.drafter is not None and engine.drafter.needs.remembers:
        notes.append("The drafter remembers: each run knew the answers of the runs before.")
    return Comparison(
        identical=pair is None if greedy else None,
        difference=None if pair is None else find_difference(engine.target, request, *pair),
        speedup=round(_typical(alone) / _typical(drafted), 3),
        alone_ms=round(1e3 * median(run.stats.total_s for run in alone), 2),
        drafted_ms=round(1e3 * median(run.stats.total_s for run in drafted), 2),
        repeats=len(drafted),
        cores=engine.options.target_cores,
        notes=tuple(dict.fromkeys(notes)),
        lossy=None if watched.stats.lossless else watched.stats.rule,
    )


def first_unequal(
    alone: Sequence[Answer], drafted: Sequence[Answer]
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """The tokens of the first run alone and run with a drafter that are not the same, every one with every other."""
    pairs = ((own.tokens, other.tokens) for own in alone for other in drafted)
    return next((pair for pair in pairs if pair[0] != pair[1]), None)


def find_difference(target: Target, request: Request, own: Sequence[int], other: Sequence[int]) -> Difference:
    """The first difference of two answers, and how close the target's call was there."""
    at = first_difference(own, other)
    gap = top2_gap(target, request, own[:at])
    return Difference(at, target.decode(own[at : at + 1]), target.decode(other[at : at + 1]), gap)


def _typical(answers: Sequence[Answer]) -> float:
    """Seconds a token, median of the runs: sampled answers differ in length."""
    return median(answer.stats.total_s / answer.stats.new_tokens for answer in answers)
