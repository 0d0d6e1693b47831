"""Decoding of media in separate processes, whose memory and CPU time are limited, each job under a deadline.

FFmpeg never reads a client's bytes in the server's process. A worker that dies, hangs or sends an invalid reply costs
one job and is replaced. A reply is JSON and plain arrays, which are checked here: nothing is unpickled.
"""

import asyncio
import logging
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from queue import LifoQueue
from typing import Any

import numpy as np

from crossdraft.events.excerpt import Excerpt
from crossdraft.events.stream import LAST_US
from crossdraft.serve.decode_process import DecodeJob, DecodeProcess, DecoderLost, DecoderNotStarted
from crossdraft.serve.errors import MOST_SENTENCE, ApiError, DecodeError, overloaded
from crossdraft.video.clip import FrameSampling
from crossdraft.video.clip_frames import ClipFrames
from crossdraft.video.grid import WindowGrid
from crossdraft.video.read import FrameArrays

log = logging.getLogger("crossdraft.serve")

UNWANTED_S = 1.0  # seconds for a job whose client has gone: a new worker starts more slowly than most jobs end
MOST_JOBS = 1000  # jobs after which a worker is replaced, as decoders leak memory


@dataclass(frozen=True, slots=True)
class DecodedVideo:
    """A clip's frames, and its length in seconds, which is 0 if the file does not state it."""

    frames: ClipFrames
    seconds: float = 0.0

    @property
    def nbytes(self) -> int:
        """Bytes of the frames."""
        return int(self.frames.pixels.nbytes)


@dataclass(frozen=True, slots=True)
class EventColumns:
    """Description of a recording's events, or of a part of them, in a file (`npy.column_header`).

    Args:
        first_us: time of the first event; 0 if there is none.
        sensor: width and height of the sensor.
        count: number of events; `None` = too many, and nothing was written.
        notes: what the reader repaired or left out.
    """

    first_us: int
    sensor: tuple[int, int]
    count: int | None
    notes: tuple[str, ...] = ()


