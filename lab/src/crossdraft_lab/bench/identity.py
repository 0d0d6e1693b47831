"""`crossdraft bench identity`: checks that every placement, and batches that join and leave, give the same text."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np

from crossdraft.assembly import assemble
from crossdraft.checkpoints.locate import REFERENCE
from crossdraft.checkpoints.mtp import has_mtp
from crossdraft.cli.cores import Cores
from crossdraft.engine.drafter import Drafter
from crossdraft.engine.fast.pinning import pinned
from crossdraft.engine.loop import DecodeLoop
from crossdraft.engine.prefix_cache import PrefixCache
from crossdraft.engine.runner.runner import DraftRunner
from crossdraft.engine.sampling import Sampling
from crossdraft.engine.target import Target
from crossdraft.errors import CrossdraftError
from crossdraft.load import tokenizer_of
from crossdraft.methods import METHODS, build_spec
from crossdraft.options import Options
from crossdraft_lab.bench.assembly import Models
from crossdraft_lab.bench.baselines import HFBaseline, blank_window
from crossdraft_lab.bench.experiments.record import Tick
from crossdraft_lab.bench.measure import Divergence, find_divergence, gaps_in_words
from crossdraft_lab.bench.specs import FORCED, is_blind, needs_events, spec_of
from crossdraft_lab.bench.structures import TimedStructure
from crossdraft_lab.bench.workload import Item

WAVE = 12  # requests in a queue at a time
GENERATE = "generate of Hugging Face"
PROCESS = "process"  # every other placement is inline, and names its hidden mode
ALL = "all"
MTP = ("mtp", "mtp:tree=chain")
# What `all` stands for: every example of every drafter of ours, DFlash by chains and trees, and models that are named
# by their folders (a text model, and the target itself with fewer frames).
NAMED = ("dflash", "dflash:tree=dynamic", "model:dir=text", f"model:dir={REFERENCE / 'target'},frames=2")
ALL_SPECS = (*(spec for method in METHODS.values() for spec in method.examples or ()), *NAMED)
SAMPLING = Sampling(temperature=0.8, top_p=0.95)
MADE = 16  # pairs that made targets are asked at most
# Answers to each of them: by three targets alone, greedy and sampled, and by three drafters of each in four ways.
MADE_GROUPS = 3 * 3
MADE_ANSWERS = 3 * 2 + MADE_GROUPS * 4


@dataclass(frozen=True, slots=True)
class RunConfig:
    """One way of running a drafter.

    Args:
        name: name of the configuration, for people.
        spec: spec of the drafter.
        placements: where the drafter runs and how many requests share a pass; taken in turn, wave by wave.
        adaptive: let the cost model trim and silence the drafter, as it does for users. If not, every round verifies
            as much as the drafter will write, whether that pays or not.
        cached_clips: for how many clips the prefix caches of target and drafter have room; 0 = there are none.
        sampled: draw the answers, each pair's with a seed of its own; if not, they are greedy.
    """

    name: str
    spec: str
    placements: tuple[tuple[str, int], ...]
    adaptive: bool = True
    cached_clips: float = 0.0
    sampled: bool = False


EVENT_CONFIGS = (  # every placement of the event drafter, its blind twin, and shared passes
    RunConfig("event", "event", ((PROCESS, 1),)),
    *(RunConfig(f"event-inline, hidden {hidden}", "event", ((hidden, 1),)) for hidden in ("before", "beside", "off")),
    RunConfig("blind", "blind", ((PROCESS, 1),)),
    *(RunConfig(f"batch of up to {size}", "event", ((PROCESS, size),)) for size in (1, 2, 3)),
    RunConfig("batch of up to 4", "event", (("before", 4),)),
)


FORCED_CONFIGS = (  # what a structure forces, without a drafter
    RunConfig("forced text", FORCED, (("off", 1),)),
    RunConfig("forced text, batches of 2 to 4", FORCED, (("off", 2), ("off", 3), ("off", 4))),
    RunConfig("forced text, sampled", FORCED, (("off", 1),), sampled=True),
)
STRUCTURED_DRAFTERS = ("ngram", "glance")  # if none is named
PROMPT_DRAFTERS = ("ngram", "union:memory,ngram")  # drafters of prompts without a clip, if none is named
CACHED_CONFIGS = tuple(  # with prefix caches: of everything, and so small that clips are dropped all the time
    RunConfig(f"{name}, room for {clips:g} clips", spec, placements, cached_clips=clips)
    for clips in (1e6, 1.5)
    for name, spec, placements in (
        ("event", "event", ((PROCESS, 1),)),
        ("event, batches of 1 to 4", "event", ((PROCESS, 2), ("before", 3), ("off", 4), ("beside", 1))),
        ("glance", "glance", ((PROCESS, 1), (PROCESS, 3))),
        ("eagle2", "eagle2", (("off", 1), ("off", 3))),
        ("memory", "memory", (("before", 2),)),
    )
)


def configs_of(spec: str, name: str | None = None) -> tuple[RunConfig, ...]:
    """Ways to run any drafter: as users do, in this process, in batches of every size, and sampled.

    `name` stands for the spec where people read it.
    """
    name = name or spec.replace(str(REFERENCE), "…")
    return (
        RunConfig(f"{name}, process", spec, ((PROCESS, 1),)),
        RunConfig(f"{name}, inline", spec, (("beside", 1),), adaptive=False),
        RunConfig(f"{name}, batches of 2 to 4", spec, ((PROCESS, 2), ("before", 3), ("off", 4)), adaptive=False),
        RunConfig(f"{name}, sampled, 1 and 4", spec, (("beside", 1), ("off", 4)), adaptive=False, sampled=True),
    )


def choose_configs(
    drafters: Sequence[str],
    target: str = "reference",
    *,
    cached: bool = False,
    in_words: bool = False,
    structured: bool = False,
) -> list[tuple[RunConfig, ...]]:
    """Groups of ways that are open together: one for each drafter named, or the event drafter's if none is.

    Args:
        drafters: specs, or `all`.
        target: its source; `all` holds the MTP layers that its checkpoint brings.
        cached: those with prefix caches.
        in_words: prompts without clips are asked: `all` leaves out what reads events; by default `PROMPT_DRAFTERS`.
        structured: answers have structures: what these force is checked, too; by default `STRUCTURED_DRAFTERS`.

    Raises:
        CrossdraftError: a spec that cannot be read, or that stands there twice; drafters are named beside `cached`.
    """
    if cached and in_words:
        raise CrossdraftError("Prompts share no clips; leave out --prompts or --questions.")
    if cached and drafters:
        raise CrossdraftError("With prefix caches certain drafters are checked; leave out --drafters or --questions.")
    if cached:
        return [CACHED_CONFIGS]
    if structured or in_words:
        drafters = drafters or (PROMPT_DRAFTERS if in_words else STRUCTURED_DRAFTERS)
    if not drafters:
        return [EVENT_CONFIGS]
    every = (*ALL_SPECS, *(MTP if ALL in drafters and has_mtp(target) else ()))
    if target != "reference":  # for which the head was trained
        every = tuple(spec for spec in every if not spec.startswith("dflash"))
    if in_words:
        every = tuple(spec for spec in every if not needs_events(spec))
    specs = [spec for name in drafters for spec in (every if name == ALL else (name,))]
    for spec in specs:
        spec_of(spec)
        if specs.count(spec) > 1:
            raise CrossdraftError(f"The drafter {spec} is named twice; name each once.")
    return [*([FORCED_CONFIGS] if structured else []), *(configs_of(spec) for spec in specs)]


@dataclass(frozen=True, slots=True)
class ReferenceAnswer:
    """A pair, and what the target alone answers."""

    item: Item
    tokens: tuple[int, ...]


@dataclass
class IdentityCheck:
    """One way of running, and how many of its answers were the target's own.

    `drafted`, `accepted` and `known` (prompts of which a prefix cache knew something) tell whether there was anything
    that could have gone wrong.
    """

    name: str
    drafter: str | None = None
    total: int = 0
    drafted: int = 0
    accepted: int = 0
    known: int = 0
    divergences: list[Divergence] = field(default_factory=list)
    notes: set[str] = field(default_factory=set)

    @property
    def equal(self) -> int:
        """Answers that were identical."""
        return self.total - len(self.divergences)

    @property
    def failed(self) -> bool:
        """True if an answer differs, or a drafter failed."""
        return bool(self.divergences or self.notes)

    @property
    def remark(self) -> str:
        """Remark for people: how near the logits were where answers diverged, and the engine's notes."""
        known = [f"{self.known} prompts were known."] if self.known else []
        return " ".join([*known, *gaps_in_words(self.divergences), *sorted(self.notes)])

    def to_json(self) -> dict[str, object]:
        """Plain values."""
        return {
            "name": self.name,
            "drafter": self.drafter,
            "lossless": not self.divergences,
            "identical": {"equal": self.equal, "total": self.total},
            "drafted": self.drafted,
            "accepted": self.accepted,
            "known": self.known,
            "divergences": self.divergences,
            "notes": sorted(self.notes),
        }


