"""One decoding process, and its jobs; `serve.decode` has a pool of such processes."""

import json
import math
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from io import RawIOBase
from pathlib import Path
from typing import IO, Any, cast

import numpy as np

import crossdraft
from crossdraft.events.npy import COLUMNS, column_header
from crossdraft.serve.errors import overloaded
from crossdraft.video.limits import DEFAULT_LIMITS

DTYPES = {"uint8": np.uint8, "uint16": np.uint16, "int64": np.int64, "float64": np.float64}
MOST_HEADER = 1 << 20  # bytes of a reply's JSON
MOST_ARRAY = 3 * DEFAULT_LIMITS.held  # bytes
MOST_COLUMN = 1 << 25  # events in a column
EVENT_BYTES = sum(np.dtype(dtype).itemsize for dtype in COLUMNS.values())
AT_ONCE = 1 << 18  # bytes of columns that are written to a file at once
START_S = 60.0  # seconds for a worker to start
MOST_SAID = 1 << 16  # bytes of a failed worker's output that are read; a pipe holds as many


class DecoderLost(Exception):
    """A worker that ended, was late or answered nonsense."""


class DecoderNotStarted(Exception):
    """A worker ended before it took a job, or could not be started at all; the message is for the log."""


class DecodeProcess:
    """One process and the socket to it.

    Raises:
        DecoderNotStarted: the process did not start.
    """

    def __init__(self, memory: int, seconds: float) -> None:
        ours, theirs = socket.socketpair()
        package = str(Path(crossdraft.__file__).parents[1])
        paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
        kept = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH", "HOME", "TMPDIR") if name in os.environ}
        command = [sys.executable, "-P", "-m", "crossdraft.serve.decode_worker"]
        numbers = (theirs.fileno(), memory, math.ceil(seconds))
        self.socket, self.jobs = ours, 0
        try:
            with theirs:
                self._process = subprocess.Popen(
                    [*command, *map(str, numbers)],
                    pass_fds=(theirs.fileno(),),
                    process_group=0,  # so that a terminal's Ctrl-C goes to the server alone
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,  # until it has started
                    env={**kept, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"},
                )
        except OSError as error:
            ours.close()
            raise DecoderNotStarted(str(error)) from error
        with cast(IO[bytes], self._process.stderr) as said:
            try:
                self._until = time.monotonic() + START_S
                self._receive(1)  # it has started
            except (DecoderLost, OSError) as error:
                self.close()  # so that its output ends
                text = os.read(said.fileno(), MOST_SAID).decode(errors="replace")
                why = f"{type(error).__name__}, status {self._process.returncode}; {text.strip()}"
                raise DecoderNotStarted(why) from None
            except BaseException:
                self.close()
                raise
        self._seconds = seconds

    def ask(self, job: Mapping[str, object], file: RawIOBase | None = None) -> tuple[dict[str, Any], list[np.ndarray]]:
        """Send a job and return its reply; with a `file`, the arrays are columns of events and are written to it.

        Raises:
            DecoderLost: no reply came; the worker cannot be used any more.
            ApiError: the disk is full, and the worker cannot be used any more.
        """
        self.jobs += 1
        self._until = time.monotonic() + self._seconds  # one deadline for all of the job's reply
        try:
            self._wait()
            sent = json.dumps(job).encode()
            self.socket.sendall(struct.pack("<I", len(sent)) + sent)
            size = struct.unpack("<I", self._receive(4))[0]
            if size > MOST_HEADER:
                raise DecoderLost
            header = json.loads(self._receive(size))
            described = header.get("arrays", ())
            if file is not None:
                return header | {"count": self._write_columns(described, file) if described else None}, []
            return header, [self._array(one) for one in described]
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise DecoderLost from None

    def _array(self, described: Mapping[str, Any]) -> np.ndarray:
        dtype, shape = np.dtype(DTYPES[described["dtype"]]), tuple(described["shape"])
        whole = all(isinstance(size, int) and size >= 0 for size in shape)
        if not whole or len(shape) > 4 or math.prod(shape) * dtype.itemsize > MOST_ARRAY:
            raise DecoderLost
        return np.frombuffer(self._receive(math.prod(shape) * dtype.itemsize), dtype).reshape(shape)

    def _write_columns(self, described: Sequence[Mapping[str, Any]], file: RawIOBase) -> int:
        """Check columns of events and write them as they come to a `.npy` that can be mapped; return their length."""
        (count,) = described[0]["shape"]
        wanted = [(np.dtype(dtype).name, [count]) for dtype in COLUMNS.values()]
        if [(one["dtype"], one["shape"]) for one in described] != wanted or not 0 <= int(count) <= MOST_COLUMN:
            raise DecoderLost
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
        """Receive at least one byte; return the number of bytes."""
        self._wait()
        count = self.socket.recv_into(view)
        if not count:
            raise DecoderLost
        return count

    def _wait(self) -> None:
        """Set the socket's timeout to the time that is left."""
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self.socket.settimeout(left)

    @property
    def alive(self) -> bool:
        """True if the process runs."""
        return self._process.poll() is None

    def kill(self) -> None:
        """Kill the process; a caller that waits for the reply gets `DecoderLost`.

        May be called from any thread.
        """
        self._process.kill()

    def close(self) -> None:
        """Kill the process and close its socket."""
        with suppress(OSError):
            self.socket.close()
        self.kill()
        self._process.wait()


class DecodeJob:
    """A job for a worker; its request may be over before the reply comes.

    Args:
        asked: the job as `decode_worker` takes it.
        into: an empty file for a reply of columns.
    """

    def __init__(self, asked: Mapping[str, object], into: Path | None = None) -> None:
        self._asked, self._into = asked, into
        self._lock = threading.Lock()  # guards the next two
        self._worker: DecodeProcess | None = None
        self.stopped = False

    def done_by(self, worker: DecodeProcess) -> tuple[dict[str, Any], list[np.ndarray]]:
        """Let a worker do the job; return the reply. Errors as `DecodeProcess.ask`, and of opening the file."""
        if self._into is None:
            return self._reply(worker, None)
        with self._into.open("r+b", buffering=0) as file:
            return self._reply(worker, file)

    def _reply(self, worker: DecodeProcess, file: RawIOBase | None) -> tuple[dict[str, Any], list[np.ndarray]]:
        with self._lock:
            if self.stopped:
                raise DecoderLost
            self._worker = worker
        try:
            return worker.ask(self._asked, file)
        finally:
            with self._lock:  # from here on the worker may have another job
                self._worker = None

    @property
    def runs(self) -> bool:
        """True if a worker runs the job."""
        return self._worker is not None

    def stop(self) -> bool:
        """Cancel the job; returns True if a worker had to be killed."""
        with self._lock:
            self.stopped = True
            if self._worker is not None:
                self._worker.kill()
            return self.runs


def _write(file: RawIOBase, data: bytes | memoryview) -> None:
    left = memoryview(data)
    try:
        while left:
            left = left[file.write(left) or 0 :]
    except OSError as error:
        raise overloaded("The server has no room for the recording; ask again later.", "media_full") from error
