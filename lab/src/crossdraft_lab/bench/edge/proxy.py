"""A slow network in this process: a TCP proxy that delays packets, limits their rate, and cuts connections."""

import asyncio
import random
import threading
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

CHUNK = 1 << 14
CUT_S = 0.002


@dataclass(frozen=True)
class Network:
    """Properties of the network between two ends.

    Args:
        rtt_s: seconds of the round trip; half of it each way.
        jitter_s: largest additional delay each way, drawn for every packet; no packet overtakes another.
        bits_per_s: rate each way; `None` = unlimited.
    """

    rtt_s: float = 0.0
    jitter_s: float = 0.0
    bits_per_s: float | None = None


class DelayingProxy:
    """Proxy that listens on loopback and passes on what comes. Use as a context manager.

    Args:
        upstream: address to connect to; it may be replaced, for connections to come.
        network: the network that is simulated; it may be replaced at any time.
        seed: seed of the jitter.
    """

    def __init__(self, upstream: tuple[str, int], network: Network | None = None, seed: int = 0) -> None:
        self.network = network or Network()
        self.connections = 0  # number of connections made so far
        self.cut_after: int | None = None  # bytes from upstream after which all connections are cut, once
        self.upstream, self._random = upstream, random.Random(seed)  # noqa: S311 - a jitter is no secret
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    @property
    def address(self) -> str:
        """Address of the proxy, for an edge."""
        if self._server is None:
            raise ValueError("The proxy does not run.")
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"ws://{host}:{port}"

    def cut(self) -> None:
        """End all connections at once; neither end is told."""
        self._loop.call_soon_threadsafe(self._abort)

    def __enter__(self) -> Self:
        self._thread.start()
        self._server = self._do(asyncio.start_server(self._serve, "127.0.0.1", 0))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._do(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    async def _end(self) -> None:
        if self._server is not None:
            self._server.close()
        self._abort()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _abort(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        upstream: asyncio.StreamWriter | None = None
        try:
            far, upstream = await asyncio.open_connection(*self.upstream)
            self._writers |= {writer, upstream}
            pumps = [self._begin(self._pump(*ends)) for ends in ((reader, upstream, False), (far, writer, True))]
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait(pumps, timeout=1)
        except OSError:
            pass
        finally:
            for one in (writer, upstream):
                if one is not None:
                    self._writers.discard(one)
                    one.transport.abort()

    def _begin(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, down: bool) -> None:
        """Pass on what is read, each packet when it is due."""
        queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        sending = self._begin(self._send(queue, writer, down))
        free = due = 0.0  # times at which the line is free again, and the last packet has arrived
        with suppress(OSError):
            while data := await reader.read(CHUNK):
                network, now = self.network, self._loop.time()
                free = max(free, now) + (0.0 if network.bits_per_s is None else 8 * len(data) / network.bits_per_s)
                due = max(due, free + network.rtt_s / 2 + self._random.uniform(0.0, network.jitter_s))
                queue.put_nowait((due, data))
        queue.put_nowait((due, b""))
        await sending

    async def _send(
        self, queue: "asyncio.Queue[tuple[float, bytes]]", writer: asyncio.StreamWriter, down: bool
    ) -> None:
        with suppress(OSError):
            while True:
                due, data = await queue.get()
                if (left := due - self._loop.time()) > 0:
                    await asyncio.sleep(left)
                if not data:
                    writer.close()
                    return
                writer.write(data)
                await writer.drain()
                if down and self.cut_after is not None:
                    self.cut_after -= len(data)
                    if self.cut_after <= 0:
                        self.cut_after = None
                        await asyncio.sleep(CUT_S)  # what was sent is read
                        self._abort()
