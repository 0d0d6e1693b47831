"""A capture by several workers: whole shards, each a function of its clips alone, whoever captures it, and when."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol

from crossdraft.errors import CrossdraftError
from crossdraft.files import atomic_path, make_folder
from crossdraft.load import load_target
from crossdraft_lab.train.capture.plan import CapturedTarget, CaptureIndex, CapturePlan, ShardInfo
from crossdraft_lab.train.capture.recorder import FeatureRecorder
from crossdraft_lab.train.capture.run import CaptureReport, record_shard, shard_name, write_counted
from crossdraft_lab.train.capture.shard import CaptureSpec
from crossdraft_lab.train.capture.sources import ClipSource


@dataclass(frozen=True)
class ShardTask:
    """A shard to capture: its number, its first clip, how many clips."""

    number: int
    first: int
    clips: int


@dataclass(frozen=True)
class CapturedShard:
    """A shard as a worker hands it over.

    Args:
        content: of the file.
        recording_s, reading_s: seconds of the worker: the target at work, and clips being read.
    """

    task: ShardTask
    info: ShardInfo
    content: bytes
    recording_s: float
    reading_s: float


class ShardWorkers(Protocol):
    """Several workers."""

    def capture(self, tasks: Sequence[ShardTask]) -> Iterator[CapturedShard]:
        """The shards, in the order in which they are finished."""
        ...


class ShardRecorder:
    """One worker: a target of its own.

    Args:
        info: the target that it must be.
        source: of the clips; files that it names must be where the worker is.
        device: of the target.

    Raises:
        CrossdraftError: the target cannot be loaded here, or is another one.
    """

    def __init__(
        self, info: CapturedTarget, source: ClipSource, spec: CaptureSpec, batch: int, device: str | None
    ) -> None:
        quantize = info.quantize or None
        target = load_target(info.source, device, info.dtype, quantize=quantize)
        found = CapturedTarget.of(info.source, target, quantize)
        if found != info:
            raise CrossdraftError(f"A worker has another target at '{info.source}'; give all the same checkpoint.")
        self._source, self._spec = source, spec
        self._recorder = FeatureRecorder(target, spec, batch, learns=False)

    def capture(self, task: ShardTask) -> CapturedShard:
        """A shard."""
        start, before = time.perf_counter(), self._recorder.seconds
        clips = map(self._source.read, range(task.first, task.first + task.clips))
        answers = record_shard(self._recorder, clips)
        recording = self._recorder.seconds - before
        reading = time.perf_counter() - start - recording
        with TemporaryDirectory(prefix="crossdraft-") as folder:
            path = Path(folder) / shard_name(task.number)
            info = write_counted(path, path.name, task.clips, answers, self._spec)
            return CapturedShard(task, info, path.read_bytes(), recording, reading)


def tasks_of(plan: CapturePlan, index: CaptureIndex) -> list[ShardTask]:
    """The shards that an index lacks."""
    starts = range(index.done, len(plan.source), plan.shard_clips)
    return [
        ShardTask(number, first, min(plan.shard_clips, len(plan.source) - first))
        for number, first in enumerate(starts, len(index.shards))
    ]


def capture_by(
    workers: ShardWorkers, folder: Path, plan: CapturePlan, index: CaptureIndex, on_clip: Callable[[], None]
) -> tuple[CaptureIndex, CaptureReport]:
    """As `run.capture`, by workers.

    An interruption costs the shards that were being captured, and those behind the first of them, which the index does
    not name yet.
    """
    began, filing = time.perf_counter(), 0.0
    make_folder(folder)
    index.write(folder)
    shards: list[CapturedShard] = []
    waiting: dict[int, ShardInfo] = {}  # written, behind one that is not there yet
    for shard in workers.capture(tasks_of(plan, index)):
        start = time.perf_counter()
        with atomic_path(folder / shard.info.file) as path:
            path.write_bytes(shard.content)
        shards.append(replace(shard, content=b""))
        waiting[shard.task.number] = shard.info
        while (info := waiting.pop(len(index.shards), None)) is not None:
            index = replace(index, shards=(*index.shards, info))
        index.write(folder)
        filing += time.perf_counter() - start
        for _ in range(shard.task.clips):
            on_clip()
    return index, CaptureReport(
        sum(shard.info.clips for shard in shards),
        sum(shard.info.answers for shard in shards),
        sum(shard.info.answer_tokens for shard in shards),
        sum(shard.info.bytes for shard in shards),
        time.perf_counter() - began,
        sum(shard.recording_s for shard in shards),
        sum(shard.reading_s for shard in shards),
        filing,
    )
