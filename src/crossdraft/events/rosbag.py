"""Recordings in bags of ROS 1 and ROS 2, through the optional package `rosbags`, which finds the messages.

Messages are parsed here, by numpy: making an object of each event takes 38 times as long. Read are `EventArray` of
dvs_msgs and prophesee_event_msgs, whose events have ROS's time, and `EventPacket` of event_camera_msgs (before,
event_array_msgs/EventArray) in the encodings mono and evt3, whose events have the camera's. Those are moved by one
number of µs for a recording, so that the first event has the time that its packet states.
"""

import bz2
import sqlite3
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from crossdraft.errors import CrossdraftError
from crossdraft.events.aedat4 import LZ4, ZSTD, package, unpacked
from crossdraft.events.evt import EvtDecoder, EvtHeader
from crossdraft.events.limits import DEFAULT_LIMITS, EventLimits
from crossdraft.events.random_access import FIRST_EVENTS
from crossdraft.events.stream import Events, Sensor, Window, batches

BAG1, BAG2 = b"#ROSBAG V2.0", (b"SQLite format 3\0", b"\x89MCAP0\r\n")
SUFFIXES = (".db3", ".mcap")  # of the files in the folder of a bag of ROS 2
ARRAYS = ("dvs_msgs/msg/EventArray", "prophesee_event_msgs/msg/EventArray")
PACKETS = ("event_camera_msgs/msg/EventPacket", "event_array_msgs/msg/EventArray")
IMAGES = ("sensor_msgs/msg/Image", "sensor_msgs/msg/CompressedImage")
CONVERSIONS = {  # bytes of a pixel, and OpenCV's name of the way to RGB
    "mono8": (1, "GRAY2RGB"), "8UC1": (1, "GRAY2RGB"), "mono16": (2, "GRAY2RGB"), "16UC1": (2, "GRAY2RGB"),
    "rgb8": (3, ""), "bgr8": (3, "BGR2RGB"), "8UC3": (3, "BGR2RGB"),
    "rgba8": (4, "RGBA2RGB"), "bgra8": (4, "BGRA2RGB"), "8UC4": (4, "BGRA2RGB"),
    "yuv422": (2, "YUV2RGB_UYVY"), "yuv422_yuy2": (2, "YUV2RGB_YUY2"),
    **{f"bayer_{order}8": (1, f"Bayer{order.upper()}2RGB") for order in ("rggb", "bggr", "gbrg", "grbg")},
}  # fmt: skip
COMPUTED = (  # number of views, triggers and computed columns of a database
    "SELECT count(*) FROM sqlite_master AS one WHERE type NOT IN ('table', 'index') OR "
    "(type = 'table' AND EXISTS (SELECT 1 FROM pragma_table_xinfo(one.name) WHERE hidden))"
)
ADDED = (
    "SELECT messages.id, name, type, data FROM messages JOIN topics ON topics.id = topic_id "
    "WHERE messages.id > ? AND type IN (?, ?, ?, ?) ORDER BY messages.id LIMIT 64"
)
NAMES, FORMS = ["x", "y", "secs", "nsecs", "p"], ["<u2", "<u2", "<u4", "<u4", "u1"]
_PACKED = np.dtype({"names": NAMES, "formats": FORMS, "offsets": [0, 2, 4, 8, 12], "itemsize": 13})
# CDR aligns numbers to their size, so that all events but the first take 16 bytes and begin two before a multiple of 4.
_ALIGNED = np.dtype({"names": NAMES, "formats": FORMS, "offsets": [0, 2, 6, 10, 14], "itemsize": 16})
Part = TypeVar("Part")
Pixels = NDArray[np.uint8]


