"""`crossdraft bench live`: events and frames that live sources bear on loopback without a drop, and their memory.

The senders run in processes of their own, `python -m crossdraft_lab.bench.live KIND …`: EVT3 words over a socket,
dv-processing's own writer, or MPEG-TS by FFmpeg's muxer. They send in real time; where the receiver is too slow, a
span of events that is asked for lacks some.
"""

import importlib
import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import Any

import numpy as np

from crossdraft.streams.live.address import live_address
from crossdraft.streams.live.frames import LiveFrames
from crossdraft.streams.live.read import open_events
from crossdraft_lab.bench.resources import resident_mib

BLOCK_US, STEPS = 4096, 512  # what a word of EVT3's clock spans; its times, at each of which a row of pixels reports
SPAN_S = 250 * BLOCK_US / 1e6  # what is asked for at once
WIDTH, HEIGHT = 1280, 720
LATE_S, WARM_UP_S = 0.25, 3.0  # seconds after which a span is asked for; before anything is counted


def run_live(source: str, rate: float, seconds: float, fps: float, tick: Callable[[str], None]) -> dict[str, Any]:
    """Receive events (`evt` or `dv`; million a second) and frames for so many seconds; `tick` hears of each span.

    Returns:
        What was sent and what was missing; times of asking for a span; processor seconds a second; MiB of memory after
        a tenth of the time and at the end.
    """
    each = max(1, round(rate * BLOCK_US / STEPS)) * STEPS  # events of a block
    spans = max(1, int(seconds / SPAN_S))
    missing = frames_taken = 0
    asked_ms, memory = list[float](), list[float]()
    with ExitStack() as held:
        port = held.enter_context(_sender(source, str(each), str(seconds + WARM_UP_S + 5)))
        frames = held.enter_context(closing(LiveFrames(live_address(f"live:tcp://127.0.0.1:{_free()}", "video"))))
        held.enter_context(_sender("ts", str(frames.port), str(fps)))
        events = open_events(f"live:{'evt:' if source == 'evt' else ''}tcp://127.0.0.1:{port}", 2.0)
        held.callback(events.reader.close)
        frames.reader.start()
        events.reader.start()
        time.sleep(WARM_UP_S)
        while frames.take(0) is not None:
            pass
        lost, zero, spent = frames.status().dropped, time.perf_counter(), _spent()
        events.align(zero)
        first = int(events.offset_s / SPAN_S) + 1
        for number in range(first, first + spans):
            begin_s = number * SPAN_S - events.offset_s
            while (wait := zero + begin_s + SPAN_S + LATE_S - time.perf_counter()) > 0:
                frames_taken += frames.take(min(wait, 0.1)) is not None
            asked = time.perf_counter()
            found = events.between(begin_s, begin_s + SPAN_S)
            asked_ms.append(1e3 * (time.perf_counter() - asked))
            missing += round(SPAN_S * 1e6 / BLOCK_US) * each - (0 if found is None else len(found))
            memory.append(round(resident_mib(os.getpid()), 1))
            tick(f"{number - first + 1} of {spans}")
        passed = time.perf_counter() - zero
        events.reader.close()
        p50, p99 = np.percentile(asked_ms, [50, 99]).round(2).tolist()
        return {
            "source": source,
            "million_events_per_s": round(each / BLOCK_US, 3),
            "seconds": round(passed, 1),
            "events_missing": missing,
            "events_dropped": events.reader.status().dropped,
            "fps": fps,
            "frames_per_s": round(frames_taken / passed, 2),
            "frames_dropped": frames.status().dropped - lost,
            "cores": round((_spent() - spent) / passed, 3),
            "span_ms": {"p50": p50, "p99": p99},
            "memory_mib": [memory[len(memory) // 10], memory[-1]],
            "notes": [*events.reader.status().notes, *frames.status().notes],
        }


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
        time.sleep(max(0.0, start + number * BLOCK_US / 1e6 - time.perf_counter()))
        yield number
        number += 1


def _send_evt(each: int) -> None:
    columns = 0x2800 | np.arange(each // STEPS) % WIDTH
    lines = [[0x6000 | 8 * step, step % HEIGHT, *columns] for step in range(STEPS)]
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
            container.mux(stream.encode(frame))
            number += 1


if __name__ == "__main__":
    with suppress(OSError):  # the receiver is gone
        match sys.argv[1:]:
            case ["evt", each, _]:
                _send_evt(int(each))
            case ["dv", each, length]:
                _send_dv(int(each), float(length))
            case [_, port, fps]:
                _send_ts(int(port), float(fps))
