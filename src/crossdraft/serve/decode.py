"""Media are decoded in processes of their own, whose memory and CPU time are limited, each job under a deadline.

FFmpeg never sees a stranger's bytes in the server's process. A worker that dies, hangs or answers nonsense costs that
one job and is replaced. What it sends back is JSON and plain arrays, checked here: nothing of it is unpickled.
"""

import asyncio
import json
import logging
import math
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from io import RawIOBase
from pathlib import Path
from queue import LifoQueue
from typing import Any

import numpy as np

import crossdraft
from crossdraft.errors import CrossdraftError
from crossdraft.events.excerpt import Excerpt
from crossdraft.events.npy import COLUMNS, column_header
from crossdraft.events.stream import LAST_US
from crossdraft.serve.errors import overloaded
from crossdraft.video.clip import FrameSampling
from crossdraft.video.grid import WindowGrid
from crossdraft.video.limits import DEFAULT_LIMITS
from crossdraft.video.read import ClipFrames, FrameArrays

log = logging.getLogger("crossdraft.serve")

DTYPES = {"uint8": np.uint8, "uint16": np.uint16, "int64": np.int64, "float64": np.float64}
MOST_HEADER = 1 << 20  # bytes of a reply's JSON
MOST_ARRAY = 3 * DEFAULT_LIMITS.held  # bytes
MOST_COLUMN = 1 << 25  # events
EVENT_BYTES = sum(np.dtype(dtype).itemsize for dtype in COLUMNS.values())
AT_ONCE = 1 << 18  # bytes of columns that are written to a file at once
START_S = 60.0  # for a worker to be there
MOST_JOBS = 1000  # after which a worker is replaced: what decoders leak goes with it


class DecodeError(CrossdraftError):
    """A file that cannot be decoded, in a sentence for whoever sent it; the file's path does not stand in it."""


@dataclass(frozen=True, slots=True)
class DecodedVideo:
    """A clip's frames, and its length in seconds, 0 where the file does not say."""

    frames: ClipFrames
    seconds: float = 0.0

    @property
    def nbytes(self) -> int:
        """Bytes of the frames."""
        return int(self.frames.pixels.nbytes)


@dataclass(frozen=True, slots=True)
class EventColumns:
    """A recording's events, or those of a part of it, in a file (`npy.column_header`).

    Args:
        first_us: time of the first event; 0 if there is none.
        sensor: width and height.
        count: how many events; `None` = too many, and nothing was written.
    """

    first_us: int
    sensor: tuple[int, int]
    count: int | None


class _WorkerLost(Exception):
    """A worker that ended, was late or answered nonsense."""


class _Worker:
    """One process and the socket to it."""

    def __init__(self, memory: int, seconds: float) -> None:
        ours, theirs = socket.socketpair()
        package = str(Path(crossdraft.__file__).parents[1])
        paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
        kept = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH", "HOME", "TMPDIR") if name in os.environ}
        command = [sys.executable, "-P", "-m", "crossdraft.serve.decode_worker"]
        numbers = (theirs.fileno(), memory, math.ceil(seconds))
        self.socket, self.jobs = ours, 0
        with theirs:
            self._process = subprocess.Popen(
                [*command, *map(str, numbers)],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**kept, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"},
            )
        try:
            self._until = time.monotonic() + START_S
            self._receive(1)  # it is there
        except BaseException:
            self.close()
            raise
        self._seconds = seconds

    def ask(self, job: Mapping[str, object], file: RawIOBase | None = None) -> tuple[dict[str, Any], list[np.ndarray]]:
        """What became of a job; if there is a `file`, the arrays are columns of events, and go there.

        Raises:
            _WorkerLost: nothing; the worker is of no use any more.
            ApiError: there is no room for the file, and the worker is of no use any more.
        """
        self.jobs += 1
        self._until = time.monotonic() + self._seconds  # for all of the job, however its reply trickles
        try:
            self._wait()
            sent = json.dumps(job).encode()
            self.socket.sendall(struct.pack("<I", len(sent)) + sent)
            size = struct.unpack("<I", self._receive(4))[0]
            if size > MOST_HEADER:
                raise _WorkerLost
            header = json.loads(self._receive(size))
            described = header.get("arrays", ())
            if file is not None:
                return header | {"count": self._write_columns(described, file) if described else None}, []
            return header, [self._array(one) for one in described]
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise _WorkerLost from None

    def _array(self, described: Mapping[str, Any]) -> np.ndarray:
        dtype, shape = np.dtype(DTYPES[described["dtype"]]), tuple(described["shape"])
        whole = all(isinstance(size, int) and size >= 0 for size in shape)
        if not whole or len(shape) > 4 or math.prod(shape) * dtype.itemsize > MOST_ARRAY:
            raise _WorkerLost
        return np.frombuffer(self._receive(math.prod(shape) * dtype.itemsize), dtype).reshape(shape)

    def _write_columns(self, described: Sequence[Mapping[str, Any]], file: RawIOBase) -> int:
        """Receive columns of events, whose shapes are checked, as a `.npy` that can be mapped; how many there are."""
        (count,) = described[0]["shape"]
        wanted = [(np.dtype(dtype).name, [count]) for dtype in COLUMNS.values()]
        if [(one["dtype"], one["shape"]) for one in described] != wanted or not 0 <= int(count) <= MOST_COLUMN:
            raise _WorkerLost
        left, part = count * EVENT_BYTES, memoryview(bytearray(AT_ONCE))
        _write(file, column_header(count))
        while left:
            got = self._receive_some(part[: min(left, AT_ONCE)])
            _write(file, part[:got])
            left -= got
        return count

    def _receive(self, size: int) -> bytearray:
        found = bytearray(size)
        view = memoryview(found)
        while view:
            view = view[self._receive_some(view) :]
        return found

    def _receive_some(self, view: memoryview) -> int:
        """How many bytes have come, at least one."""
        self._wait()
        count = self.socket.recv_into(view)
        if not count:
            raise _WorkerLost
        return count

    def _wait(self) -> None:
        """The next operation of the socket may take what is left of the time."""
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self.socket.settimeout(left)

    def close(self) -> None:
        """End it, whatever it does."""
        self.socket.close()
        self._process.kill()
        self._process.wait()