class RosMessage:
    """Cursor over a serialised message, packed (ROS 1) or aligned (CDR); at its end, ValueError or `struct.error`."""

    def __init__(self, content: bytes, aligned: bool) -> None:
        self.content, self.aligned, self._place = content, aligned, 4 if aligned else 0
        if aligned and content[:2] != b"\0\1":
            raise ValueError("a message is not in little-endian CDR")

    def number(self, form: str) -> int:
        """Read a number of a `struct` format."""
        size = struct.calcsize(form)
        if self.aligned:
            self._place += (4 - self._place) % size
        found = struct.unpack_from(f"<{form}", self.content, self._place)[0]
        self._place += size
        return found

    def blob(self) -> bytes:
        """Read bytes behind their number."""
        size = self.number("I")
        found = self.content[self._place : self._place + size]
        self._place += size
        if len(found) < size:
            raise ValueError("a message ends within its data")
        return found

    def text(self) -> str:
        """Read a string."""
        return self.blob().rstrip(b"\0").decode()

    def stamp(self) -> int:
        """Read a header; return its time in ns."""
        if not self.aligned:
            self.number("I")  # its sequence number
        seconds, rest = self.number("I"), self.number("I")
        self.text()
        return seconds * 10**9 + rest

    def events(self) -> "tuple[NDArray[Any], NDArray[np.int64]]":
        """Read a sequence of events; return records with x, y, p [N], and times in µs."""
        count = self.number("I")
        if self.aligned and count:
            alone = np.frombuffer(self.content, _PACKED, 1, self._place)
            rest = np.frombuffer(self.content + b"\0", _ALIGNED, count - 1, self._place + 14)
            rows = np.concatenate([alone, rest.astype(_PACKED)])
        else:
            rows = np.frombuffer(self.content, _PACKED, count, self._place if count else 0)
        return rows, rows["secs"].astype(np.int64) * 1_000_000 + rows["nsecs"] // 1000


def read_rosbag(
    path: Path, sensor: Sensor | None, window: Window, limits: EventLimits = DEFAULT_LIMITS, topic: str | None = None
) -> Iterator[Events]:
    """Yield the events of a topic of a bag, or of its only one with events.

    Raises:
        CrossdraftError: no such topic, several without a choice, another encoding, a damaged bag, or a missing package.
    """
    packets = _Packets(path, sensor)

    def parts() -> Iterator[Events]:
        part, scanned = None, 0
        for part in messages(path, (*ARRAYS, *PACKETS), packets.parse, limits, topic):
            limits.check_scanned(path, scanned := scanned + len(part))
            yield part
            if window.ends_before(part.t):
                break
        if part is None:
            raise CrossdraftError(f"{path} holds no message with events; give another bag or topic.")
        rest = packets.rest()
        yield (part.take(slice(0, 0)) if rest is None else rest).noting(packets.notes)

    yield from map(window.clip, batches(parts(), FIRST_EVENTS, path))


def growing_bag(
    path: Path, sensor: Sensor | None = None, limits: EventLimits = DEFAULT_LIMITS
) -> Iterator[Events | None]:
    """Yield the events that a recorder adds to a bag of ROS 2 (`.db3`) from now on, `None` while there are none.

    Raises:
        CrossdraftError: it is no such bag, has several topics with events, or a message is damaged.
    """
    packets = _Packets(path, sensor)
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=0)) as base:
            for kind, content in _added(base):
                if not kind:
                    yield None
                    continue
                message = RosMessage(_Unpacking(path, limits)(content), aligned=True)
                yield packets.parse(kind, message).noting(packets.notes)
    except (sqlite3.Error, ValueError, struct.error) as error:
        raise CrossdraftError(f"{path} cannot be read as it grows ({error}); it must be a whole .db3.") from error


def _added(base: sqlite3.Connection) -> Iterator[tuple[str, bytes]]:
    """Yield kind and content of messages with events that are added to a database, of no kind while there are none."""
    last, topics = None, set[str]()
    while True:
        try:
            if last is None:
                if base.execute(COMPUTED).fetchone()[0]:
                    raise ValueError("its tables are computed")
                (last,) = base.execute("SELECT coalesce(max(id), 0) FROM messages").fetchone()
            found = base.execute(ADDED, (last, *ARRAYS, *PACKETS)).fetchall()
        except sqlite3.OperationalError as error:
            if "locked" not in str(error):  # by its recorder, for a moment
                raise
            found = []
        for last, topic, kind, content in found:  # noqa: B007
            topics.add(topic)
            if len(topics) > 1:
                raise ValueError(f"events come of {' and '.join(sorted(topics))}")
            yield kind, content
        if not found:
            yield "", b""