def run_identity(
    target: Target,
    models: Models,
    cores: Cores | None,
    groups: Iterable[Sequence[RunConfig]],
    items: Iterable[Item],
    tick: Tick = lambda _: None,
) -> list[IdentityCheck]:
    """Answer every pair in every way and compare; the ways of a group are open together, the groups one by one.

    The target's own answers are computed once each way, greedy and sampled. All pairs are held: about 3 MB each.
    """
    greedy, groups = list(reference_answers(target, items, tick)), list(groups)
    bytes_of_clip = cached_bytes(target, greedy[0].item) if greedy else 0
    drawn: list[ReferenceAnswer] = []
    if any(config.sampled for configs in groups for config in configs):
        drawn = list(reference_answers(target, [_sampled(pair.item) for pair in greedy], tick))
    blank = blank_window(models.blind)
    checks: list[IdentityCheck] = []
    if any(pair.item.request.structure is not None for pair in greedy):
        checks.append(check_generate(models, greedy, tick))
    for configs in groups:
        tick(f"opening {configs[0].spec or configs[0].name}")  # seconds, where it runs in a process of its own
        with open_configs(target, models, cores, configs, bytes_of_clip) as opened:
            for config, decoders in zip(configs, opened, strict=True):
                checks.append(IdentityCheck(config.name, config.spec))
                known = drawn if config.sampled else greedy
                blind = config.spec != FORCED and is_blind(spec_of(config.spec))
                pairs = with_events(known, blank) if blind else known
                check_config(target, checks[-1], decoders, pairs, tick)
    return checks


