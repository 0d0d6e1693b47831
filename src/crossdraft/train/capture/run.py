"""The capture: clips in, shards out, resumable behind every one of them."""

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass
from itertools import islice
from multiprocessing import get_context
from pathlib import Path

import torch

from crossdraft.files import atomic_path
from crossdraft.train.capture.clip import Clip, Source, waves
from crossdraft.train.capture.plan import Entry, Index, Plan
from crossdraft.train.capture.recorder import Alone
from crossdraft.train.capture.shard import ClipRecord, merged, write_shard
from crossdraft.train.core.provenance import sha256

AHEAD = 8  # clips read ahead by each process


def read_ahead(source: Source, indices: Iterable[int], workers: int) -> Iterator[Clip]:
    """The clips of these numbers, in order; `workers` = 0 reads each when it is wanted."""
    if not workers or not source.heavy:
        yield from map(source.read, indices)
        return
    pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_one_thread)
    try:
        waiting: deque[Future[Clip]] = deque()
        for index in indices:
            waiting.append(pool.submit(source.read, index))
            if len(waiting) > AHEAD * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def _one_thread() -> None:
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"


Tick = Callable[[int], None]
"""Told how many clips have been captured since the last call."""


@dataclass(frozen=True)
class Report:
    """What a run captured.

    Args:
        clips, answers, tokens: of this run; `tokens` are those of the answers alone.
        bytes: on disk.
        seconds: from the first clip to the last shard.
        writing_s: of these, the target at work.
        reading_s: waiting for clips that were not read ahead.
        filing_s: writing shards.
    """

    clips: int
    answers: int
    tokens: int
    bytes: int
    seconds: float
    writing_s: float
    reading_s: float
    filing_s: float

    def to_json(self) -> dict[str, object]:
        """Plain values, with answers a second."""
        rate = self.answers / self.seconds if self.seconds else 0.0
        figures = {name: round(v, 3) if isinstance(v, float) else v for name, v in asdict(self).items()}
        return {**figures, "answers_per_s": round(rate, 3)}

    def sentence(self) -> str:
        """For people."""
        if not self.clips:
            return "Everything was there already."
        rate = self.answers / self.seconds if self.seconds else 0.0
        return (
            f"{self.answers} answers about {self.clips} clips, {self.tokens} tokens in {self.seconds:.1f} s: "
            f"{rate:.1f} answers/s (target {self.writing_s:.1f} s, clips {self.reading_s:.1f} s, files "
            f"{self.filing_s:.1f} s)."
        )


def capture(folder: Path, plan: Plan, index: Index, writer: Alone, tick: Tick) -> tuple[Index, Report]:
    """Capture what `index` (see `plan.begun`) does not hold yet; returns the whole index.

    An interruption costs no more than the shard that was being filled.
    """
    old, began, filing = index, time.perf_counter(), 0.0
    folder.mkdir(parents=True, exist_ok=True)
    index.write(folder)
    with closing(read_ahead(plan.source, range(index.done, len(plan.source)), plan.workers)) as read:
        clips = _Watched(read)
        while index.done < len(plan.source):
            count = min(plan.shard_clips, len(plan.source) - index.done)
            records = _recorded(islice(clips, count), plan.batch, writer, tick)
            start = time.perf_counter()
            index = index.with_shard(_filed(folder, len(index.shards), count, records, plan))
            index.write(folder)
            filing += time.perf_counter() - start
    fresh = index.shards[len(old.shards) :]
    return index, Report(
        index.done - old.done,
        sum(shard.answers for shard in fresh),
        sum(shard.answer_tokens for shard in fresh),
        sum(shard.bytes for shard in fresh),
        time.perf_counter() - began,
        writer.seconds,
        clips.seconds,
        filing,
    )


class _Watched:
    """Clips, and how long they were waited for."""

    def __init__(self, clips: Iterator[Clip]) -> None:
        self.clips = clips
        self.seconds = 0.0

    def __iter__(self) -> Iterator[Clip]:
        return self

    def __next__(self) -> Clip:
        start = time.perf_counter()
        try:
            return next(self.clips)
        finally:
            self.seconds += time.perf_counter() - start


def _recorded(clips: Iterator[Clip], batch: int, writer: Alone, tick: Tick) -> list[ClipRecord]:
    """The records of some clips, wave by wave."""
    records: dict[int, list[ClipRecord]] = {}
    for wave in waves(clips, batch):
        for (number, _), some in zip(wave, writer.write([clip for _, clip in wave]), strict=True):
            if number not in records:
                tick(1)
            records.setdefault(number, []).extend(some)
    return [record for some in records.values() for record in merged(some)]


def _filed(folder: Path, number: int, clips: int, records: Sequence[ClipRecord], plan: Plan) -> Entry:
    """Write a shard, whole or not at all."""
    name = f"shard-{number:05d}.safetensors"
    told = [answer for record in records for answer in record.told]
    with atomic_path(folder / name) as path:
        write_shard(path, records, plan.wanted)
        size, digest = path.stat().st_size, sha256(path)
    return Entry(
        name,
        clips,
        len(told),
        sum(len(answer.tokens) for answer in told),
        sum(len(answer.tokens) - answer.start for answer in told),
        size,
        digest,
    )
