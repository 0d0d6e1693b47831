"""Compare an answer with the target's own: are the tokens identical, and what is the speedup?"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice

from crossdraft.alone import baselines
from crossdraft.api import Engine
from crossdraft.cli.reporting import saying
from crossdraft.comparisons import first_difference, orders, top2_gap
from crossdraft.drawing.figures import Baseline, counted
from crossdraft.engine.request import Answer, Request
from crossdraft.engine.target import Target

REPEATS = 3


@dataclass(frozen=True, slots=True)
class Difference:
    """The first position at which two greedy answers differ.

    Args:
        position: index of the first token that differs.
        alone, drafted: text of the token on either side; empty if an answer had ended.
        gap: the target's top logit minus its second one there. Rounding may flip a gap near 0; a wide one is a fault.
    """

    position: int
    alone: str
    drafted: str
    gap: float


@dataclass(frozen=True, slots=True)
class LearnedRuns:
    """Runs of a drafter that had learned this answer from an earlier run.

    Args:
        speedup, drafted_ms: as in `AnswerComparison`, for the run of median time.
        tau: mean acceptance length of this run.
    """

    speedup: float
    drafted_ms: float
    tau: float

    def sentence(self, repeats: int) -> str:
        """Figures of the runs in a sentence, for people."""
        often = "one run" if repeats == 1 else f"median of {repeats} runs"
        return (
            f"What it has learned: asked the same again, {self.speedup:.2f}x ({self.drafted_ms:.0f} ms, τ "
            f"{self.tau:.2f}; {often} that knew this answer already)."
        )


@dataclass(frozen=True, slots=True)
class AnswerComparison:
    """Runs with the drafter and of the target alone, interleaved and without a display.

    Args:
        identical: true if greedy tokens are equal in every run; `None` when sampling, where only distributions are.
        difference: first difference, if there is one.
        speedup: time per token of the target alone over that with the drafter, both of the run of median time; for a
            drafter that learns, of its first answer, before it had learned any other.
        alone_ms, drafted_ms: time of an answer in these runs.
        repeats: number of runs of each.
        cores: CPU cores of the target alone: its own share or all of the pair's, whichever was faster; `None` = any.
        notes: the engine's notes, such as a lost drafter.
        compared_cores: numbers of cores on which the target alone was run; `cores` is the faster choice.
        learned: runs after the first answer of a drafter that learns; `None` if it does not learn.
        drafted, alone: the runs of `speedup` themselves, for pictures and figures.
    """

    identical: bool | None
    difference: Difference | None
    speedup: float
    alone_ms: float
    drafted_ms: float
    repeats: int
    cores: tuple[int, ...] | None = None
    notes: tuple[str, ...] = ()
    lossy: str | None = None  # the rule that verified the drafted answers, if it may change them
    compared_cores: tuple[int, ...] = ()
    learned: "LearnedRuns | None" = None
    drafted: Answer | None = field(default=None, repr=False)
    alone: Answer | None = field(default=None, repr=False)

    @property
    def baseline(self) -> Baseline | None:
        """The target alone, as a baseline for a picture."""
        count = None if self.cores is None else len(self.cores)
        return None if self.alone is None else Baseline(self.alone, self.repeats, count)

    def to_json(self) -> dict[str, object]:
        """Plain values."""
        found = asdict(replace(self, drafted=None, alone=None))
        del found["drafted"], found["alone"]
        found |= {name: round(found[name], 2) for name in ("alone_ms", "drafted_ms")}
        if self.learned is not None:
            found["learned"] |= {"drafted_ms": round(self.learned.drafted_ms, 2)}
        return found

    def sentence(self) -> str:
        """The comparison in words, for people."""
        first = " ".join([f"{self._sentence()}.", *self.notes])
        return first if self.learned is None else f"{first}\n{self.learned.sentence(self.repeats)}"

    def _where(self) -> str:
        if self.cores is None:
            return ""
        if len(self.compared_cores) > 1:
            compared = " and ".join(map(str, self.compared_cores))
            return f" on {len(self.cores)}, the faster of {compared} cores"
        return f" on {counted(len(self.cores), 'core', 'cores')}"

    def _sentence(self) -> str:
        alone, drafted = self.alone_ms, self.drafted_ms
        unit, digits = "ms", 0
        if self.identical is None and self.alone is not None and self.drafted is not None:
            # Sampled answers differ in length.
            alone, drafted = 1e3 * _per_token(self.alone), 1e3 * _per_token(self.drafted)
            unit, digits = "ms a token", 1
        often = "" if self.repeats == 1 else f"; median of {self.repeats} runs each"
        if self.learned is not None:
            often = f"; its first answer, and the median of {counted(self.repeats, 'run', 'runs')} alone"
        speed = (
            f"{self.speedup:.2f}x as fast as the target alone ({alone:.{digits}f} {unit} alone{self._where()}, "
            f"{drafted:.{digits}f} {unit} with the drafter{often})"
        )
        if self.identical is None:
            if self.lossy is not None:
                return f"{speed}; sampled by the lossy rule '{self.lossy}', so not even the distribution is the same"
            return f"{speed}; sampled, so the tokens may differ while their distribution is the same"
        if self.lossy is not None:
            speed += f"; verified by the lossy rule '{self.lossy}'"
        if self.difference is None:
            return f"{speed}; the tokens are identical"
        at = self.difference
        return (
            f"{speed}; the tokens DIFFER from token {at.position} on: {at.alone!r} alone, {at.drafted!r} drafted; "
            f"the target's top two logits differ by {at.gap:.2g} there"
        )


def compare(engine: Engine, request: Request, answer: Answer, repeats: int = REPEATS) -> AnswerComparison:
    """Answer again with and without the drafter, in turns; `answer` was given before and is compared as well.

    The target alone is exact, whatever rule verifies the drafted answers.
    """
    shares = baselines(engine)
    runs: dict[str, list[Answer]] = {name: [] for name in ("drafted", *shares)}
    with saying("comparing") as say:
        for number, turn in enumerate(islice(orders(list(runs)), repeats)):
            for name in turn:
                say(f"{_run_name(name, shares)}, run {number + 1} of {repeats}")
                alone = name in shares
                runs[name].append(engine.alone(request, shares[name]) if alone else engine.generate(request))
    drafted = runs.pop("drafted")
    fastest = min(runs, key=lambda name: _per_token(_median_run(runs[name])))
    counts = tuple(len(cores) for cores in shares.values() if cores is not None)
    return replace(
        summarise(engine, request, runs[fastest], drafted, answer, shares[fastest]),
        compared_cores=tuple(sorted(counts)),
    )


def _kind(note: str) -> str:
    """A note without its figures: runs say the same with other ones."""
    return "".join(letter for letter in note if not letter.isdigit())


def _run_name(name: str, shares: Mapping[str, tuple[int, ...] | None]) -> str:
    """Name of a run, for people."""
    if name not in shares:
        return "with the drafter"
    cores = shares[name]
    return "the target alone" + ("" if cores is None else f" on {counted(len(cores), 'core', 'cores')}")


def summarise(
    engine: Engine,
    request: Request,
    alone: Sequence[Answer],
    drafted: Sequence[Answer],
    displayed: Answer,
    cores: tuple[int, ...] | None = None,
) -> AnswerComparison:
    """Summarise all runs; the displayed answer counts only with its tokens, unless the drafter learns.

    If it learns, later runs knew the displayed answer's text: that answer's time counts then, theirs is in `learned`.
    """
    greedy = engine.target.defaults.resolve(request).sampling.greedy
    pair = first_unequal(alone, (displayed, *drafted)) if greedy else None
    shown = {_kind(note) for note in displayed.notes}
    found = {_kind(note): note for run in drafted for note in run.notes}
    notes = [note for kind, note in found.items() if kind not in shown]  # new ones, each kind once
    if greedy and len({run.tokens for run in alone}) > 1:
        notes.append("The target alone did not repeat its own tokens either.")
    own, other, learned = _median_run(alone), _median_run(drafted), None
    if engine.drafter is not None and engine.drafter.needs.learns:
        speedup = round(_per_token(own) / _per_token(other), 3)
        learned, other = LearnedRuns(speedup, 1e3 * other.stats.total_s, round(other.stats.tau, 3)), displayed
    return AnswerComparison(
        identical=pair is None if greedy else None,
        difference=None if pair is None else find_difference(engine.target, request, *pair),
        speedup=round(_per_token(own) / _per_token(other), 3),
        alone_ms=1e3 * own.stats.total_s,
        drafted_ms=1e3 * other.stats.total_s,
        repeats=len(drafted),
        cores=cores,
        notes=tuple(notes),
        lossy=dict(displayed.stats.lossy).get("rule"),  # both read the prompt the same way
        learned=learned,
        drafted=other,
        alone=own,
    )


def first_unequal(alone: Sequence[Answer], drafted: Sequence[Answer]) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """First pair of runs, one alone and one drafted, whose tokens differ; `None` if all are equal."""
    pairs = ((own.tokens, other.tokens) for own in alone for other in drafted)
    return next((pair for pair in pairs if pair[0] != pair[1]), None)


def find_difference(target: Target, request: Request, own: Sequence[int], other: Sequence[int]) -> Difference:
    """The first difference of two answers, with the gap of the target's top two logits there."""
    at = first_difference(own, other)
    gap = top2_gap(target, request, own[:at])
    return Difference(at, target.decode(own[at : at + 1]), target.decode(other[at : at + 1]), gap)


def _per_token(answer: Answer) -> float:
    """Seconds per token, as sampled answers differ in length."""
    return answer.stats.total_s / answer.stats.new_tokens


def _median_run(answers: Sequence[Answer]) -> Answer:
    """Run with the median time per token; for an even number of runs the faster one of the two in the middle."""
    return sorted(answers, key=_per_token)[(len(answers) - 1) // 2]