def check_generate(models: Models, known: Sequence[ReferenceAnswer], tick: Tick) -> IdentityCheck:
    """Compare the target's own answers with those of Hugging Face's `generate`, which has the library's own masks."""
    check = IdentityCheck(GENERATE)
    plain = models.load_target(packed=False)
    baseline = HFBaseline(plain, tokenizer=tokenizer_of(models.target))
    for pair in known:
        divergence = find_divergence(plain, pair.item, pair.tokens, baseline.answer(pair.item).tokens)
        check.total += 1
        check.divergences += [] if divergence is None else [divergence]
        tick(check.name)
    return check


def _sampled(item: Item) -> Item:
    """The pair, with an answer that is drawn by the numbers of its seed."""
    return replace(item, request=replace(item.request, sampling=replace(SAMPLING, seed=item.seed)))


def run_made_pairs(
    folder: Path, models: Models, cores: Cores | None, items: Sequence[Item], tick: Tick = lambda _: None
) -> list[IdentityCheck]:
    """Check drafters that come with a checkpoint, on pairs that are made below `folder`; see `made_pairs`."""
    from crossdraft_lab.bench.made_pairs import made_pairs

    checks: list[IdentityCheck] = []
    for pair in made_pairs(folder, models, items):
        groups = [configs_of(spec, name) for name, spec in pair.specs.items()]
        checks += run_identity(pair.target, pair.models, cores, groups, pair.items, tick)
    return checks