class MediaDecoder:
    """A pool of workers. May be used from any task of one event loop.

    Args:
        workers: number of processes.
        memory: bytes of address space of each process.
        seconds: CPU time, and deadline, of each job.
    """

    def __init__(self, workers: int, memory: int, seconds: float) -> None:
        self._workers, self._memory, self._seconds = workers, memory, seconds
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="decode")
        # Starting uses a pool of its own: jobs that wait for a worker may hold all threads of the first pool.
        self._starters = ThreadPoolExecutor(workers, thread_name_prefix="decode-start")
        self._idle: LifoQueue[DecodeProcess | None] = LifoQueue()  # last in, first out: not all wear out at once
        for _ in range(workers):
            self._idle.put(None)
        self._lock, self._failing = threading.Lock(), False  # true if the last start of a worker failed, as is logged

    def warm_up(self) -> None:
        """Start the workers now."""
        for _ in range(self._workers):
            self._threads.submit(self._ask, DecodeJob({"kind": "nothing"}))

    async def clip(self, path: Path, sampling: FrameSampling, name: str) -> DecodedVideo:
        """Decode frames of a clip; `name` is its name in error messages.

        Raises:
            DecodeError: the clip cannot be decoded.
            ApiError: 503, no worker starts.
        """
        wanted = {key: getattr(sampling, key) for key in FrameSampling.__slots__}
        header, arrays = await self._run({"kind": "clip", "path": str(path), "sampling": wanted}, name, path)
        return DecodedVideo(_frames(header, arrays, name), float(header.get("seconds", 0)))

    async def grid(self, path: Path, grid: WindowGrid, name: str) -> DecodedVideo:
        """Decode the frames that sliding windows of a clip show, with its last frame and its end; errors as `clip`."""
        wanted = {key: getattr(grid, key) for key in WindowGrid.__slots__}
        header, arrays = await self._run({"kind": "grid", "path": str(path), "grid": wanted}, name, path)
        return DecodedVideo(_frames(header, arrays, name), float(header.get("seconds", 0)))

    async def image(self, path: Path, name: str) -> ClipFrames:
        """Decode an image as a clip of one frame; errors as `clip`."""
        header, arrays = await self._run({"kind": "image", "path": str(path)}, name, path)
        return _frames(header, arrays, name)

    async def stills(self, paths: list[Path], name: str) -> DecodedVideo:
        """Decode frames that the client has sampled, an image each; errors as `clip`."""
        header, arrays = await self._run({"kind": "stills", "paths": [str(path) for path in paths]}, name, *paths)
        return DecodedVideo(replace(_frames(header, arrays, name), timed=False))

    async def events(self, part: Excerpt, most: int, into: Path, name: str) -> EventColumns:
        """Decode the events of a recording to a file; if a part has too many events, only the newest.

        Args:
            part: part of the recording to decode, or all of it.
            most: most events to write; nothing is written of a whole recording that has more.
            into: an empty file; if it is gone when the job's turn comes, the job is dropped.
            name: name of the recording in error messages.

        Raises:
            DecodeError: the recording cannot be read, or holds no events at all.
            ApiError: 503, the disk is full, or no worker starts.
        """
        job = {"kind": "events", "path": str(part.path), "format": part.format, "sensor": part.sensor}
        job |= {"time_unit": part.time_unit, "start_us": part.start_us, "end_us": part.end_us, "most": most}
        header, _ = await self._run(job, name, part.path, into=into)
        if "sensor" not in header:
            raise DecodeError(f"{name} holds no events; send a recording of the clip's moment.", name)
        found = [header.get("first_us"), *header["sensor"]]
        if len(found) != 3 or not all(isinstance(value, int) and abs(value) < LAST_US for value in found):
            raise DecodeError(f"{name} broke the decoder; copy it again.", name)
        return EventColumns(found[0], (found[1], found[2]), header.get("count"), tuple(header["notes"]))

    async def strip(self, path: Path, seconds: float, frames: int, name: str) -> np.ndarray:
        """Decode frames of a recording into one picture, uint8 [H, W, 3]; see `page.strip`; errors as `clip`."""
        job = {"kind": "strip", "path": str(path), "seconds": seconds, "frames": frames}
        _, arrays = await self._run(job, name, path)
        if len(arrays) != 1 or arrays[0].dtype != np.uint8 or arrays[0].ndim != 3 or arrays[0].shape[2] != 3:
            raise DecodeError(f"{name} broke the decoder; copy it again.", name)
        return arrays[0]

    async def kind_of(self, path: Path, name: str) -> str:
        """Return `image`, `video` or `event`, by a file's content; errors as `clip`."""
        header, _ = await self._run({"kind": "kind", "path": str(path)}, name, path)
        return str(header.get("found"))

    async def _run(
        self, job: Mapping[str, object], name: str, *paths: Path, into: Path | None = None
    ) -> tuple[dict[str, Any], list[np.ndarray]]:
        """Run a job about files, called `name` in errors; return its reply. Arrays may be written to the file `into`.

        A cancelled caller waits until the worker is free or has ended: a client's job counts as its own till then.
        """
        asked = DecodeJob(job, into)
        running = self._threads.submit(self._ask, asked)
        reply = asyncio.wrap_future(running)
        try:
            header, arrays = await asyncio.shield(reply)
        except DecoderLost:
            raise DecodeError(
                f"{name} took more than {self._seconds:g} s or more memory than is allowed to decode, or broke the "
                "decoder; send a shorter or smaller one, or re-encode it.",
                name,
            ) from None
        except asyncio.CancelledError:
            if not running.cancel():
                await _ended(reply, asked)
            raise
        said = [str(header["error"])] if "error" in header else [str(note) for note in header.get("notes", ())]
        for path in paths:
            said = [sentence.replace(str(path), name) for sentence in said]
        if "error" in header:
            raise DecodeError(said[0][:MOST_SENTENCE], name)
        return {**header, "notes": [*dict.fromkeys(said)]}, arrays

    def _ask(self, job: DecodeJob) -> tuple[dict[str, Any], list[np.ndarray]]:
        """Run a job in a thread of the pool, which has as many threads as workers."""
        worker, whole = self._idle.get(), False
        if job.stopped:  # stopped while it waited for the worker
            self._idle.put(worker)
            raise DecoderLost
        try:
            if worker is not None and not worker.alive:  # a worker may end while idle, such as for lack of memory
                worker.close()
                worker = None
            worker = worker or self._new()
            found = job.done_by(worker)
            whole = True
            return found
        finally:
            self._give_back(worker, whole=whole)

    def _give_back(self, worker: DecodeProcess | None, *, whole: bool) -> None:
        """Return a worker to the idle ones; in place of a broken or worn-out worker, return an empty place.

        A worn-out worker is replaced while others work, so that the next job, in particular a stream's frame, does not
        wait for the start of a new one.
        """
        if whole and worker is not None and worker.jobs < MOST_JOBS:
            self._idle.put(worker)
            return
        if worker is not None:
            worker.close()
        if whole:
            self._starters.submit(self._start)
        else:
            self._idle.put(None)

    def _start(self) -> None:
        """Start a worker, in a thread of the starters."""
        worker: DecodeProcess | None = None
        try:
            with suppress(ApiError):  # the error is logged already; the next job tries again
                worker = self._new()
        finally:
            self._idle.put(worker)

    def _new(self) -> DecodeProcess:
        """Start a worker.

        Raises:
            ApiError: 503, the worker did not start.
        """
        try:
            found = DecodeProcess(self._memory, self._seconds)
        except DecoderNotStarted as error:
            raise self._not_started(error) from None
        self._failing = False
        return found

    def _not_started(self, error: DecoderNotStarted) -> ApiError:
        """Error 503; the reason is logged once until a worker starts again."""
        with self._lock:
            known, self._failing = self._failing, True
        if not known:
            log.error("A process that decodes media does not start: %s", error)
        return overloaded("The server cannot start a process that decodes media; ask again later.", "no_decoder")

    def close(self) -> None:
        """End all workers; a running job ends at its worker's deadline."""
        self._threads.shutdown(wait=True, cancel_futures=True)
        self._starters.shutdown(wait=True)  # last, as a running job may have waited for one of theirs
        while not self._idle.empty():
            worker = self._idle.get()
            if worker is not None:
                worker.close()


