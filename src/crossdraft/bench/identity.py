"""`crossdraft bench identity`: is it the same text? Every placement, and batches that join and leave; no timing."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import ceil

import numpy as np

from crossdraft.bench.assembly import Models
from crossdraft.bench.baselines import blank_window
from crossdraft.bench.cores import Cores
from crossdraft.bench.measure import Divergence, find_divergence, gaps_in_words
from crossdraft.bench.run_configs import RunConfig, open_configs
from crossdraft.bench.specs import is_blind, spec_of
from crossdraft.bench.workload import Item
from crossdraft.engine.decode import Decoder
from crossdraft.engine.target import Target

WAVE = 12  # requests in a queue at a time
Tick = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ReferenceAnswer:
    """A pair, and what the target alone answers."""

    item: Item
    tokens: tuple[int, ...]


@dataclass
class IdentityCheck:
    """One way of running, and how many of its answers were the target's own.

    `drafted` and `accepted` tell whether there was anything that could have gone wrong.
    """

    name: str
    drafter: str | None = None
    total: int = 0
    drafted: int = 0
    accepted: int = 0
    divergences: list[Divergence] = field(default_factory=list)
    notes: set[str] = field(default_factory=set)

    @property
    def equal(self) -> int:
        """Answers that were identical."""
        return self.total - len(self.divergences)

    @property
    def remark(self) -> str:
        """For people: how close the calls were where it parted, and what the engine wanted to be known."""
        return " ".join([*gaps_in_words(self.divergences), *sorted(self.notes)])

    def to_json(self) -> dict[str, object]:
        """Plain values."""
        return {
            "name": self.name,
            "drafter": self.drafter,
            "lossless": not self.divergences,
            "identical": {"equal": self.equal, "total": self.total},
            "drafted": self.drafted,
            "accepted": self.accepted,
            "divergences": [divergence.to_json() for divergence in self.divergences],
            "notes": sorted(self.notes),
        }


def run_identity(
    target: Target,
    models: Models,
    cores: Cores | None,
    groups: Iterable[Sequence[RunConfig]],
    items: Iterable[Item],
    tick: Tick | None = None,
) -> list[IdentityCheck]:
    """Answer every pair in every way and compare; the ways of a group are open together, the groups one by one.

    The target's own answers are computed once. All pairs are held meanwhile: about 3 MB each.
    """
    known = list(reference_answers(target, items, tick))
    blank = blank_window(models.blind)
    checks: list[IdentityCheck] = []
    for configs in groups:
        with open_configs(target, models, cores, configs) as opened:
            for config, decoders in zip(configs, opened, strict=True):
                checks.append(IdentityCheck(config.name, config.spec))
                pairs = with_events(known, blank) if is_blind(spec_of(config.spec)) else known
                check_config(target, checks[-1], decoders, pairs, tick)
    return checks


def reference_answers(target: Target, items: Iterable[Item], tick: Tick | None = None) -> Iterator[ReferenceAnswer]:
    """What the others must say."""
    alone = Decoder(target)
    for item in items:
        yield ReferenceAnswer(item, alone.generate([item.request])[0].tokens)
        if tick is not None:
            tick("target")


def with_events(known: Iterable[ReferenceAnswer], events: object) -> list[ReferenceAnswer]:
    """The same pairs with other events, which only a drafter looks at."""
    return [replace(pair, item=replace(pair.item, request=replace(pair.item.request, events=events))) for pair in known]


def check_config(
    target: Target,
    check: IdentityCheck,
    decoders: Sequence[Decoder],
    known: Sequence[ReferenceAnswer],
    tick: Tick | None = None,
) -> None:
    """Answer every pair, a wave with each decoder in turn, and compare; the result is left in the check."""
    rng = np.random.default_rng(0)
    size = min(WAVE, ceil(len(known) / len(decoders)))  # few pairs, yet every decoder has its turn
    waves = [known[start : start + size] for start in range(0, len(known), size)]
    for turn, wave in enumerate(waves):
        _run_wave(target, check, decoders[turn % len(decoders)], wave, rng)
        if tick is not None:
            for _ in wave:
                tick(check.name)


def _run_wave(
    target: Target, check: IdentityCheck, decoder: Decoder, wave: Sequence[ReferenceAnswer], rng: np.random.Generator
) -> None:
    """Requests join after a random number of rounds and are cut at random lengths, so that rows leave at any time."""
    request_ids, limits = [], []
    for pair in wave:
        request = pair.item.request
        limit = request.token_limit
        if decoder.cache.max_rows > 1:
            limit = min(limit, int(rng.integers(1, len(pair.tokens) + 2)))
        request_ids.append(decoder.submit(replace(request, max_new_tokens=limit)))
        limits.append(limit)
        for _ in range(int(rng.integers(4))):
            decoder.step()
    while decoder.busy:
        decoder.step()
    for pair, request_id, limit in zip(wave, request_ids, limits, strict=True):
        answer = decoder.answer(request_id)
        check.total += 1
        check.drafted += answer.stats.drafted
        check.accepted += answer.stats.accepted
        check.notes.update(answer.notes)
        divergence = find_divergence(target, pair.item, pair.tokens[:limit], answer.tokens)
        if divergence is not None:
            check.divergences.append(divergence)
