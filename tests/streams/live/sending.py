"""Programs that send MPEG-TS, made with PyAV: to bytes, or to a socket."""

import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from typing import Any, cast

import av
import numpy as np
from av.video.stream import VideoStream

FPS = 30
MS = Fraction(1, 1000)
OPTIONS = {"preset": "ultrafast", "tune": "zerolatency", "g": "5", "x264-params": "repeat-headers=1"}
DATAGRAM = 1316  # 7 packets of MPEG-TS, as ffmpeg sends


def picture(number: int, height: int = 48, width: int = 64) -> np.ndarray:
    """A grey frame that tells its number, 0 to 24."""
    return np.full((height, width, 3), 10 * number, np.uint8)


def number(pixels: np.ndarray) -> int:
    return round(float(pixels.mean()) / 10)


class Sender:
    """Muxes frames one after another; each write of the muxer goes to `send`."""

    def __init__(
        self, send: Callable[[bytes], Any], container: str = "mpegts", size: tuple[int, int] = (64, 48)
    ) -> None:
        self._send = send
        self._out = av.open(self, "w", format=container, options={"flush_packets": "1"}, buffer_size=DATAGRAM)
        stream = cast("VideoStream", self._out.add_stream("libx264", rate=FPS, options=OPTIONS))
        stream.width, stream.height = size
        stream.pix_fmt = "yuv420p"
        stream.codec_context.time_base = MS
        self.stream = stream

    def write(self, data: bytes) -> int:
        self._send(bytes(data))
        return len(data)

    def frame(self, pixels: np.ndarray, ms: int) -> None:
        frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
        frame.pts, frame.time_base = ms, MS
        self._out.mux(self.stream.encode(frame))

    def end(self) -> None:
        self._out.mux(self.stream.encode(None))
        self._out.close()


def transport(
    frames: Iterable[tuple[int, np.ndarray]], size: tuple[int, int] = (64, 48), aspect: Fraction | None = None
) -> bytes:
    """A whole stream of frames, each with its time in ms; `aspect` is a pixel's width over its height."""
    written = bytearray()
    sender = Sender(written.extend, size=size)
    if aspect is not None:
        sender.stream.codec_context.sample_aspect_ratio = aspect
    for ms, pixels in frames:
        sender.frame(pixels, ms)
    sender.end()
    return bytes(written)


def frames(count: int, first_ms: int = 0, first: int = 0) -> list[tuple[int, np.ndarray]]:
    """Frames of 30 a second whose pictures count."""
    return [(first_ms + round(1000 * index / FPS), picture((first + index) % 25)) for index in range(count)]


@contextmanager
def connected(kind: str, port: int) -> Iterator[Callable[[bytes], None]]:
    """Yield what sends bytes to a port of this machine."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM if kind == "udp" else socket.SOCK_STREAM) as out:
        out.connect(("127.0.0.1", port))

        def send(data: bytes) -> None:
            for start in range(0, len(data), DATAGRAM):
                out.sendall(data[start : start + DATAGRAM])

        yield send


class RtspServer:
    """A camera that speaks RTSP over TCP: one client at a time, to each of which the frames are sent from the first on.

    Args:
        frames: times in ms, and pixels.
        pause_s: seconds between two frames.

    Attributes:
        port: where it listens, on loopback.
        asked: the first lines of all requests.
    """

    def __init__(self, frames: list[tuple[int, np.ndarray]], pause_s: float = 0.0) -> None:
        self._frames, self._pause_s, self.asked = frames, pause_s, []
        self._over = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        if self._listener.fileno() >= 0:
            self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._thread.join()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with client, client.makefile("rb") as lines:
                try:
                    while self._answered(client, lines):
                        pass
                except OSError:
                    pass

    def _answered(self, client: socket.socket, lines: Any) -> bool:
        """Answer one request; false at the end."""
        first, head = lines.readline().decode(), {}
        while line := lines.readline().decode().strip():
            name, _, value = line.partition(":")
            head[name.lower()] = value.strip()
        if not first:
            return False
        self.asked.append(first.strip())
        method, more, body = first.split()[0], "", ""
        if method == "DESCRIBE":
            body = (
                "v=0\r\no=- 0 0 IN IP4 127.0.0.1\r\ns=test\r\nc=IN IP4 127.0.0.1\r\nt=0 0\r\n"
                "m=video 0 RTP/AVP 96\r\na=rtpmap:96 H264/90000\r\na=fmtp:96 packetization-mode=1\r\n"
                "a=control:track\r\n"
            )
            more = f"Content-Type: application/sdp\r\nContent-Length: {len(body)}\r\n"
        elif method == "SETUP":
            more = "Transport: RTP/AVP/TCP;unicast;interleaved=0-1\r\n"
        said = f"RTSP/1.0 200 OK\r\nCSeq: {head['cseq']}\r\nSession: 1\r\nPublic: DESCRIBE, SETUP, PLAY, TEARDOWN\r\n"
        client.sendall(f"{said}{more}\r\n{body}".encode())
        if method == "PLAY":
            self._play(client)
            return False
        return method != "TEARDOWN"

    def _play(self, client: socket.socket) -> None:
        def send(packet: bytes) -> None:
            channel = int(200 <= packet[1] <= 204)  # RTCP
            client.sendall(b"$" + bytes([channel]) + len(packet).to_bytes(2, "big") + packet)

        sender = Sender(send, "rtp")
        for ms, pixels in self._frames:
            sender.frame(pixels, ms)
            if self._over.wait(self._pause_s):
                return
        sender.end()