async def _ended(reply: "asyncio.Future[Any]", job: DecodeJob) -> None:
    """Wait for the end of a job whose client has gone: a short job ends by itself, and keeps its worker."""
    reply.add_done_callback(lambda done: done.cancelled() or done.exception())  # else asyncio warns of an unread error
    try:
        if job.runs:
            await asyncio.wait([reply], timeout=UNWANTED_S)
    finally:
        runs = job.stop()
    if runs:
        await asyncio.wait([reply])


def _frames(header: Mapping[str, Any], arrays: list[np.ndarray], name: str) -> ClipFrames:
    """Frames of a reply, with checked shapes: the reply comes from a process that read a client's bytes."""
    if len(arrays) < 2 or not _fit(*arrays[:3]):
        raise DecodeError(f"{name} broke the decoder; re-encode it.", name)
    pixels, times = arrays[:2]
    indices = arrays[2] if len(arrays) > 2 else None
    notes = tuple(str(note)[:MOST_SENTENCE] for note in header.get("notes", ()))
    return FrameArrays(pixels, times, notes, indices).to_frames()


def _fit(pixels: np.ndarray, times: np.ndarray, indices: np.ndarray | None = None) -> bool:
    """True if the arrays are frames [U, H, W, 3], times [F], and the frame index at each time [F]."""
    if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[-1] != 3 or not min(pixels.shape):
        return False
    if times.dtype != np.float64 or times.ndim != 1 or not len(times) or not np.isfinite(times).all():
        return False
    if indices is None:
        return len(times) == len(pixels)
    whole = indices.dtype == np.int64 and indices.shape == times.shape
    return whole and bool(indices.min() >= 0 and indices.max() < len(pixels))
