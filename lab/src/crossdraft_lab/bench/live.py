"""`crossdraft bench live`: events and frames that live sources bear on loopback without a drop, and their memory.

The senders run in processes of their own, `python -m crossdraft_lab.bench.live KIND …`: EVT3 words over a socket,
dv-processing's own writer, or MPEG-TS by FFmpeg's muxer. They send in real time; where the receiver is too slow, a
second of events that is asked for lacks some.
"""

import importlib
import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from crossdraft.streams.live.address import live_address
from crossdraft.streams.live.frames import LiveFrames
from crossdraft.streams.live.read import open_events
from crossdraft_lab.bench.resources import resident_mib

BLOCK_US, STEPS = (
    4096,
    512,
)  # EVT3's clock has a word for each block; in it are so many times, with a row of pixels each
SPAN = 250  # blocks that are asked for at once
LENGTH_S = SPAN * BLOCK_US / 1e6
WIDTH, HEIGHT = 1280, 720
LATE_S = 0.25  # after which a span is asked for
WARM_UP_S = 3.0


@dataclass
class LiveRun:
    """One run: million events and frames a second that were sent, and what arrived."""

    source: str
    rate: float
    fps: float
    seconds: float = 0.0
    events: int = 0
    missing: int = 0
    dropped: int = 0
    frames: int = 0
    frames_dropped: int = 0
    cores: float = 0.0
    span_ms: list[float] = field(default_factory=list)
    memory_mib: list[float] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, object]:
        """Plain values; the memory after a tenth of the time, and at the end."""
        p50, p99 = np.percentile(self.span_ms, [50, 99]).round(2).tolist()
        memory = [round(self.memory_mib[len(self.memory_mib) // 10], 1), round(self.memory_mib[-1], 1)]
        return vars(self) | {"span_ms": {"p50": p50, "p99": p99}, "memory_mib": memory}


def run_live(source: str, rate: float, seconds: float, fps: float, tick: Callable[[str], None]) -> LiveRun:
    """Receive events (`evt` or `dv`; million a second) and frames for so many seconds; `tick` hears of each span."""
    each = max(1, round(rate * BLOCK_US / STEPS)) * STEPS  # events of a block
    run, kind = LiveRun(source, each / BLOCK_US, fps), "evt:" if source == "evt" else ""
    with ExitStack() as held:
        port = held.enter_context(_sender(source, str(each), str(seconds + WARM_UP_S + 5)))
        frames = held.enter_context(closing(LiveFrames(live_address(f"live:tcp://127.0.0.1:{_free()}", "video"))))
        held.enter_context(_sender("ts", str(frames.port), str(fps)))
        events = open_events(f"live:{kind}tcp://127.0.0.1:{port}", 2.0)
        held.callback(events.reader.close)
        frames.start()
        events.reader.start()
        time.sleep(WARM_UP_S)
        zero, spent = time.perf_counter(), _spent()
        events.align(zero)
        while frames.take(0) is not None:
            pass
        offset_s = events.offset_s
        first = int(offset_s / LENGTH_S) + 1
        for number in range(first, first + spans(seconds)):
            begin_s = number * LENGTH_S - offset_s
            while (wait := zero + begin_s + LENGTH_S + LATE_S - time.perf_counter()) > 0:
                run.frames += frames.take(min(wait, 0.1)) is not None
            asked = time.perf_counter()
            found = events.between(begin_s, begin_s + LENGTH_S)
            run.span_ms.append(1e3 * (time.perf_counter() - asked))
            run.events += SPAN * each
            run.missing += SPAN * each - (0 if found is None else len(found))
            run.memory_mib.append(resident_mib(os.getpid()))
            tick(f"{number - first + 1} s")
        run.seconds = round(time.perf_counter() - zero, 3)
        events.reader.close()
        run.cores = round((_spent() - spent) / run.seconds, 3)
        run.dropped, run.frames_dropped = events.reader.status().dropped, frames.status().dropped
        run.notes = [*events.reader.status().notes, *frames.status().notes]
    return run


def spans(seconds: float) -> int:
    """Number of spans of events that so many seconds hold; at least one."""
    return max(1, int(seconds / LENGTH_S))


def _spent() -> float:
    """Seconds of processor time of this process, and of those that have ended, such as dv-processing's reader."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def _free() -> int:
    with socket.create_server(("127.0.0.1", 0)) as made:
        return int(made.getsockname()[1])


@contextmanager
def _sender(*arguments: str) -> Iterator[int]:
    """Run a sender; gives the port that it names."""
    command = [sys.executable, "-m", "crossdraft_lab.bench.live", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        try:
            yield int((child.stdout.readline() if child.stdout else "") or 0)
        finally:
            child.kill()


def _name(port: int) -> None:
    print(port, flush=True)  # noqa: T201 - to `_sender`


def _blocks() -> Iterator[int]:
    """Yield the number of each block in its time."""
    start, number = time.perf_counter(), 0
    while True:
        wait = start + number * BLOCK_US / 1e6 - time.perf_counter()
        if wait > 0:
            time.sleep(wait)
        yield number
        number += 1


def _send_evt(each: int) -> None:
    columns = np.arange(each // STEPS) % WIDTH
    lines = [[0x6000 | 8 * step, step % HEIGHT, *(0x2800 | columns)] for step in range(STEPS)]
    words = np.array([0x8000, *np.concatenate(lines)], "<u2")
    with socket.create_server(("127.0.0.1", 0)) as server:
        _name(server.getsockname()[1])
        connection, _ = server.accept()
        connection.sendall(f"% evt 3.0\n% format EVT3;height={HEIGHT};width={WIDTH}\n% end\n".encode())
        for number in _blocks():
            words[0] = 0x8000 | number & 0xFFF
            connection.sendall(words.tobytes())


def _send_dv(each: int, seconds: float) -> None:
    """Send stores that are made beforehand, event by event, which takes far longer than to send them."""
    dv: Any = importlib.import_module("dv_processing")
    stores = []
    for number in range(int(seconds * 1e6 / BLOCK_US)):
        stores.append(dv.EventStore())
        for event in range(each):
            time_us = number * BLOCK_US + event * BLOCK_US // each
            stores[-1].push_back(time_us, event % WIDTH, event % HEIGHT, event % 2 == 0)
    port = _free()
    writer = dv.io.NetworkWriter("127.0.0.1", port, dv.io.Stream.EventStream(0, "events", "DVX", (WIDTH, HEIGHT)))
    _name(port)
    while not writer.getClientCount():
        time.sleep(0.01)
    for number in _blocks():
        writer.writeEvents(stores[number])


def _send_ts(port: int, fps: float) -> None:
    import av

    _name(port)
    with socket.create_connection(("127.0.0.1", port)) as connection:
        container = av.open(connection.makefile("wb"), "w", format="mpegts")
        stream = container.add_stream("mpeg2video", rate=round(fps))
        stream.width, stream.height, stream.pix_fmt = 640, 360, "yuv420p"
        start, number, noise = time.perf_counter(), 0, np.random.default_rng(0).integers(0, 64, (360, 640, 3), np.uint8)
        while True:
            time.sleep(max(0.0, start + number / fps - time.perf_counter()))
            frame = av.VideoFrame.from_ndarray(np.roll(noise, number, 1), format="rgb24")
            frame.pts = number
            for packet in stream.encode(frame):
                container.mux(packet)
            number += 1


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["evt", each, _]:
            _send_evt(int(each))
        case ["dv", each, seconds]:
            _send_dv(int(each), float(seconds))
        case ["ts", port, fps]:
            _send_ts(int(port), float(fps))
