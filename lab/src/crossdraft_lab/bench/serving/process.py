"""A server in a process of its own, as `crossdraft serve` starts it, and a plain client for it.

The client reads and writes bytes on a socket, so that no client library adds to the server's times.
"""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from crossdraft.errors import CrossdraftError
from crossdraft_lab.bench.resources import PROC, descendants, resident_mib

STARTED = re.compile(r".* on http://127\.0\.0\.1:(\d+) ")
# An error with the traceback below it, or a plain traceback, as from a thread or child; not the second one of a chain.
LOGGED_ERROR = re.compile(
    r"^(?:[\d-]+ [\d:]+ (?:error|critical) .*(?:\nTraceback .*)?|(?<!:\n\n)Traceback .*)$", re.MULTILINE
)
WAIT_S = 120.0
LEASHED = (sys.executable, "-m", "crossdraft_lab.bench.serving.leashed")
CHUNK = 1 << 16


@dataclass(frozen=True, slots=True)
class Reply:
    """A response; `retry_s` is its `Retry-After`."""

    status: int
    body: bytes
    retry_s: float = 0.0

    @property
    def json(self) -> Any:
        """Body of the response, parsed as JSON."""
        return json.loads(self.body)


class Connection:
    """A kept connection to a server on loopback. Use as a context manager.

    Args:
        port: port of the server.
        wait_s: longest silence of the server.

    Attributes:
        hung_up: true once the server was seen to close the connection; set by `until_silent` alone.
    """

    def __init__(self, port: int, wait_s: float = WAIT_S) -> None:
        self._port, self._wait_s, self.hung_up = port, wait_s, False
        self._socket = self._connected()

    def _connected(self) -> socket.socket:
        found = socket.create_connection(("127.0.0.1", self._port), self._wait_s)
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def request(self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> Reply:
        """Send a request and read its response; on a new connection if the server has closed this one in between.

        Raises:
            OSError: the server cannot be reached, or hangs up in the midst.
        """
        try:
            self.send(method, path, body, headers)
            return self._reply()
        except (BrokenPipeError, ConnectionResetError, EOFError):
            self._socket.close()
            self._socket = self._connected()
            self.send(method, path, body, headers)
            return self._reply()

    def send(self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> None:
        """Send a request."""
        lines = [f"{method} {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in (headers or {"Content-Type": "application/json"}).items()]
        self._socket.sendall("\r\n".join([*lines, "", ""]).encode("latin-1") + body)

    def send_raw(self, sent: bytes) -> None:
        """Send bytes unchanged, without making a request of them."""
        self._socket.sendall(sent)

    def until_silent(self, seconds: float, whole: Callable[[bytes], bool]) -> bytes:
        """Receive until the bytes are `whole`, the server hangs up, or nothing comes for `seconds`."""
        found = b""
        self._socket.settimeout(seconds)
        with suppress(TimeoutError):
            while not whole(found):
                try:
                    part = self._socket.recv(CHUNK)
                except ConnectionError:
                    part = b""
                if not part:
                    self.hung_up = True
                    break
                found += part
        return found

    def end_sending(self) -> None:
        """End the sending side; replies of the server can still be read."""
        with suppress(OSError):  # it has hung up
            self._socket.shutdown(socket.SHUT_WR)

    def read_some(self) -> bytes:
        """Receive the next bytes of a response."""
        return self._socket.recv(CHUNK)

    def _reply(self) -> Reply:
        """Read a response with a content length: every response except a stream."""
        found = b""
        while b"\r\n\r\n" not in found:
            found += self._more()
        head, _, body = found.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        while len(body) < int(headers.get("content-length", 0)):
            body += self._more()
        if headers.get("connection") == "close":
            self._socket.close()
            self._socket = self._connected()
        return Reply(int(first.split(" ", 2)[1]), body, float(headers.get("retry-after", 0)))

    def _more(self) -> bytes:
        part = self._socket.recv(CHUNK)
        if not part:
            raise EOFError
        return part


class PerThread:
    """A connection to a server on loopback for each thread."""

    def __init__(self, port: int) -> None:
        self._port, self._local, self._all = port, threading.local(), list[Connection]()

    def get(self) -> Connection:
        """Return the connection of the calling thread."""
        if not hasattr(self._local, "connection"):
            self._local.connection = Connection(self._port)
            self._all.append(self._local.connection)
        return self._local.connection

    def close(self) -> None:
        """Close the connections of all threads."""
        for one in self._all:
            one.__exit__()


@dataclass(frozen=True, slots=True)
class ServerProcess:
    """A running `crossdraft serve`.

    Args:
        pid: process id.
        port: port on loopback.
        temporary: its folder for temporary files.
        log: the server's log file.
    """

    pid: int
    port: int
    temporary: Path
    log: Path

    def connection(self) -> Connection:
        """A new connection."""
        return Connection(self.port)

    def gauges(self) -> dict[str, float]:
        """Read the values that `/metrics` shows without labels but the model's."""
        with self.connection() as connection:
            text = connection.request("GET", "/metrics").body.decode()
        found = re.findall(r'^crossdraft:(\w+)\{model_name="[^"]*"\} (\S+)$', text, re.MULTILINE)
        return {name: float(value) for name, value in found}

    def logged_errors(self) -> int:
        """Failures that the server and its threads and children have logged; complete once the server has ended."""
        return len(LOGGED_ERROR.findall(self.log.read_text(encoding="utf-8", errors="replace")))

    def spooled(self) -> int:
        """Number of files that hold bodies of requests."""
        return sum(1 for _ in self.temporary.glob("crossdraft-serve-*/spool/*"))

    def recordings(self) -> int:
        """Number of files of decoded recordings, those kept for later requests included."""
        return sum(1 for _ in self.temporary.glob("crossdraft-serve-*/recordings/*"))

    def resident_mib(self) -> float:
        """Resident memory of the server and all its descendants."""
        return sum(map(resident_mib, [self.pid, *descendants(self.pid)]))

    def drafters(self) -> list[int]:
        """Process ids of the drafter: all descendants of the server except those that decode media."""
        return [pid for pid in descendants(self.pid) if not _decodes(pid)]


def _decodes(pid: int) -> bool:
    with suppress(OSError):
        return b"decode_worker" in (PROC / str(pid) / "cmdline").read_bytes()
    return True  # it has just ended


def free_port() -> int:
    """A port on loopback that no server uses at the moment."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def await_health(process: subprocess.Popen[Any], port: int, log: Path, whose: str, seconds: float) -> None:
    """Wait until a server that was just started answers under /health; a `CrossdraftError` if it does not."""
    until = time.monotonic() + seconds
    while time.monotonic() < until and process.poll() is None:
        with suppress(OSError, EOFError), Connection(port) as connection:
            if connection.request("GET", "/health").status == 200:
                return
        time.sleep(0.1)
    raise CrossdraftError(f"{whose} did not start; the end of what it said:\n{log.read_text(errors='replace')[-2000:]}")


@contextmanager
def serving(arguments: Sequence[str], folder: Path) -> Iterator[ServerProcess]:
    """Run a server while the context is open; then it is told to end, and must do so with status 0.

    Args:
        arguments: arguments of `crossdraft serve`.
        folder: folder for its log and its temporary files.

    Raises:
        CrossdraftError: the server does not start, or does not end properly.
    """
    temporary, log = folder / "temporary", folder / "serve.log"
    temporary.mkdir()
    command, environment = [*LEASHED, "serve", "--port", "0", *arguments], os.environ | {"TMPDIR": str(temporary)}
    with log.open("wb") as records:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=records, text=True, env=environment
        )
    try:
        line = process.stdout.readline() if process.stdout is not None else ""
        started = STARTED.match(line)
        if started is None:
            why = log.read_text().strip().removeprefix("crossdraft: ") or line
            raise CrossdraftError(f"The server did not start: {why}")
        yield ServerProcess(process.pid, int(started[1]), temporary, log)
        process.send_signal(signal.SIGTERM)
        status = process.wait(WAIT_S)
        if status != 0:
            raise CrossdraftError(
                f"The server left with status {status}, not 0; see what it logged:\n{log.read_text()}"
            )
    finally:
        process.kill()
        process.wait()
