"""Bytes that a program such as ffmpeg sends to an address of this machine, as a file that is read."""

import socket
import threading
import time
from contextlib import suppress

from crossdraft.streams.live.address import LiveAddress
from crossdraft.streams.live.source import POLL_S

DATAGRAM = 1 << 16
BUFFER = 1 << 22  # bytes that the system may hold unread, if it allows as much


class IncomingBytes:
    """One sender at a time: a connection of TCP, or the datagrams of UDP of one origin; others wait or are ignored.

    Args:
        address: of the kind "tcp" or "udp", to listen at; port 0 = any, see `port`.
        silent_s: seconds without a byte after which the sender counts as gone.
        stopped: once it is set, waits and reads end.

    Raises:
        OSError: the address cannot be listened at.
    """

    def __init__(self, address: LiveAddress, silent_s: float, stopped: threading.Event) -> None:
        where, family = (address.host, address.port), socket.AF_INET6 if ":" in address.host else socket.AF_INET
        self._silent_s, self._stopped = silent_s, stopped
        self._held, self._origin, self._lost = b"", None, False
        self._sender: socket.socket | None = None  # of TCP
        if address.kind == "tcp":
            self._socket = socket.create_server(where, family=family, backlog=1)
        else:
            self._socket = socket.socket(family, socket.SOCK_DGRAM)
            try:
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
                self._socket.bind(where)
            except OSError:
                self.close()
                raise
        self._socket.settimeout(POLL_S)
        self.port = int(self._socket.getsockname()[1])

    def wait(self) -> bool:
        """Wait for a sender's first bytes; return false once stopped."""
        while not self._stopped.is_set():
            self._hang_up()
            with suppress(OSError):  # a timeout, or a sender that is gone already
                if self._socket.type == socket.SOCK_STREAM:
                    self._sender, _ = self._socket.accept()
                    self._sender.settimeout(POLL_S)
                    self._held = self.read(DATAGRAM)
                else:
                    self._held, self._origin = self._socket.recvfrom(DATAGRAM)
                if self._held:
                    return True
        return False

    def read(self, size: int) -> bytes:
        """Return what is there, at most `size` bytes; none once the sender has hung up, or this is stopped.

        Raises:
            TimeoutError: the sender is lost, or silent for too long.
        """
        until = time.monotonic() + self._silent_s
        while not (self._held or self._lost or self._stopped.is_set()):
            try:
                if self._sender is not None:
                    return self._sender.recv(size)
                data, origin = self._socket.recvfrom(DATAGRAM)
                self._held = data if origin == self._origin else b""
            except OSError as error:
                self._lost = not isinstance(error, TimeoutError)
            if self._lost or (not self._held and time.monotonic() > until):
                self._lost = True
                raise TimeoutError  # once: FFmpeg may read on, and finds the end
        data, self._held = self._held[:size], self._held[size:]
        return data

    def _hang_up(self) -> None:
        self._held, self._lost = b"", False
        if self._sender is not None:
            self._sender.close()
            self._sender = None

    def close(self) -> None:
        """Let the sender go, and listen no more."""
        self._hang_up()
        self._socket.close()
