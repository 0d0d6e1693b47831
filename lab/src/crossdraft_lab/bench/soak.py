"""`crossdraft bench soak`: thousands of mixed requests from many threads, some of them cancelled, some of them wrong.

Every answer is compared with the one that the target alone gave beforehand, even when other requests share its passes,
are cancelled, or the drafter is killed; memory is sampled all the time; and no resource may be left over in the end.
"""

import itertools
import logging
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from crossdraft.api import Engine
from crossdraft.checks import whole
from crossdraft.engine.request import Answer, Finish, Request
from crossdraft.engine.runner.process import ProcessDrafter
from crossdraft.engine.sampling import Sampling
from crossdraft.errors import CrossdraftError
from crossdraft.options import Options
from crossdraft_lab.bench.environment import environment
from crossdraft_lab.bench.experiments.record import Tick
from crossdraft_lab.bench.resources import (
    MOST_GROWTH,
    PARTS,
    SETTLED,
    Leftovers,
    MemorySample,
    descendants,
    flatness,
    leftovers,
    own_temporary_folder,
    part_medians,
    sample,
)
from crossdraft_lab.bench.workload import Workload, items

SHOWN = 20  # failures that the report lists
INTERVAL_S = 0.5
LENGTHS = (2, 4, 8, 16, 24)
CACHE_BYTES = 8 << 20  # so small that it fills within the first fifth: later growth is then a leak
WAYS = ("generate", "submit", "stream")
NAMESPACES = ("", "a", "b", None)
# How the target alone chooses its tokens: all of these but the last give the same ones every time.
SAMPLINGS = {
    "greedy": Sampling(),
    "top_k 1": Sampling(temperature=0.8, top_k=1, seed=1),
    "penalty": Sampling(repetition_penalty=1.2),
    "sampled": Sampling(temperature=0.8, seed=2),
}
SAMPLED = "sampled"
Json = dict[str, Any]
LEAST_REQUESTS = 1000  # requests; in fewer, caches are still filling


@dataclass(frozen=True, slots=True)
class Soak:
    """Settings of a soak test.

    Args:
        folder: folder for clips, and for a broken clip.
        target, drafter, options: as in `Engine.load`; the options' cache and batch are set here.
        requests, threads: number of requests, and of threads that send them.
        clips: number of clips.
        cancelled, wrong: shares of the requests that are cancelled, and of those that cannot be answered.
        kills: number of times that the drafter's process is killed, all within the first fifth of the requests; it is
            restarted three times within ten minutes.
        max_batch: number of requests that share a pass.
        seed: seed of all random choices.

    Raises:
        CrossdraftError: a number that is too small, or a share outside 0 … 1.
    """

    folder: Path
    target: str = "reference"
    drafter: str | None = "auto"
    options: Options = field(default_factory=Options)
    requests: int = 5000
    threads: int = 8
    clips: int = 24
    cancelled: float = 0.1
    wrong: float = 0.05
    kills: int = 3
    max_batch: int = 4
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("requests", "threads", "clips", "max_batch"):
            whole(name, getattr(self, name))
        whole("kills", self.kills, least=0)
        if not (self.cancelled >= 0 and self.wrong >= 0 and self.cancelled + self.wrong <= 1):
            raise CrossdraftError(
                f"The shares cancelled ({self.cancelled:g}) and wrong ({self.wrong:g}) must be 0 or more, and at most "
                "1 together."
            )


Known = tuple[Request, tuple[int, ...] | None]
"""A request that can be answered, and the tokens that the target alone gives it; none where they are sampled."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One request of the soak.

    Args:
        number: its number among all requests.
        request: the request.
        tokens: tokens of the whole answer, if they are known.
        way: way to ask, out of `WAYS`.
        cancel_s: seconds after which it is cancelled; `None` = never.
        refusal: part of the expected error's text, if the request cannot be answered.
    """

    number: int
    request: Request
    tokens: tuple[int, ...] | None
    way: str
    cancel_s: float | None = None
    refusal: str | None = None


