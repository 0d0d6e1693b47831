"""`crossdraft bench identity`: is it the same text? Every placement, and batches that join and leave; no timing."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice

import numpy as np

from crossdraft.bench.blank import blank_window
from crossdraft.bench.contestants import Models
from crossdraft.bench.cores import Cores
from crossdraft.bench.divergence import Divergence, find_divergence
from crossdraft.bench.workload import Item
from crossdraft.engine.cost import CostModel
from crossdraft.engine.decode import Decoder
from crossdraft.engine.placement import Inline, Placement
from crossdraft.engine.process import Process
from crossdraft.engine.target import Target

WAVE = 12  # pairs in memory at a time
BATCHES = (1, 2, 3, 4)
MOST_GAPS = 8  # in a line for people; the JSON has them all
Tick = Callable[[str], None]


@dataclass
class Check:
    """One way of running, and how many of its answers were the target's own."""

    name: str
    decoder: Decoder
    blank: object = None
    blind: bool = False
    total: int = 0
    divergences: list[Divergence] = field(default_factory=list)
    notes: set[str] = field(default_factory=set)

    @property
    def equal(self) -> int:
        """Answers that were identical."""
        return self.total - len(self.divergences)

    @property
    def remark(self) -> str:
        """For people: how close the calls were where it parted, and what the engine wanted to be known."""
        gaps = ", ".join(f"{divergence.gap:.2g}" for divergence in self.divergences[:MOST_GAPS])
        told = [f"top-2 logit gaps: {gaps}"] if gaps else []
        return " ".join([*told, *sorted(self.notes)])

    def to_json(self) -> dict[str, object]:
        """Plain values."""
        return {
            "name": self.name,
            "lossless": not self.divergences,
            "identical": {"equal": self.equal, "total": self.total},
            "divergences": [divergence.to_json() for divergence in self.divergences],
            "notes": sorted(self.notes),
        }


@contextmanager
def open_checks(target: Target, models: Models, cores: Cores | None) -> Iterator[list[Check]]:
    """Every placement of the event drafter, the blind twin, and shared passes of up to four requests."""
    draft_cores = None if cores is None else cores.draft
    with ExitStack() as stack:
        process = _opened(stack, Process(models.drafter(models.event, target), draft_cores))
        twin = _opened(stack, Process(models.drafter(models.blind, target), draft_cores))
        drafter = models.drafter(models.event, target)()
        checks = [Check("event", Decoder(target, process))]
        for hidden in ("before", "beside", "off"):
            inline = _opened(stack, Inline(drafter, CostModel(), hidden))
            checks.append(Check(f"event-inline, hidden {hidden}", Decoder(target, inline)))
        checks.append(Check("blind", Decoder(target, twin), blank_window(models.blind), blind=True))
        inline = _opened(stack, Inline(drafter, CostModel(), "before"))
        for size in BATCHES:
            placement = inline if size == BATCHES[-1] else process
            checks.append(Check(f"batch of up to {size}", Decoder(target, placement, max_batch=size)))
        yield checks


def check_identity(
    target: Target, checks: Sequence[Check], items: Iterable[Item], tick: Tick | None = None
) -> None:
    """Answer every pair with every check and compare with the target alone; results are left in the checks."""
    alone = Decoder(target)
    rng = np.random.default_rng(0)
    stream = iter(items)
    while wave := list(islice(stream, WAVE)):
        expected = [answer.tokens for answer in alone.generate(item.request for item in wave)]
        for check in checks:
            _run_wave(target, check, wave, expected, rng)
            if tick is not None:
                for _ in wave:
                    tick(check.name)


def _run_wave(
    target: Target,
    check: Check,
    wave: Sequence[Item],
    expected: Sequence[Sequence[int]],
    rng: np.random.Generator,
) -> None:
    """Requests join after a random number of rounds and are cut at random lengths, so that rows leave at any time."""
    decoder, tickets, limits = check.decoder, [], []
    for item, tokens in zip(wave, expected, strict=True):
        limit = item.request.max_new_tokens
        if decoder.cache.max_rows > 1:
            limit = min(limit, int(rng.integers(1, len(tokens) + 2)))
        request = replace(item.request, max_new_tokens=limit)
        tickets.append(decoder.submit(replace(request, events=check.blank) if check.blind else request))
        limits.append(limit)
        for _ in range(int(rng.integers(4))):
            decoder.step()
    while decoder.busy:
        decoder.step()
    for item, ticket, tokens, limit in zip(wave, tickets, expected, limits, strict=True):
        answer = decoder.answer(ticket)
        check.total += 1
        check.notes.update(answer.notes)
        divergence = find_divergence(target, item, tokens[:limit], answer.tokens)
        if divergence is not None:
            check.divergences.append(divergence)


def _opened(stack: ExitStack, placement: Placement) -> Placement:
    stack.callback(placement.close)
    return placement
