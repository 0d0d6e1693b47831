"""Connections: a limit on their number, and deadlines for slow heads, handshakes and clients that do not read.

uvicorn has no deadlines, and its own limit counts WebSockets but no TLS handshakes; beyond it no request is answered,
not even `/health`.
"""

import asyncio
import os
import socket
from typing import Any, cast
from weakref import WeakSet

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from crossdraft.serve.gate import BEYOND
from crossdraft.serve.settings import ServerSettings

RESERVE = 16  # connections beyond the limit, for health checks alone
RESERVE_S = 1.0  # seconds in which the head must arrive on such a connection
UNREAD_S = 60  # seconds after which a client that does not read its response is disconnected


class JoinedWrites:
    """A transport that joins what is written within one turn of the event loop, and sends it at once.

    uvicorn writes the head and the body of a response separately, and each packet wakes the client, which on a busy
    machine takes the core from a task that has more to send.

    Args:
        transport: to write to.
        loop: the event loop.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._parts: list[bytes] = []
        self._closed = False

    def write(self, data: bytes) -> None:
        """Queue bytes to be sent in the next turn of the event loop."""
        if not self._parts:
            self._loop.call_soon(self.flush)
        self._parts.append(data)

    def flush(self) -> None:
        """Send all queued bytes now."""
        parts, self._parts = self._parts, []
        if parts:
            self._transport.write(b"".join(parts))

    def close(self) -> None:
        """Send queued bytes, then close; abort after a while if the client does not read them."""
        if self._closed:  # asyncio's TLS transport fails on any call once it was closed twice
            return
        self._closed = True
        self.flush()
        unread = self._transport.get_write_buffer_size()
        self._transport.close()
        if unread:
            self._loop.call_later(UNREAD_S, self._transport.abort)

    def __getattr__(self, name: str) -> Any:
        """Look up any other attribute on the transport."""
        return getattr(self._transport, name)


class DeadlineProtocol(H11Protocol):
    """uvicorn's HTTP/1.1 with deadlines: for the head, and for a client that does not read.

    Connections beyond `most` are marked in the scope's state, for the gate to refuse; those beyond `most` and the
    reserve are closed.

    Args:
        header_seconds: seconds in which the head must arrive.
        most: largest number of connections at a time, without WebSockets.
    """

    header_seconds: float
    most: int
    _deadline: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None
    _upgraded = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(cast(asyncio.Transport, JoinedWrites(transport, self.loop)))
        beyond = sum(isinstance(one, DeadlineProtocol) for one in self.connections) - self.most
        if beyond > RESERVE:
            self.transport.close()
            return
        if beyond > 0:
            self.app_state = {**self.app_state, BEYOND: True}
            self.header_seconds = min(self.header_seconds, RESERVE_S)
        self._expect()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._upgraded:
            return
        if self.cycle is None or self.cycle.response_complete:  # the head is incomplete
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


class HandshakeProtocol(WebSocketsSansIOProtocol):
    """uvicorn's WebSockets, with a deadline for the handshake and an answer to an unreadable one.

    websockets' parser has limits of its own. uvicorn is not told of a head that h11 accepted and this parser refuses:
    it would neither answer nor close the connection, and would fail at shutdown.

    Args:
        header_seconds: seconds until the handshake must be complete.
    """

    header_seconds: float
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._deadline = self.loop.call_later(self.header_seconds, self._check_open)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.handshake_exc is not None and not self.handshake_initiated:
            answer = b"".join(self.conn.data_to_send())  # empty unless the head is too long
            self.transport.write(answer or self.conn.reject(400, "The handshake cannot be read.\n").serialize())
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        if self.handshake_initiated:
            super().shutdown()
        else:  # the handshake was refused, and the client has not read the refusal
            self.transport.abort()

    def _check_open(self) -> None:
        if not self.handshake_complete:
            self.transport.abort()


def protocols(settings: ServerSettings) -> tuple[type[DeadlineProtocol], type[HandshakeProtocol]]:
    """Make the protocol classes of HTTP and of WebSockets, with the settings' deadlines and number of connections."""
    bounds = {"header_seconds": settings.header_seconds, "most": settings.connections}
    return type("HttpProtocol", (DeadlineProtocol,), bounds), type("WebSocketProtocol", (HandshakeProtocol,), bounds)


class BoundedListener(socket.socket):
    """A listening socket that counts connections from their acceptance, and closes those beyond a limit.

    Args:
        listener: a bound socket, which is shared.
        most: largest number of open connections of all kinds, TLS handshakes included.
    """

    def __init__(self, listener: socket.socket, most: int) -> None:
        super().__init__(listener.family, listener.type, listener.proto, os.dup(listener.fileno()))
        self._most, self._accepted = most, WeakSet[socket.socket]()

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept the next connection.

        Raises:
            ConnectionAbortedError: the connection was closed at once; asyncio goes on to others.
        """
        found, address = super().accept()
        if sum(one.fileno() >= 0 for one in self._accepted) >= self._most:
            found.close()
            raise ConnectionAbortedError
        self._accepted.add(found)
        return found, address


class ServerLoop(asyncio.SelectorEventLoop):
    """An event loop whose servers count connections when they are accepted, and limit the time of a TLS handshake.

    asyncio allows a handshake a minute, and uvicorn learns of a connection only after it.

    Args:
        settings: settings of the server.
    """

    def __init__(self, settings: ServerSettings) -> None:
        super().__init__()
        self._settings = settings

    async def create_server(self, *arguments: Any, **options: Any) -> asyncio.Server:  # type: ignore[override]
        most = self._settings.connections + RESERVE + self._settings.edges + self._settings.streams
        options["sock"] = BoundedListener(options["sock"], most)
        if options.get("ssl") is not None:
            options["ssl_handshake_timeout"] = self._settings.header_seconds
        return await super().create_server(*arguments, **options)