def run_soak(plan: Soak, tick: Tick = lambda _: None) -> Json:
    """Ask all requests, and check that no resources are left over.

    Raises:
        CrossdraftError: the pair cannot be loaded.
    """
    found, others = environment(), descendants(os.getpid())
    known = list(known_answers(plan))
    options = replace(plan.options, max_batch=plan.max_batch, cache_bytes=CACHE_BYTES)
    with _quiet(), own_temporary_folder() as temporary:
        before = threading.enumerate()
        engine = Engine.load(plan.target, plan.drafter, options)
        try:
            engine.generate(known[0][0])  # so that all threads and processes exist
            run = _Run(plan, engine, tick)
            seconds = run.ask_all(Mix(plan, known))
            rows = _rows_in_use(engine)
        finally:
            theirs = {*others, *(pid for other in others for pid in descendants(other))}
            pids = [os.getpid(), *(descendants(os.getpid()).keys() - theirs)]
            engine.close()
        left = leftovers(temporary, pids, before)
    return report_of(
        plan.requests,
        run.samples,
        left,
        rows,
        len(run.failures),
        environment=found,
        seconds=round(seconds, 1),
        outcomes=dict(run.outcomes.most_common()),
        failures=run.failures[:SHOWN],
        kills=run.kills,
    )


def known_answers(plan: Soak) -> Iterator[Known]:
    """Yield every clip with every kind of sampling, answered by the target alone, up to the largest length used."""
    work = Workload(plan.clips, max_new_tokens=max(LENGTHS), files=plan.folder)
    asked = [
        replace(item.request, sampling=sampling, namespace=None)
        for item in items(work)
        for sampling in SAMPLINGS.values()
    ]
    alone = replace(plan.options, placement="inline", draft_cores=None, cache_bytes=0)
    with Engine.load(plan.target, None, alone) as engine:
        for request in asked:
            drawn = request.sampling == SAMPLINGS[SAMPLED]
            yield request, None if drawn else engine.generate(request).tokens


class Mix:
    """The requests by number: a seed gives the same ones, whichever thread asks which.

    Args:
        plan: shares and seed.
        known: requests that can be answered, with their answers.
    """

    def __init__(self, plan: Soak, known: Sequence[Known]) -> None:
        self._plan = plan
        self._known = known
        broken = plan.folder / "broken.mp4"
        broken.write_bytes(b"no video" * 100)
        self._wrong: tuple[tuple[dict[str, Any], str], ...] = (
            ({"video": str(plan.folder / "missing.mp4")}, "missing.mp4"),
            ({"video": str(broken)}, "broken.mp4"),
            ({"prompt": "What is <video> here?"}, "placeholder"),
            ({"max_new_tokens": 1_000_000}, "room for"),
        )

    def __getitem__(self, number: int) -> Ask:
        """Return the request of that number."""
        plan, draw = self._plan, random.Random(f"{self._plan.seed}/{number}")  # noqa: S311 - no secret
        (request, tokens), kind = draw.choice(self._known), draw.random()
        length, events = draw.choice(LENGTHS), request.events
        request = replace(
            request,
            max_new_tokens=length,
            namespace=draw.choice(NAMESPACES),
            priority=draw.randint(-1, 2),
            max_time=draw.choice((None, None, None, 0.05, 60.0)),
            events=draw.choice((events, events, events, None)),
            logprobs=draw.random() < 0.1,
        )
        tokens = None if tokens is None else tokens[:length]
        if kind < plan.cancelled:
            return Ask(number, request, tokens, "submit", draw.choice((0.0, draw.random() / 4)))
        if kind < plan.cancelled + plan.wrong:
            changes, refusal = draw.choice(self._wrong)
            return Ask(number, replace(request, **changes), None, draw.choice(WAYS), refusal=refusal)
        return Ask(number, request, tokens, draw.choice(WAYS))


