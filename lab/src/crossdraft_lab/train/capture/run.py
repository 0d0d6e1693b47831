"""The capture: reads clips and writes shards; it can be resumed after every shard."""

import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path

from crossdraft.files import atomic_path
from crossdraft_lab.folders import make_folder
from crossdraft_lab.train.capture.plan import CaptureIndex, CapturePlan, ShardInfo
from crossdraft_lab.train.capture.recorder import FeatureRecorder
from crossdraft_lab.train.capture.shard import CapturedAnswer, CaptureSpec, write_shard
from crossdraft_lab.train.capture.sources import ClipSource, PromptedClip, grouped
from crossdraft_lab.train.core.dist import worker_pool
from crossdraft_lab.train.core.provenance import sha256

PREFETCH = 8  # clips read in advance by each process
GROUP = 4  # batches of questions handed to the recorder at a time: few, so that a shard's clips need not fit in memory


@dataclass(frozen=True)
class CaptureReport:
    """Counts and timings of a capture run.

    Args:
        clips, answers, tokens: numbers of this run; `tokens` counts those of the answers alone.
        bytes: size on disk.
        seconds: time from the first clip to the last shard.
        writing_s: part of it in which the target worked.
        reading_s: part of it spent waiting for clips that were not read in advance.
        filing_s: part of it spent writing shards.
    """

    clips: int
    answers: int
    tokens: int
    bytes: int
    seconds: float
    writing_s: float
    reading_s: float
    filing_s: float

    @property
    def answers_per_s(self) -> float:
        """Answers a second over the whole run."""
        return self.answers / self.seconds if self.seconds else 0.0

    def to_json(self) -> dict[str, object]:
        """Plain values, with answers a second."""
        figures = {name: round(v, 3) if isinstance(v, float) else v for name, v in asdict(self).items()}
        return {**figures, "answers_per_s": round(self.answers_per_s, 3)}

    def sentence(self) -> str:
        """Sentence for people."""
        if not self.clips:
            return "Everything was there already."
        return (
            f"{self.answers} answers about {self.clips} clips, {self.tokens} tokens in {self.seconds:.1f} s: "
            f"{self.answers_per_s:.1f} answers/s (target {self.writing_s:.1f} s, clips {self.reading_s:.1f} s, files "
            f"{self.filing_s:.1f} s)."
        )


def capture(
    folder: Path, plan: CapturePlan, index: CaptureIndex, recorder: FeatureRecorder, on_clip: Callable[[], None]
) -> tuple[CaptureIndex, CaptureReport]:
    """Capture the clips that `index` (see `CapturePlan.resume`) does not hold yet; return the complete index.

    `on_clip` is called for every captured clip.
    An interruption costs no more than the shard that was being filled.
    """
    old, began, filing = index, time.perf_counter(), 0.0
    make_folder(folder)
    index.write(folder)
    with closing(prefetch(plan.source, range(index.done, len(plan.source)), plan.workers)) as read:
        clips = _Timed(read)
        while index.done < len(plan.source):
            count = min(plan.shard_clips, len(plan.source) - index.done)
            answers = record_shard(recorder, islice(clips, count), on_clip)
            start = time.perf_counter()
            name = shard_name(len(index.shards))
            with atomic_path(folder / name) as path:  # complete or not at all
                shard = write_counted(path, name, count, answers, plan.spec)
            index = replace(index, shards=(*index.shards, shard))
            index.write(folder)
            filing += time.perf_counter() - start
    fresh = index.shards[len(old.shards) :]
    return index, CaptureReport(
        index.done - old.done,
        sum(shard.answers for shard in fresh),
        sum(shard.answer_tokens for shard in fresh),
        sum(shard.bytes for shard in fresh),
        time.perf_counter() - began,
        recorder.seconds,
        clips.seconds,
        filing,
    )


def prefetch(source: ClipSource, indices: Iterable[int], workers: int) -> Generator[PromptedClip]:
    """Yield the clips of these numbers, in order, read in advance by `workers` processes; 0 reads each when needed."""
    if not workers or not source.heavy:
        yield from map(source.read, indices)
        return
    pool = worker_pool(workers)
    try:
        waiting: deque[Future[PromptedClip]] = deque()
        for index in indices:
            waiting.append(pool.submit(source.read, index))
            if len(waiting) > PREFETCH * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


class _Timed:
    """Iterator over clips that measures the time spent waiting for them."""

    def __init__(self, clips: Iterator[PromptedClip]) -> None:
        self.clips = clips
        self.seconds = 0.0

    def __iter__(self) -> Iterator[PromptedClip]:
        return self

    def __next__(self) -> PromptedClip:
        start = time.perf_counter()
        try:
            return next(self.clips)
        finally:
            self.seconds += time.perf_counter() - start


def record_shard(
    recorder: FeatureRecorder, clips: Iterable[PromptedClip], on_clip: Callable[[], None] = lambda: None
) -> list[CapturedAnswer]:
    """Record the answers about the clips of a shard, a few batches of questions at a time."""
    answers: list[CapturedAnswer] = []
    for group in grouped(clips, GROUP * recorder.batch):
        answers += [answer for some in recorder.record(group) for answer in some]
        for _ in group:
            on_clip()
    return answers


def shard_name(number: int) -> str:
    """File name of a shard."""
    return f"shard-{number:05d}.safetensors"


def write_counted(path: Path, name: str, clips: int, answers: Sequence[CapturedAnswer], spec: CaptureSpec) -> ShardInfo:
    """Write a shard to `path`; return its entry for the index, under `name`."""
    write_shard(path, answers, spec)
    tokens = sum(len(answer.tokens) for answer in answers)
    answer_tokens = tokens - sum(answer.start for answer in answers)
    return ShardInfo(name, clips, len(answers), tokens, answer_tokens, path.stat().st_size, sha256(path))
