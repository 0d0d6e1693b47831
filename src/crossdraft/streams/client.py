"""The client's end of `/v1/watch`: ask about a stream that is pushed from here, and read what the server says."""

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from typing import Any, Self

from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
from websockets.sync.client import ClientConnection

from crossdraft.edge.tls import TlsFiles
from crossdraft.edge.websocket import ServerAddress
from crossdraft.errors import CrossdraftError
from crossdraft.streams.messages import ROUTE, SCHEMA, Pushed

SILENT_S = 20.0  # after which the server is gone: it says something every second
MOST_MESSAGE = 1 << 22  # bytes


class WatchClient:
    """A connection for one stream. Frames may be pushed in one thread while another reads; close it.

    Args:
        server: its address, ws://… or wss://….
        key: API key, if the server asks for one.
        tls: certificates, for wss://….
    """

    def __init__(self, server: str, key: str | None = None, tls: TlsFiles = TlsFiles()) -> None:  # noqa: B008 - frozen
        self._address = ServerAddress(server, ROUTE, key, tls)
        self._held = ExitStack()
        self._connection: ClientConnection | None = None
        self._error: Exception | None = None

    def open(self, asked: Mapping[str, object]) -> int:
        """Connect and ask (see `WatchRequest`); return how many frames a window has.

        Raises:
            CrossdraftError: the server cannot be reached, is full, or refuses the key or what is asked.
        """
        try:
            self._connection = self._held.enter_context(self._address.connect(MOST_MESSAGE))
        except InvalidStatus as error:
            absent = f"No streams are watched at {self._address}; check its name, and which server runs there."
            raise self._address.refusal(error.response.status_code, absent) from None
        except (InvalidHandshake, OSError, EOFError) as error:
            raise CrossdraftError(
                f"The server {self._address} cannot be reached ({error}); check the address, and the certificates."
            ) from None
        self._send(json.dumps(asked))
        started = next(self.messages())
        return int(started["frames"])

    def push(self, message: Pushed) -> None:
        """Send a message; once the connection is over nothing is sent, and the reading side learns why."""
        self._send(SCHEMA.encode(message))

    def _send(self, data: str | bytes) -> None:
        if self._connection is not None:
            with suppress(ConnectionClosed, OSError):
                self._connection.send(data)

    def messages(self) -> Iterator[dict[str, Any]]:
        """Yield the server's messages until the stream is over.

        Raises:
            CrossdraftError: it refuses something, or is lost; or as `fail` was told.
        """
        while self._connection is not None:
            try:
                message = json.loads(self._connection.recv(SILENT_S))
            except (ConnectionClosed, OSError, TimeoutError, EOFError, ValueError) as error:
                lost = CrossdraftError(f"The server {self._address} is lost ({error}); connect anew.")
                raise self._error or lost from None
            if message["type"] == "error":
                raise CrossdraftError(str(message["error"]["message"]))
            yield message
            if message["type"] == "summary":
                return

    def fail(self, error: Exception | None) -> None:
        """End the connection if what pushes has failed: `messages` raises its error."""
        if error is not None:
            self._error = error
            self.close()

    def close(self) -> None:
        """End the connection."""
        self._held.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
