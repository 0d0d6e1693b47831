"""AEDAT 4, the recordings of iniVation's DV, with struct and numpy: the events of a file's first stream of events.

Layout (docs.inivation.com, "AEDAT 4.0"): a line of text, a header, then packets of int32 stream, int32 size and a
packed FlatBuffer. Only packets of the stream that is read are unpacked: frames of any depth, inertial data, triggers
and what later versions add are passed over by their size. A span is found by bisection among the packets.
"""

import os
import struct
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO
from xml.etree import ElementTree as ET

import numpy as np
from numpy.typing import NDArray

from crossdraft.errors import CrossdraftError
from crossdraft.events.limits import DEFAULT_LIMITS, EventLimits
from crossdraft.events.random_access import FIRST_EVENTS
from crossdraft.events.stream import LAST_US, Events, Sensor, Window, batches

LZ4, ZSTD = b"\x04\x22\x4d\x18", b"\x28\xb5\x2f\xfd"  # a frame's first bytes
MAGIC = b"#!AER-DAT4.0\r\n"
HEADER_BYTES = 1 << 22
MOST_PACKETS = 10_000_000  # a day of packets every 9 ms
EVENT = np.dtype(
    {"names": ["t", "x", "y", "p"], "formats": ["<i8", "<i2", "<i2", "u1"], "offsets": [0, 8, 10, 12], "itemsize": 16}
)


def read_aedat4(
    path: Path, sensor: Sensor | None, window: Window, limits: EventLimits = DEFAULT_LIMITS
) -> Iterator[Events]:
    """Yield the first event stream of an AEDAT 4 file, from the packet where the wanted span begins."""
    with path.open("rb") as file:
        packets = EventPackets(file, path, limits)
        size = sensor or packets.sensor
        if size is None:
            raise CrossdraftError(f"{path} does not say how large its sensor is; give it (sensor=…).")

        def parts() -> Iterator[Events]:
            yield Events.empty(*size).noting(packets.notes)
            for index in range(packets.first(window), len(packets)):
                rows = packets[index]
                yield Events.checked(rows["x"], rows["y"], rows["t"], rows["p"], *size, source=path)
                if window.ends_before(rows["t"]):
                    return

        yield from map(window.clip, batches(parts(), FIRST_EVENTS, path))


class EventPackets:
    """Packets of the first event stream of an open file; a damaged or cut one raises CrossdraftError.

    `sensor` is its size, or None if the file does not say; `notes` are sentences on what is not read.
    """

    def __init__(self, file: BinaryIO, path: Path, limits: EventLimits) -> None:
        self._file, self._path, self._limits = file, path, limits
        self._stored = self._unpacked = self._events = 0
        self._places = array("q")
        end = os.fstat(file.fileno()).st_size
        try:
            head = file.read(len(MAGIC) + 4)
            (size,) = struct.unpack_from("<I", head, len(MAGIC))
            header = head[-4:] + file.read(min(size, HEADER_BYTES))
            self._packed, table = bool(_number(header, 0, "<i")), _number(header, 1, "<q") or -1
            streams = _event_streams(_vector(header, 2, np.dtype("u1")).tobytes().decode())
        except (ValueError, struct.error, ET.ParseError) as error:
            raise self._damaged(error) from error
        (self._stream, self.sensor), *others = streams
        self.notes = [f"{len(streams)} streams of events are recorded; the first is read."] if others else []
        closed = table >= 0  # then it is the place where the packets end
        if table > end:
            raise self._damaged("it ends before its table of packets")
        self._walk(len(head) + size, table if closed else end, closed)

    def _walk(self, place: int, end: int, closed: bool) -> None:
        """Find the packets of the stream between two places of the file; the last of one not closed may be cut off."""
        descriptor = self._file.fileno()
        for _ in range(MOST_PACKETS):
            if place >= end:
                return
            head = os.pread(descriptor, 8, place)
            stream, size = struct.unpack("<ii", head) if len(head) == 8 else (0, -1)
            if size < 0 or place + 8 + size > end:
                if closed:
                    raise self._damaged(f"it ends within a packet, at byte {place:,}")
                self.notes.append(f"The recording was never closed; it was read up to byte {place:,} of {end:,}.")
                return
            if stream == self._stream:
                self._places.append(place)
            place += 8 + size
        raise self._damaged(f"it has more than {MOST_PACKETS:,} packets, the limit")

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: int) -> NDArray[Any]:
        """Records `EVENT` [N] of a packet, not yet checked."""
        descriptor, place = self._file.fileno(), self._places[index]
        (size,) = struct.unpack("<4xi", os.pread(descriptor, 8, place))
        stored = os.pread(descriptor, size, place + 8)
        try:
            packet = unpacked(stored, self._limits.block_bytes) if self._packed else stored
            events = _vector(packet, 0, EVENT)
        except (ValueError, RuntimeError, struct.error) as error:
            raise self._damaged(f"the packet at byte {place:,}: {error}") from error
        self._stored, self._unpacked = self._stored + size, self._unpacked + len(packet)
        self._limits.check_packing(self._path, self._stored, self._unpacked)
        self._events += len(events)
        self._limits.check_scanned(self._path, self._events)
        return events

    def first(self, window: Window) -> int:
        """Index of the packet from which on the window must be read."""
        every = range(len(self))
        first = 0 if window.start_us is None else max(0, bisect_left(every, window.start_us, key=self._begin) - 1)
        newest = window.newest
        if newest is None or newest.us is newest.most is None:
            return first
        last = len(self) if window.end_us is None else bisect_left(every, window.end_us, key=self._begin)
        count, latest = 0, None
        for index in range(last - 1, first - 1, -1):
            t = self[index]["t"]
            t = t if window.end_us is None else t[t < window.end_us]
            count += len(t)
            latest = int(t[-1]) if latest is None and len(t) else latest
            begun = newest.us is not None and latest is not None and len(t) and t[0] <= latest - newest.us
            if count >= newest.least and (begun or (newest.most is not None and count >= newest.most)):
                return index
        return first

    def _begin(self, index: int) -> int:
        """Time of the first event of a packet; of an empty one, of the next that is not."""
        filled = (t for t in (self[i]["t"] for i in range(index, len(self))) if len(t))
        return int(next(filled, [LAST_US])[0])

    def _damaged(self, reason: object) -> CrossdraftError:
        return CrossdraftError(
            f"{self._path} cannot be read ({reason}); it is damaged or was cut off, so copy it again."
        )


