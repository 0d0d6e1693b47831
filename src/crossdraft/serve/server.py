"""The network: uvicorn, with deadlines for slow heads and clients that do not read, and an orderly end."""

import asyncio
import logging
import signal
import socket
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any, Protocol, cast

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from crossdraft.serve.app import create_app
from crossdraft.serve.gate import BEYOND, MOST_HEAD
from crossdraft.serve.service import Service
from crossdraft.serve.settings import ServerSettings
from crossdraft.serve.tls import server_context
from crossdraft.streams.messages import MESSAGE_BYTES

log = logging.getLogger("crossdraft.serve")

IDLE_S = 5  # of a connection between two requests
POLL_S = 0.05
UNREAD_S = 60  # after which a client that does not read what it asked for is hung up on


class JoinedWrites:
    """A transport that sends what is written within one turn of the event loop at once.

    uvicorn writes the head and the body of a response apart, and each packet wakes the client, which on a busy machine
    takes the core from whoever has more to send.

    Args:
        transport: to write to.
        loop: the event loop.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._parts: list[bytes] = []
        self._closed = False

    def write(self, data: bytes) -> None:
        """Send, soon."""
        if not self._parts:
            self._loop.call_soon(self.flush)
        self._parts.append(data)

    def flush(self) -> None:
        """Send now."""
        parts, self._parts = self._parts, []
        if parts:
            self._transport.write(b"".join(parts))

    def close(self) -> None:
        """Send what is left, then close; at once if nobody reads it."""
        if self._closed:  # asyncio's TLS transport cannot be asked for anything once it was closed twice
            return
        self._closed = True
        self.flush()
        unread = self._transport.get_write_buffer_size()
        self._transport.close()
        if unread:
            self._loop.call_later(UNREAD_S, self._transport.abort)

    def __getattr__(self, name: str) -> Any:
        """Everything else is the transport's own."""
        return getattr(self._transport, name)


class DeadlineProtocol(H11Protocol):
    """uvicorn's HTTP/1.1 with deadlines, of which uvicorn has none: for the head, and for whoever does not read.

    Connections beyond `most` are marked in the scope's state, for the gate to refuse: uvicorn's own limit counts
    WebSockets, too, and answers nobody, not even `/health`, in a shape of its own.

    Args:
        header_seconds: for the head.
        most: connections at a time, WebSockets excepted.
    """

    header_seconds: float
    most: int
    _deadline: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None
    _upgraded = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(cast(asyncio.Transport, JoinedWrites(transport, self.loop)))
        if sum(isinstance(one, DeadlineProtocol) for one in self.connections) > self.most:
            self.app_state = {**self.app_state, BEYOND: True}
        self._expect()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._upgraded:
            return
        if self.cycle is None or self.cycle.response_complete:  # the head is not whole
            self._expect()
        else:
            self._relax()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        self._upgraded = True
        self._relax()
        super().handle_websocket_upgrade(event)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self.loop.call_later(UNREAD_S, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._read()

    def connection_lost(self, exc: Exception | None) -> None:
        self._relax()
        self._read()
        super().connection_lost(exc)

    def _read(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _expect(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(self.header_seconds, self.transport.close)

    def _relax(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def protocol(header_seconds: float, most: int) -> type[DeadlineProtocol]:
    """The protocol with these seconds for a head, and so many connections."""
    return type("Protocol", (DeadlineProtocol,), {"header_seconds": header_seconds, "most": most})


class HandshakeLoop(asyncio.SelectorEventLoop):
    """An event loop whose servers end a TLS handshake that takes long; asyncio gives it a minute, uvicorn says nothing.

    Args:
        seconds: for a handshake.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds

    async def create_server(self, *arguments: Any, **options: Any) -> asyncio.Server:  # type: ignore[override]
        if options.get("ssl") is not None:
            options["ssl_handshake_timeout"] = self._seconds
        return await super().create_server(*arguments, **options)


class Drained(Protocol):
    """What a server needs of what it serves, to end in order: a `Service`, or what passes requests on.

    `draining` is set once no more requests are to be taken.
    """

    draining: bool

    @property
    def settings(self) -> ServerSettings: ...

    @property
    def active(self) -> int:
        """Answers that run."""
        ...

    def stop(self) -> None:
        """End what runs, with an error."""
        ...


class DrainingServer(uvicorn.Server):
    """On SIGTERM, and on Ctrl-C, the server takes no more requests, ends those that run, and leaves with status 0.

    While it drains it still listens, so that `/ready` and new requests are answered 503. A second signal, and the
    deadline, end what is left with an error.
    """

    def __init__(self, config: uvicorn.Config, service: Drained) -> None:
        super().__init__(config)
        self._service = service
        self._draining: asyncio.Task[None] | None = None
        self._hurried = False

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until it is told to end."""
        with asyncio.Runner(loop_factory=partial(HandshakeLoop, self._service.settings.header_seconds)) as runner:
            runner.run(self.serve(sockets=sockets))

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Our handlers while it runs; uvicorn would raise the signal again afterwards, and the status would be its."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        handled = (signal.SIGTERM, signal.SIGINT)
        before = {number: signal.signal(number, self.handle_exit) for number in handled}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal."""
        # A handler runs in the midst of anything, locks of the engine's held: what it asks for is done by `_drain`.
        self._hurried = self._service.draining
        self._service.draining = True

    async def on_tick(self, counter: int) -> bool:
        """Called every tenth of a second."""
        if self._service.draining and self._draining is None:
            self._draining = asyncio.create_task(self._drain())
        return await super().on_tick(counter)

    async def _drain(self) -> None:
        seconds = self._service.settings.drain_seconds
        log.info("shutting down: no more requests, %s run", self._service.active)
        until = asyncio.get_running_loop().time() + seconds
        while self._service.active and not self._hurried and asyncio.get_running_loop().time() < until:
            await asyncio.sleep(POLL_S)
        if self._service.active:
            log.warning("%s requests did not end in time", self._service.active)
            await asyncio.to_thread(self._service.stop)
        self.should_exit = True


def bound_socket(host: str, port: int) -> socket.socket:
    """A bound socket; errors as `OSError`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = socket.create_server((host, port), family=family, backlog=128)
    # Connections inherit it. asyncio sets it only on sockets that name their protocol, which these do not; without it
    # the body of a response may wait 40 ms for the acknowledgement of its head.
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return found


def configured(service: Service) -> uvicorn.Config:
    """uvicorn's settings for a service."""
    return config_of(create_app(service), service.settings)


def config_of(app: ASGIApp, settings: ServerSettings) -> uvicorn.Config:
    """uvicorn's settings for an application."""
    tls = server_context(settings)
    return uvicorn.Config(
        app,
        http=protocol(settings.header_seconds, settings.connections),
        ws="websockets-sansio",
        ws_max_size=MESSAGE_BYTES,
        ws_per_message_deflate=False,
        loop="asyncio",
        ssl_context_factory=None if tls is None else lambda config, default: tls,
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=IDLE_S,
        timeout_graceful_shutdown=5,
        h11_max_incomplete_event_size=MOST_HEAD,
        proxy_headers=False,
    )


def run(service: Drained, config: uvicorn.Config, sockets: list[socket.socket], started: Callable[[], None]) -> None:
    """Serve until a signal."""
    server = DrainingServer(config, service)
    started()
    server.run(sockets)
