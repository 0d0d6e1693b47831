"""Live events by their address: iniVation's stream and cameras, EVT words, and a bag of ROS that grows."""

import importlib.util
import os
import re
import select
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np

from crossdraft.errors import CrossdraftError
from crossdraft.events import Events
from crossdraft.events.evt import HEADER_BYTES, EvtDecoder, EvtHeader, evt_header
from crossdraft.events.limits import DEFAULT_LIMITS
from crossdraft.events.rosbag import growing_bag
from crossdraft.events.stream import Sensor
from crossdraft.streams.live.address import LiveAddress, live_address
from crossdraft.streams.live.events import LiveEvents
from crossdraft.streams.live.source import POLL_S, SIGNAL_TIMEOUT_S, Items

CONNECT_S = 2.0
PIECE = 1 << 20  # bytes that are read at once
ROW = np.dtype({"names": ["t", "x", "y", "p"], "formats": ["<i8", "<i2", "<i2", "i1"], "itemsize": 16})
_END = re.compile(rb"^% *end *\r?\n|^[^%]", re.MULTILINE)  # of a header, which need not state it
_WORKER = Path(__file__).with_name("dv_worker.py")


def open_events(
    text: str,
    keep_s: float,
    *,
    hosts: Collection[str] = (),
    sensor: Sensor | None = None,
    offset_s: float | None = None,
    signal_timeout_s: float = SIGNAL_TIMEOUT_S,
) -> LiveEvents:
    """Make the source of an address such as `live:tcp://127.0.0.1:7777`, whose reader is to be started and closed.

    `text`, `hosts` as `live_address`, `sensor` of EVT words without a header, the others as `LiveEvents`. Raises
    CrossdraftError for an invalid address, and if a package is not installed.
    """
    address = live_address(text, "events", hosts)
    if address.kind in ("tcp", "unix", "dv") and importlib.util.find_spec("dv_processing") is None:
        raise CrossdraftError(f"{address} is read by dv-processing; install it: pip install dv-processing.")
    words, bag = (partial(one, sensor=sensor) for one in (_read_words, _read_bag))
    read = bag if address.kind == "bag" else words if address.kind.startswith("evt") else _read_camera
    once = address.kind == "evt:-"
    return LiveEvents(
        address, partial(read, address), keep_s, offset_s=offset_s, once=once, signal_timeout_s=signal_timeout_s
    )


def _read_bag(address: LiveAddress, sensor: Sensor | None) -> Items[Events]:
    """Yield the events that are added to a bag."""
    for events in growing_bag(Path(address.path), sensor):
        if events is None:
            time.sleep(POLL_S)
        yield events


def _read_camera(address: LiveAddress) -> Items[Events]:
    """Yield the events that `dv_worker` reads."""
    place = [part for part in (address.path, address.host, address.port or "") if part]
    command = [sys.executable, "-P", str(_WORKER), address.kind, *map(str, place)]
    with (
        tempfile.TemporaryFile() as complaints,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=complaints, pipesize=PIECE >> 2) as worker,
    ):
        try:
            held, size = b"", (0, 0)
            for data in _arriving(worker.stdout.fileno() if worker.stdout else -1):
                if data is None:
                    yield None
                    continue
                held += data
                if not size[0] and len(held) >= 8:
                    size, held = struct.unpack("<II", held[:8]), held[8:]
                    DEFAULT_LIMITS.check_sensor(address, *size)
                if size[0] and (whole := len(held) // ROW.itemsize * ROW.itemsize):
                    rows: Any = np.frombuffer(held[:whole], ROW)
                    held = held[whole:]
                    yield Events.checked(rows["x"], rows["y"], rows["t"], rows["p"], *size, address)
            if worker.wait() != 0:
                complaints.seek(0)
                lines = complaints.read(1 << 16).decode(errors="replace").strip().splitlines()
                crashed = f"dv-processing crashed ({worker.returncode})"
                raise _lost(address, lines[-1] if lines and worker.returncode == 1 else crashed)
        finally:
            worker.kill()


def _read_words(address: LiveAddress, sensor: Sensor | None) -> Items[Events]:
    """Decode EVT words; without a header they are taken for EVT3."""
    with _connected(address) as place:
        held, decoder = b"", None
        for piece in _arriving(place.fileno()):
            if piece is None:
                yield None
                continue
            held += piece
            if decoder is None:
                if held[:2] == b"% "[: len(held)] and not _END.search(held) and len(held) < HEADER_BYTES:
                    continue
                header = evt_header(held, address) if held.startswith(b"% ") else EvtHeader("3")
                decoder, held = EvtDecoder(header, sensor, address), held[header.size :]
                DEFAULT_LIMITS.check_sensor(address, decoder.width, decoder.height)
            if decoder.stepped_back:  # the camera was started anew: what follows is of another clock
                held = decoder.rest + held
                decoder = EvtDecoder(decoder.header, (decoder.width, decoder.height), address)
            yield decoder.decode(held).noting(decoder.notes)
            held = b""
        if decoder is not None:
            yield decoder.flush()


def _connected(address: LiveAddress) -> socket.socket | IO[Any]:
    """Connect to the sender of words."""
    if address.kind == "evt:-":
        return open(os.dup(0), "rb", buffering=0)
    try:
        if not address.path:
            return socket.create_connection((address.host, address.port), CONNECT_S)
        place = socket.socket(socket.AF_UNIX)
        place.connect(address.path)
    except OSError as error:
        raise _lost(address, error.strerror or "no answer") from None
    return place


def _lost(address: LiveAddress, why: str) -> CrossdraftError:
    return CrossdraftError(f"{address} cannot be read ({why}); start what sends the events first.")


def _arriving(number: int) -> Items[bytes]:
    """Yield what arrives at an open file, until its end; `None` while nothing does."""
    while True:
        if not select.select([number], [], [], POLL_S)[0]:
            yield None
        elif data := os.read(number, PIECE):
            yield data
        else:
            return