class _Packets:
    """Decoder of the messages of one camera, which moves packets' times to ROS's clock; `notes` say what it did."""

    def __init__(self, source: Path, sensor: Sensor | None) -> None:
        self._source, self._sensor = source, sensor
        self._decoder: EvtDecoder | None = None
        self._stamp_us = self._moved_us = self._next = None
        self._lost = 0

    def parse(self, kind: str, message: RosMessage) -> Events:
        """Events of a message of one of `ARRAYS` or `PACKETS`."""
        stamp = message.stamp()
        height, width = message.number("I"), message.number("I")
        size = self._sensor or (width, height)
        if kind in PACKETS:
            return self.events(message, stamp, size)
        rows, t = message.events()
        return Events.checked(rows["x"], rows["y"], t, rows["p"], *size, source=self._source)

    def events(self, message: RosMessage, stamp: int, size: Sensor) -> Events:
        """Events of a packet, whose header was read; EVT3's newest come with a later packet, or are the `rest`."""
        number, base, encoding = message.number("Q"), message.number("Q"), message.text()
        swapped, content = message.number("B"), message.blob()
        if encoding not in ("evt3", "mono") or swapped:
            raise CrossdraftError(
                f"Event packets in {encoding}{', big-endian,' if swapped else ''} are not read, only evt3 and mono; "
                "record them as evt3, or convert the bag with event_camera_tools."
            )
        self._lost += max(0, number - (number if self._next is None else self._next))
        self._next = number + 1
        if encoding == "evt3":
            self._decoder = self._decoder or EvtDecoder(EvtHeader("3"), size, self._source)
            events, begun = self._decoder.decode(content), self._decoder.count
        else:
            words = np.frombuffer(content, "<u8")
            x, y, t = words >> 32 & 0xFFFF, words >> 48 & 0x7FFF, (words & 0xFFFFFFFF).astype(np.int64) + base
            events, begun = Events.checked(x, y, t // 1000, words >> 63, *size, source=self._source), len(words)
        if self._stamp_us is None and begun:
            self._stamp_us = stamp // 1000
        return self._moved(events)

    def rest(self) -> Events | None:
        """Events that the decoder of EVT3 has held back."""
        return None if self._decoder is None else self._moved(self._decoder.flush())

    @property
    def notes(self) -> tuple[str, ...]:
        """Repairs and assumptions, a sentence each."""
        said = {
            f"The camera's times were moved by {self._moved_us or 0:,} µs, to the time at which ROS stamped the first "
            "packet of events.": self._moved_us,
            f"{self._lost:,} packets of events were lost while the bag was recorded.": self._lost,
        }
        return tuple(sentence for sentence, true in said.items() if true)

    def _moved(self, events: Events) -> Events:
        """Move times by what brings the first event to the stamp of the packet that holds it."""
        if self._moved_us is None and self._stamp_us is not None and len(events):
            self._moved_us = self._stamp_us - events.t0
        return replace(events, t=events.t + (self._moved_us or 0))


def read_images(
    path: Path, decode: Callable[[bytes], Pixels], topic: str | None = None, limits: EventLimits = DEFAULT_LIMITS
) -> Iterator[tuple[int, Pixels]]:
    """Yield a topic's images as ROS time in µs and uint8 RGB [H, W, 3] of even sides; `decode` makes RGB of files."""

    def parse(kind: str, message: RosMessage) -> tuple[int, Pixels]:
        time_us = message.stamp() // 1000
        if kind == IMAGES[0]:
            pixels = _pixels(message)
        else:
            message.text()  # its format, which its first bytes say as well
            pixels = decode(message.blob())
        return time_us, pixels[: len(pixels) // 2 * 2, : pixels.shape[1] // 2 * 2]

    return messages(path, IMAGES, parse, limits, topic)


def _pixels(message: RosMessage) -> Pixels:
    """RGB pixels of a `sensor_msgs/Image`, whose header was read; 16 bits become 8."""
    import cv2

    height, width, encoding = message.number("I"), message.number("I"), message.text()
    swapped, step, content = message.number("B"), message.number("I"), message.blob()
    if encoding not in CONVERSIONS:
        raise CrossdraftError(f"Images in {encoding:.40} are not read, only {', '.join(CONVERSIONS)}.")
    size, name = CONVERSIONS[encoding]
    rows = np.ascontiguousarray(np.frombuffer(content, np.uint8).reshape(height, step)[:, : width * size])
    if "16" in encoding:
        rows = (rows.view(">u2" if swapped else "<u2") >> 8).astype(np.uint8)
    pixels = rows.reshape(height, width, -1)
    return cv2.cvtColor(pixels, getattr(cv2, f"COLOR_{name}")).astype(np.uint8, copy=False) if name else pixels


def messages(
    path: Path,
    kinds: Sequence[str],
    parse: Callable[[str, RosMessage], Part],
    limits: EventLimits = DEFAULT_LIMITS,
    topic: str | None = None,
) -> Iterator[Part]:
    """Yield what `parse` makes of each message of a topic, or of the only one of these kinds, as recorded.

    Raises:
        CrossdraftError: no such topic, or several; a damaged bag; a missing package; an error of `parse`.
    """
    found = set[str]()
    for file in bag_files(path) or [path]:
        try:
            with file.open("rb") as opened:
                aligned = not (start := opened.read(16)).startswith(BAG1)
            library = package("rosbags.rosbag2" if aligned else "rosbags.rosbag1", "rosbags")
            if aligned and not start.startswith(BAG2):
                raise CrossdraftError(f"{file} is no bag of ROS 1 or 2; give one, or name another format.")  # noqa: TRY301
            unpack = _Unpacking(file, limits)
            chunks = _checked_chunks(file, unpack) if aligned else set()
            with library.Reader(file) as reader:
                if not aligned:
                    reader.chunks = {at: chunk._replace(decompressor=unpack) for at, chunk in reader.chunks.items()}
                else:
                    _check_index(getattr(reader.storage, "chunks", ()), chunks)
                found |= {one.topic for one in reader.connections}
                chosen = _of_topic(reader.connections, kinds, topic, path)
                topic = chosen[0].topic if chosen else topic
                for connection, _, content in reader.messages(chosen) if chosen else ():
                    # ROS 1 packs chunks only, and a message's number may look like packing.
                    whole = unpack(bytes(content)) if aligned else unpack.counted(content, len(content))
                    yield parse(connection.msgtype, RosMessage(whole, aligned))
        except CrossdraftError:
            raise
        except Exception as error:  # whatever the package raises on a damaged bag
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            raise CrossdraftError(
                f"{path} cannot be read as a bag ({reason:.200}); it is damaged or was cut off, so copy it again."
            ) from error
    if topic not in found:
        wanted = f"topic {topic}" if topic else f"topic of {' or '.join(kinds)}"
        raise CrossdraftError(f"{path} has no {wanted}; it has {', '.join(sorted(found)) or 'none'}.")


def bag_files(path: Path) -> list[Path]:
    """Files of a folder with a bag of ROS 2, in the order in which they were written; none if it is no folder."""
    found = [file for file in path.iterdir() if file.suffix in SUFFIXES] if path.is_dir() else []
    return sorted(found, key=lambda file: (len(file.name), file.name))  # _10 comes after _9


def _of_topic(connections: Sequence[Any], kinds: Sequence[str], topic: str | None, path: Path) -> list[Any]:
    """Connections of the wanted topic; raise CrossdraftError if it is not told which of several."""
    found = [one for one in connections if one.msgtype in kinds and topic in (None, one.topic)]
    if len(names := sorted({one.topic for one in found})) > 1:
        raise CrossdraftError(f"{path} has topics {', '.join(names)}; name one (format=rosbag:TOPIC).")
    return found


class _Unpacking:
    """Unpacks the parts of a bag, as long as each of them, and all together, are within the limits."""

    def __init__(self, file: Path, limits: EventLimits) -> None:
        self._file, self._limits, self._stored, self._unpacked = file, limits, file.stat().st_size, 0

    def __call__(self, content: bytes) -> bytes:
        """Unpack a chunk or a message by the first bytes of bzip2, LZ4 or Zstandard; return others as they are."""
        most = self._limits.block_bytes
        if content.startswith(b"BZh"):
            content = bz2.BZ2Decompressor().decompress(content, most + 1)
        elif content.startswith((LZ4, ZSTD)):
            content = unpacked(content, most)
        return self.counted(content, len(content))

    def counted(self, content: bytes, size: int) -> bytes:
        """Return a part that has, or may unpack to, `size` bytes."""
        self._limits.check_block(self._file, size)
        self._unpacked += size
        self._limits.check_packing(self._file, self._stored, self._unpacked)
        return content


def _checked_chunks(file: Path, unpack: _Unpacking) -> set[tuple[int, str, int]]:
    """Place, packing and stored size of an MCAP's chunks, which the package unpacks whole.

    Raises:
        CrossdraftError: a chunk that is too large.
        ValueError: a database (.db3) with views or computed columns, which may take any time and memory.
    """
    chunks, place = set[tuple[int, str, int]](), len(BAG2[1])
    with file.open("rb") as opened, mmap(opened.fileno(), 0, access=ACCESS_READ) as content:
        if content[:place] != BAG2[1]:
            with closing(sqlite3.connect(f"{file.resolve().as_uri()}?immutable=1", uri=True)) as base:
                if base.execute(COMPUTED).fetchone()[0]:
                    raise ValueError("its tables are computed")
            return chunks
        while place + 9 <= len(content):
            kind, size = struct.unpack_from("<BQ", content, place)
            if kind == 6:  # a chunk: times, size, checksum, name of the packing, and the packed records
                whole, _, name = struct.unpack_from("<QII", content, place + 25)
                packing = content[place + 41 : place + 41 + name].decode()
                (stored,) = struct.unpack_from("<Q", content, place + 41 + name)
                begin = place + 49 + name
                most = stored * 16 if packing == "lz4" else 0  # up to 255 to 1, but recordings far less
                most = _most_unpacked(content, begin, begin + stored) if packing == "zstd" else most
                unpack.counted(b"", max(whole, most))
                chunks.add((place, packing, stored))
            place += 9 + size
    return chunks


def _check_index(indexed: Iterable[Any], chunks: set[tuple[int, str, int]]) -> None:
    """Refuse an MCAP whose index makes the package unpack a chunk twice, or what is none."""
    named = [(one.chunk_start_offset, one.compression, one.compressed_size) for one in indexed]
    if len(set(named)) < len(named) or not set(named) <= chunks:
        raise ValueError("its index names a chunk twice, or one that there is not")


def _most_unpacked(packed: mmap, place: int, end: int) -> int:
    """Most bytes to which frames of Zstandard may unpack, by their blocks, as what they state may be wrong."""
    most = 0
    while place < end:
        magic, head = struct.unpack_from("<4sB", packed, place)
        if magic != ZSTD:
            raise ValueError("a chunk is not packed by Zstandard, as it says")
        single, last = head >> 5 & 1, False
        place += 6 - single + (0, 1, 2, 4)[head & 3] + (single, 2, 4, 8)[head >> 6]
        while not last:
            low, high = struct.unpack_from("<HB", packed, place)
            last, kind, size = low & 1, low >> 1 & 3, (high << 16 | low) >> 3
            most += size if kind < 2 else 1 << 17  # bytes as they are, a repeated byte, or a packed block
            place += 3 + (1 if kind == 1 else size)
        place += 4 * (head >> 2 & 1)  # a checksum
    return most