class MediaDecoder:
    """A pool of workers. May be used from any task of one event loop.

    Args:
        workers: processes.
        memory: bytes of address space of each.
        seconds: CPU time, and deadline, of each job.
    """

    def __init__(self, workers: int, memory: int, seconds: float) -> None:
        self._workers, self._memory, self._seconds = workers, memory, seconds
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="decode")
        self._idle: LifoQueue[_Worker | None] = LifoQueue()  # so that not all of them are worn out at a time
        for _ in range(workers):
            self._idle.put(None)

    def warm_up(self) -> None:
        """Start the workers now."""
        for _ in range(self._workers):
            self._threads.submit(self._ask, {"kind": "nothing"})

    async def clip(self, path: Path, sampling: FrameSampling, name: str) -> DecodedVideo:
        """Frames of a clip; `name` is what complaints call it.

        Raises:
            DecodeError: it cannot be decoded.
        """
        wanted = {key: getattr(sampling, key) for key in FrameSampling.__slots__}
        header, arrays = await self._run({"kind": "clip", "path": str(path), "sampling": wanted}, name, path)
        return DecodedVideo(_frames(header, arrays, name), float(header.get("seconds", 0)))

    async def grid(self, path: Path, grid: WindowGrid, name: str) -> DecodedVideo:
        """The frames that sliding windows of a clip show, its last one, and when it ends; errors as `clip`."""
        wanted = {key: getattr(grid, key) for key in WindowGrid.__slots__}
        header, arrays = await self._run({"kind": "grid", "path": str(path), "grid": wanted}, name, path)
        return DecodedVideo(_frames(header, arrays, name), float(header.get("seconds", 0)))

    async def image(self, path: Path, name: str) -> ClipFrames:
        """An image as a clip of one frame; errors as `clip`."""
        header, arrays = await self._run({"kind": "image", "path": str(path)}, name, path)
        return _frames(header, arrays, name)

    async def stills(self, paths: list[Path], name: str) -> DecodedVideo:
        """Frames that the client has sampled, an image each; errors as `clip`."""
        header, arrays = await self._run({"kind": "stills", "paths": [str(path) for path in paths]}, name, *paths)
        return DecodedVideo(_frames(header, arrays, name))

    async def events(self, part: Excerpt, most: int, into: Path, name: str) -> EventColumns:
        """Decode the events of a recording to a file; of a part of one its newest.

        Args:
            part: what is to be decoded.
            most: events; of a whole recording that has more nothing is written.
            into: an empty file. If that is gone before the job's turn comes, nobody wants it any more.
            name: what complaints call the recording.

        Raises:
            DecodeError: it cannot be read, or the whole of it holds no events.
            ApiError: there is no room for the file.
        """
        job = {"kind": "events", "path": str(part.path), "format": part.format, "sensor": part.sensor}
        header, _ = await self._run(
            {**job, "start_us": part.start_us, "end_us": part.end_us, "most": most}, name, part.path, into=into
        )
        if "sensor" not in header:
            raise DecodeError(f"{name} holds no events; send a recording of the clip's moment.")
        found = [header.get("first_us"), *header["sensor"]]
        if len(found) != 3 or not all(isinstance(value, int) and abs(value) < LAST_US for value in found):
            raise DecodeError(f"{name} broke the decoder; copy it again.")
        return EventColumns(found[0], (found[1], found[2]), header.get("count"))

    async def strip(self, path: Path, seconds: float, frames: int, name: str) -> np.ndarray:
        """Frames of a recording in one picture, uint8 [H, W, 3]; see `page.strip`; errors as `clip`."""
        job = {"kind": "strip", "path": str(path), "seconds": seconds, "frames": frames}
        _, arrays = await self._run(job, name, path)
        if len(arrays) != 1 or arrays[0].dtype != np.uint8 or arrays[0].ndim != 3 or arrays[0].shape[2] != 3:
            raise DecodeError(f"{name} broke the decoder; copy it again.")
        return arrays[0]

    async def kind_of(self, path: Path, name: str) -> str:
        """`image`, `video` or `event`, by a file's bytes; errors as `clip`."""
        header, _ = await self._run({"kind": "kind", "path": str(path)}, name, path)
        return str(header.get("found"))

    async def _run(
        self, job: Mapping[str, object], name: str, *paths: Path, into: Path | None = None
    ) -> tuple[dict[str, Any], list[np.ndarray]]:
        """A reply to a job about files, which a complaint calls by `name`; its arrays may be written `into` a file."""
        loop = asyncio.get_running_loop()
        work = partial(self._ask, job) if into is None else partial(self._ask_into, into, job)
        try:
            header, arrays = await loop.run_in_executor(self._threads, work)
        except _WorkerLost:
            raise DecodeError(
                f"{name} took more than {self._seconds:g} s or more memory than is allowed to decode, or broke the "
                "decoder; send a shorter or smaller one, or re-encode it."
            ) from None
        if "error" in header:
            sentence = str(header["error"])[:1000]
            for path in paths:
                sentence = sentence.replace(str(path), name)
            raise DecodeError(sentence)
        return header, arrays

    def _ask_into(self, path: Path, job: Mapping[str, object]) -> tuple[dict[str, Any], list[np.ndarray]]:
        with path.open("r+b", buffering=0) as file:
            return self._ask(job, file)

    def _ask(self, job: Mapping[str, object], file: RawIOBase | None = None) -> tuple[dict[str, Any], list[np.ndarray]]:
        """In a thread of the pool, of which there are as many as workers."""
        worker, worn = self._idle.get(), False
        try:
            worker = worker or _Worker(self._memory, self._seconds)
            found = worker.ask(job, file)
        except BaseException:
            if worker is not None:
                worker.close()
            worker = None
            raise
        else:
            worn = worker.jobs >= MOST_JOBS
            return found
        finally:
            if worn and worker is not None:
                worker.close()
                self._replace()
            else:
                self._idle.put(worker)

    def _replace(self) -> None:
        """Start a worker while others work: whoever comes next does not wait for it, a stream's frame above all."""
        try:
            self._threads.submit(self._start)
        except RuntimeError:  # the pool is closed
            self._idle.put(None)

    def _start(self) -> None:
        """In a thread of the pool."""
        worker: _Worker | None = None
        try:
            worker = _Worker(self._memory, self._seconds)
        except (_WorkerLost, OSError):
            log.exception("A process that decodes media did not start.")
        finally:
            self._idle.put(worker)

    def close(self) -> None:
        """End all workers; a job that runs ends with its worker's deadline."""
        self._threads.shutdown(wait=True, cancel_futures=True)
        while not self._idle.empty():
            worker = self._idle.get()
            if worker is not None:
                with suppress(OSError):
                    worker.close()