@contextmanager
def open_configs(
    target: Target, models: Models, cores: Cores | None, configs: Sequence[RunConfig], bytes_of_clip: int = 0
) -> Iterator[list[tuple[DecodeLoop, ...]]]:
    """Open a decoder for each placement of each way. Ways of one drafter share its process and its inline runner.

    `bytes_of_clip` is what the target's prefix cache holds of a clip; a drafter's has as much room.
    """
    with ExitStack() as stack:
        budgets = {clips: round(clips * bytes_of_clip) for clips in {config.cached_clips for config in configs}}

        @cache
        def runner(spec: str, cache_bytes: int) -> DraftRunner[Any]:
            """Drafter's runner as users have it."""
            with pinned(None if cores is None else cores.pair):  # this process may be pinned to the target's cores
                options = Options(
                    placement="process",
                    quantize=models.quantize,
                    target_cores=None if cores is None else cores.target,
                    draft_cores=None if cores is None else cores.draft or None,
                    cache_bytes=cache_bytes,
                )
            made = assemble(models.spec(spec), models.context(target), target, options)
            stack.callback(made.close)
            return made

        @cache
        def drafter(spec: str, cache_bytes: int) -> Drafter[Any]:
            context = replace(models.context(target), host=target, cache_bytes=cache_bytes)
            return build_spec(models.spec(spec), context)

        def runner_at(config: RunConfig, where: str) -> DraftRunner[Any]:
            cache_bytes = budgets[config.cached_clips]
            if config.spec == FORCED:
                return DraftRunner(None)
            if where == PROCESS:
                return runner(config.spec, cache_bytes)
            made = DraftRunner(drafter(config.spec, cache_bytes), where, target.device)
            stack.callback(made.close)
            return made

        def decoders(config: RunConfig) -> tuple[DecodeLoop, ...]:
            prefixes = PrefixCache(budgets[config.cached_clips])
            return tuple(
                DecodeLoop(
                    target, runner_at(config, where), max_batch=size, adaptive=config.adaptive, prefixes=prefixes
                )
                for where, size in config.placements
            )

        yield [decoders(config) for config in configs]


def reference_answers(target: Target, items: Iterable[Item], tick: Tick = lambda _: None) -> Iterator[ReferenceAnswer]:
    """Generate the target's answers, which the others must give; nothing is drafted of what a structure forces."""
    alone = DecodeLoop(target)
    for item in items:
        structure = item.request.structure
        plain = None if structure is None else TimedStructure(structure, forced_text=False)
        yield ReferenceAnswer(item, alone.generate([replace(item.request, structure=plain)])[0].tokens)
        tick("target")


def cached_bytes(target: Target, item: Item) -> int:
    """Measure the bytes that a prefix cache keeps of a pair."""
    prefixes = PrefixCache(sys.maxsize)
    DecodeLoop(target, prefixes=prefixes).generate([replace(item.request, namespace="")])
    return prefixes.nbytes


def about_shared_clips(items: Iterable[Item], seed: int = 0) -> list[Item]:
    """The pairs in random order, from two namespaces; of every third the clip differs in one pixel.

    Clips are uint8 frames [F, H, W, 3], as a workload in memory hands them over.
    """
    shared: list[Item] = []
    for at, item in enumerate(items):
        video: Any = item.request.video
        if at % 3 == 2:
            video = video.copy()
            video[-1, -1, -1, -1] ^= 1
        namespace = ("one", "other")[at // 3 % 2]
        shared.append(replace(item, request=replace(item.request, video=video, namespace=namespace)))
    order = np.random.default_rng(seed).permutation(len(shared))
    return [shared[at] for at in order]


def with_events(known: Iterable[ReferenceAnswer], events: object) -> list[ReferenceAnswer]:
    """Replace the events of pairs; only a drafter reads events."""
    return [replace(pair, item=replace(pair.item, request=replace(pair.item.request, events=events))) for pair in known]


def check_config(
    target: Target,
    check: IdentityCheck,
    decoders: Sequence[DecodeLoop],
    known: Sequence[ReferenceAnswer],
    tick: Tick = lambda _: None,
) -> None:
    """Answer every pair, a wave with each decoder in turn, and compare; the result is left in the check."""
    rng = np.random.default_rng(0)
    size = min(WAVE, ceil(len(known) / len(decoders)))  # smaller for few pairs: every decoder has its turn
    waves = [known[start : start + size] for start in range(0, len(known), size)]
    for turn, wave in enumerate(waves):
        _run_wave(target, check, decoders[turn % len(decoders)], wave, rng)
        for _ in wave:
            tick(check.name)


def _run_wave(
    target: Target, check: IdentityCheck, decoder: DecodeLoop, wave: Sequence[ReferenceAnswer], rng: np.random.Generator
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
        check.known += answer.stats.cached_tokens > 0
        check.notes.update(answer.other_notes)
        divergence = find_divergence(target, pair.item, pair.tokens[:limit], answer.tokens)
        if divergence is not None:
            check.divergences.append(divergence)