def _event_streams(description: str) -> list[tuple[int, Sensor | None]]:
    """Numbers and sensors of the streams of events in a header's XML; a sensor is None if it is not stated."""
    if "<!DOCTYPE" in description:  # entities can expand without bound
        raise ValueError("its header declares a document type")
    found = list[tuple[int, Sensor | None]]()
    for node in ET.fromstring(description).iterfind(".//node[@name='outInfo']/node"):  # noqa: S314
        if node.findtext("attr[@key='typeIdentifier']") == "EVTS":
            sides = [node.findtext(f"node[@name='info']/attr[@key='{name}']") for name in ("sizeX", "sizeY")]
            width, height = (None if side is None else int(side) for side in sides)
            found.append((int(node.get("name", "")), None if width is None or height is None else (width, height)))
    if not found:
        raise ValueError("its header names no stream of events")
    return found


def _field(buffer: bytes, index: int) -> int | None:
    """Place of a field of a size-prefixed FlatBuffer's root table, or None if the field has its default."""
    table = 4 + struct.unpack_from("<I", buffer, 4)[0]
    names = table - struct.unpack_from("<i", buffer, table)[0]
    if 4 + 2 * index >= struct.unpack_from("<H", buffer, names)[0]:
        return None
    offset = struct.unpack_from("<H", buffer, names + 4 + 2 * index)[0]
    return table + offset if offset else None


def _number(buffer: bytes, index: int, form: str) -> int | None:
    place = _field(buffer, index)
    return None if place is None else struct.unpack_from(form, buffer, place)[0]


def _vector(buffer: bytes, index: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Values of a vector field; empty if the field is absent."""
    place = _field(buffer, index)
    if place is None:
        return np.empty(0, dtype)
    place += struct.unpack_from("<I", buffer, place)[0]
    return np.frombuffer(buffer, dtype, struct.unpack_from("<I", buffer, place)[0], place + 4)


def unpacked(stored: bytes, most: int) -> bytes:
    """Unpack a frame of LZ4 or Zstandard of at most `most` bytes; raise ValueError or RuntimeError if it is neither."""
    if stored.startswith(LZ4):
        frame = package("lz4.frame", "lz4").LZ4FrameDecompressor()
        found = frame.decompress(stored, max_length=min(most + 1, 256 * len(stored)))
    elif stored.startswith(ZSTD):
        zstandard = package("zstandard", "zstandard")
        try:
            found = zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(stored).read(most + 1)
        except zstandard.ZstdError as error:
            raise ValueError(error) from error
    else:
        raise ValueError("it is packed neither by LZ4 nor by Zstandard")
    if len(found) > most:
        raise ValueError(f"it unpacks to more than {most:,} bytes")
    return found


def package(module: str, name: str) -> Any:
    """Import a module of an optional package; raise CrossdraftError if it is not installed."""
    try:
        return import_module(module)
    except ImportError as error:
        raise CrossdraftError(f"To read this recording, the package {name} is missing; pip install {name}") from error