def _write(file: RawIOBase, data: bytes | memoryview) -> None:
    left = memoryview(data)
    try:
        while left:
            left = left[file.write(left) or 0 :]
    except OSError as error:
        raise overloaded("The server has no room for the recording; ask again later.", "media_full") from error


def _frames(header: Mapping[str, Any], arrays: list[np.ndarray], name: str) -> ClipFrames:
    """The frames of a reply, whose shapes are checked: it comes from a process that a stranger's bytes went through."""
    if len(arrays) < 2 or not _fit(*arrays[:3]):
        raise DecodeError(f"{name} broke the decoder; re-encode it.")
    pixels, times = arrays[:2]
    indices = arrays[2] if len(arrays) > 2 else None
    notes = tuple(str(note)[:1000] for note in header.get("notes", ()))
    return FrameArrays(pixels, times, notes, indices).to_frames()


def _fit(pixels: np.ndarray, times: np.ndarray, indices: np.ndarray | None = None) -> bool:
    """Whether these are frames [U, H, W, 3], times [F], and which frame is which [F]."""
    if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[-1] != 3 or not min(pixels.shape):
        return False
    if times.dtype != np.float64 or times.ndim != 1 or not len(times) or not np.isfinite(times).all():
        return False
    if indices is None:
        return len(times) == len(pixels)
    whole = indices.dtype == np.int64 and indices.shape == times.shape
    return whole and bool(indices.min() >= 0 and indices.max() < len(pixels))
