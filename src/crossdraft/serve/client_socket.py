"""A client's WebSocket: a client that goes away, or does not read, is no server error; limits on its messages."""

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass, field

from starlette.types import Message
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

NORMAL, GOING_AWAY, POLICY_VIOLATION, TRY_AGAIN = 1000, 1001, 1008, 1013  # codes of WebSocket
UNREAD_S = 60.0  # seconds after which a client that does not read counts as gone
CLOSE_S = 5.0  # seconds for the closing frame, which such a client does not read either


class ClientSocket:
    """WebSocket of a client.

    A client that is gone always raises `WebSocketDisconnect`: for a send or receive that comes too late, starlette and
    uvicorn raise a `RuntimeError` instead, which elsewhere is a server error.

    Args:
        socket: starlette's WebSocket.
    """

    def __init__(self, socket: WebSocket) -> None:
        self._socket = socket

    async def accept(self) -> None:
        """Accept the connection."""
        await self._socket.accept()

    async def receive(self) -> Message:
        """Receive the next message.

        Raises:
            WebSocketDisconnect: the client is gone.
        """
        try:
            message = await self._socket.receive()
        except RuntimeError:
            raise WebSocketDisconnect(GOING_AWAY) from None
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message.get("code", 1005))
        return message

    async def send(self, data: str | bytes) -> None:
        """Send a message, of text or of bytes.

        Raises:
            WebSocketDisconnect: the client is gone, or has not read for long.
        """
        send = self._socket.send_text(data) if isinstance(data, str) else self._socket.send_bytes(data)
        try:
            await asyncio.wait_for(send, UNREAD_S)
        except (RuntimeError, TimeoutError):
            raise WebSocketDisconnect(GOING_AWAY) from None

    async def close(self, code: int) -> None:
        """Close the connection with a code; do nothing if it is closed, or the client does not read."""
        if self._socket.application_state is WebSocketState.CONNECTED:
            with suppress(WebSocketDisconnect, RuntimeError, TimeoutError):
                await asyncio.wait_for(self._socket.close(code), CLOSE_S)


@dataclass
class FrameRate:
    """A rate limit: at most `most` frames, or bytes, a second, and as many in one burst."""

    most: int
    left: float = field(init=False)
    since: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.left = float(self.most)

    def passes(self, count: int = 1) -> bool:
        """True if `count` more may come now."""
        now = time.monotonic()
        self.left = min(float(self.most), self.left + (now - self.since) * self.most)
        self.since = now
        self.left -= count
        return self.left >= 0