class _Run:
    """A running soak test: asks, samples memory, kills drafters, and counts."""

    def __init__(self, plan: Soak, engine: Engine, tick: Tick) -> None:
        self.plan = plan
        self.engine = engine
        self.outcomes: Counter[str] = Counter()
        self.failures: list[str] = []
        self.samples: list[MemorySample] = []
        self.kills = 0
        self._tick = tick
        self._done = 0
        self._lock = threading.Lock()
        self._numbers = itertools.count()

    def ask_all(self, mix: Mix) -> float:
        """Ask from all threads, and watch from this one; return the seconds taken."""
        start = time.perf_counter()
        with ThreadPoolExecutor(self.plan.threads) as pool:
            asking = [pool.submit(self._ask_some, mix) for _ in range(self.plan.threads)]
            shown = 0
            while not all(one.done() for one in asking):
                time.sleep(INTERVAL_S)
                self.samples.append(self._sample())
                self._kill_if_due()
                while shown < self._done:
                    shown += 1
                    self._tick("requests")
            for one in asking:
                one.result()
        return time.perf_counter() - start

    def _ask_some(self, mix: Mix) -> None:
        while (number := next(self._numbers)) < self.plan.requests:
            ask = mix[number]
            try:
                outcome = check(ask, answered(self.engine, ask))
            except (CancelledError, CrossdraftError) as error:
                outcome = check_error(ask, error)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is a failure and not the end
                outcome = f"!{type(error).__name__}: {error}"
            with self._lock:
                self._done += 1
                self.outcomes[outcome.partition(":")[0] if outcome.startswith("!") else outcome] += 1
                if outcome.startswith("!"):
                    self.failures.append(f"request {number} ({ask.request.prompt[:40]!r}, {ask.way}): {outcome[1:]}")

    def _sample(self) -> MemorySample:
        return sample(self._done, whole=bool(self._workers()) or not self.kills)

    def _workers(self) -> list[int]:
        """Process ids of the drafter's own processes that are running."""
        runner = self.engine.drafter
        workers = [] if runner is None else [one.pid for one in runner.workers if isinstance(one, ProcessDrafter)]
        running = descendants(os.getpid())
        return [pid for pid in workers if pid in running]

    def _kill_if_due(self) -> None:
        # All kills come before memory is judged: a fresh process has its caches to fill.
        due = self._done >= (self.kills + 1) * SETTLED * self.plan.requests / (self.plan.kills + 1)
        if due and self.kills < self.plan.kills and (workers := self._workers()):
            with suppress(ProcessLookupError):
                os.kill(workers[0], signal.SIGKILL)
                self.kills += 1


def answered(engine: Engine, ask: Ask) -> Answer:
    """Return the answer, asked for in the way that was drawn.

    Raises:
        CrossdraftError, CancelledError: what the engine raises.
    """
    if ask.way == "generate":
        return engine.generate(ask.request)
    if ask.way == "stream":
        stream = engine.stream(ask.request, final_only=bool(ask.number % 2))
        text = "".join(piece.text for piece in stream if piece.origin != "provisional")
        if stream.answer is None or stream.answer.text != text:
            raise CrossdraftError("The streamed text is not the answer's.")
        return stream.answer
    pending = engine.submit(ask.request)
    if ask.cancel_s is not None:
        time.sleep(ask.cancel_s)
        pending.cancel()
    return pending.result(600)


def check(ask: Ask, answer: Answer) -> str:
    """Check a request that has an answer; return how it ended: a word, or "!" and what is wrong with it."""
    tokens, finish = answer.tokens, answer.finish
    cut = finish in (Finish.CANCELLED, Finish.TIME)
    known = ask.tokens
    wrong = {
        f"It was answered, and should be refused with '{ask.refusal}'.": ask.refusal is not None,
        "It was cancelled, and nobody had asked for that.": finish is Finish.CANCELLED and ask.cancel_s is None,
        "It ended by time, and had as much as it liked.": finish is Finish.TIME and ask.request.max_time is None,
        f"It has {len(answer.logprobs or ())} log-probabilities for {len(tokens)} tokens.": (
            ask.request.logprobs and len(answer.logprobs or ()) != len(tokens)
        ),
        f"It has {len(tokens)} tokens, at most {ask.request.token_limit} were asked for.": (
            len(tokens) > ask.request.token_limit or not (tokens or cut)
        ),
        f"It is {list(tokens)} ({finish}), the target alone writes {list(known or ())}.": (
            known is not None and tokens != (known[: len(tokens)] if cut else known)
        ),
    }
    found = next((what for what, so in wrong.items() if so), None)
    if found is not None:
        return "!" + found
    return f"sampled, {finish}" if known is None else f"as the target alone, {finish}"


