"""Bytes that a program such as ffmpeg sends to an address of this machine, as a file that is read."""

import socket
import threading
import time

POLL_S = 0.1  # between two looks whether it is stopped
DATAGRAM = 1 << 16
BUFFER = 1 << 22  # bytes that the system may hold of what is not read yet, if it allows as much


class IncomingBytes:
    """One sender at a time: a connection of TCP, or the datagrams of UDP of one origin; others wait or are ignored.

    Args:
        kind: "tcp" or "udp".
        address: host and port to listen at; port 0 = any, see `port`.
        silent_s: seconds without a byte after which the sender counts as gone.
        stopped: once it is set, waits and reads end.

    Attributes:
        port: port that is listened at.
        silent: true if the sender was silent for too long.

    Raises:
        OSError: the address cannot be listened at.
    """

    def __init__(self, kind: str, address: tuple[str, int], silent_s: float, stopped: threading.Event) -> None:
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._udp = kind == "udp"
        self._socket = socket.socket(family, socket.SOCK_DGRAM if self._udp else socket.SOCK_STREAM)
        try:
            if self._udp:
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
            else:
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind(address)
            if not self._udp:
                self._socket.listen(1)
        except OSError:
            self._socket.close()
            raise
        self._socket.settimeout(POLL_S)
        self._silent_s, self._stopped = silent_s, stopped
        self._held = b""
        self._sender: socket.socket | None = None  # of TCP
        self._origin: object = None  # of UDP
        self.port, self.silent = int(self._socket.getsockname()[1]), False

    def wait(self) -> bool:
        """Wait for a sender's first bytes; return false once stopped."""
        while not self._stopped.is_set():
            self.hang_up()
            try:
                if self._udp:
                    self._held, self._origin = self._socket.recvfrom(DATAGRAM)
                else:
                    self._sender, _ = self._socket.accept()
                    self._sender.settimeout(POLL_S)
                    self._held = self.read(DATAGRAM)
            except OSError:  # a timeout, or a sender that is gone already
                continue
            if self._held:
                return True
        return False

    def read(self, size: int) -> bytes:
        """Return what is there, at most `size` bytes; none once the sender is gone, is silent, or this is stopped."""
        until = time.monotonic() + self._silent_s
        while not self._held and not self._stopped.is_set():
            if time.monotonic() > until:
                self.silent = True
                break
            try:
                if self._sender is not None:
                    return self._sender.recv(size)
                data, origin = self._socket.recvfrom(DATAGRAM)
                self._held = data if origin == self._origin else b""
            except TimeoutError:
                continue
            except OSError:
                return b""
        data, self._held = self._held[:size], self._held[size:]
        return data

    def hang_up(self) -> None:
        """Let the sender go."""
        self._held, self._origin, self.silent = b"", None, False
        if self._sender is not None:
            self._sender.close()
            self._sender = None

    def close(self) -> None:
        """Let the sender go, and listen no more."""
        self.hang_up()
        self._socket.close()