def check_error(ask: Ask, error: BaseException) -> str:
    """Check a request that has no answer; return how it ended."""
    if isinstance(error, CancelledError):
        return "cancelled before it began" if ask.cancel_s is not None else "!It was cancelled."
    if ask.refusal is None or ask.refusal not in str(error):
        return f"!{type(error).__name__}: {error}"
    return "refused"


def _rows_in_use(engine: Engine) -> int:
    """Number of rows in use in the cache of the engine's own loop when it is idle."""
    return engine._scheduler.call(lambda: engine.rows)  # noqa: SLF001 - between two rounds, which no user waits for


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the log within the context: requests fail on purpose, and drafters are killed."""
    log = logging.getLogger("crossdraft")
    before = log.level
    log.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        log.setLevel(before)


def report_of(
    requests: int, samples: Sequence[MemorySample], left: Leftovers, rows: int = 0, failed: int = 0, **more: object
) -> Json:
    """Results of a soak test as plain values.

    Memory is judged after the first fifth of the requests, with the drafter's process running. `growth` is (max - min)
    / median over the medians of `PARTS` equal parts, which shows memory that stays; `swing` the same over the samples,
    which includes what requests hold for a moment.

    Args:
        requests: number of requests; if it is too small, memory is not judged.
        samples: samples of memory, in the order of time.
        left: resources that were left over; see `Leftovers`.
        rows: rows of the engine's cache that were in use after all requests had ended.
        failed: number of wrong answers.
        more: further plain values for the report.
    """
    settled = [one for one in samples if one.done >= SETTLED * requests and one.whole]
    total, enough = [one.total_mib for one in settled], requests >= LEAST_REQUESTS
    growth = flatness(part_medians(total))
    flat = growth <= MOST_GROWTH or not enough
    return {
        "requests": requests,
        "passed": not failed and flat and not rows and not left.any,
        "failed": failed,
        **more,
        "memory": {
            "growth": round(growth, 4),
            "growth_of_parent": round(flatness(part_medians([one.parent_mib for one in settled])), 4),
            "swing": round(flatness(total), 4),
            "range_mib": [round(min(total), 2), round(max(total), 2)] if total else None,
            "most": MOST_GROWTH,
            "judged": enough,
            "samples": [one.to_json() for one in samples],
        },
        "rows": rows,
        "left": left.to_json(),
    }


def lines(report: Json) -> list[str]:
    """Sentences on the results, for people."""
    found, words = report["memory"], "Memory: too few samples."
    if found["range_mib"] is not None:
        low, high = found["range_mib"]
        settled = sum(one["whole"] and one["done"] >= SETTLED * report["requests"] for one in found["samples"])
        words = (
            f"Memory, all processes: {low:.0f} to {high:.0f} MiB in {settled} readings after the first "
            f"fifth, (max - min) / median {found['swing']:.1%}; of the medians of {PARTS} parts {found['growth']:.1%}, "
            f"asked at most {MOST_GROWTH:.0%}"
            + ("." if found["judged"] else f"; judged from {LEAST_REQUESTS} requests on.")
        )
    left = str(Leftovers(**{name: tuple(some) for name, some in report["left"].items()}))
    return [
        f"{report['requests']} requests in {report['seconds']:.0f} s; the drafter was killed {report['kills']} times.",
        *(f"  {count:5d} {outcome.removeprefix('!')}" for outcome, count in report["outcomes"].items()),
        words,
        f"Rows in use: {report['rows']}. Left over: {left}.",
        *(f"FAILED {failure}" for failure in report["failures"]),
        "All is well." if report["passed"] else "Something is wrong.",
    ]
