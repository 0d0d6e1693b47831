"""Bags of ROS 1 and 2, written and serialised by the package `rosbags`, which our reading of messages must equal."""

import sqlite3
import struct
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crossdraft.errors import CrossdraftError
from crossdraft.events import EventLimits, Events, Newest, concatenate, iter_events, read_events, rosbag
from crossdraft.events.read import detect_format
from crossdraft.streams.live.read import open_events
from crossdraft.video.image import read_pixels
from tests.events.helpers import made_up, same

rosbags = pytest.importorskip("rosbags")
from rosbags import rosbag1, rosbag2  # noqa: E402
from rosbags.typesys import Stores, get_types_from_msg, get_typestore  # noqa: E402

HEADER = "std_msgs/Header header\n"
EVENT = "uint16 x\nuint16 y\ntime ts\nbool polarity\n"
ARRAY = HEADER + "uint32 height\nuint32 width\nEvent[] events\n"
PACKET = HEADER + (
    "uint32 height\nuint32 width\nuint64 seq\nuint64 time_base\nstring encoding\nbool is_bigendian\nuint8[] events\n"
)
ARRAYS, PACKETS, IMAGES = rosbag.ARRAYS, rosbag.PACKETS, rosbag.IMAGES
START_US = 1_700_000_000_000_000


def types(ros1: bool):
    """Known messages, and the three kinds with events."""
    store = get_typestore(Stores.ROS1_NOETIC if ros1 else Stores.ROS2_HUMBLE)
    for package in ("dvs_msgs", "prophesee_event_msgs"):
        text = EVENT if ros1 else EVENT.replace("time ts", "builtin_interfaces/Time ts")
        store.register(get_types_from_msg(text, f"{package}/msg/Event"))
        store.register(get_types_from_msg(ARRAY, f"{package}/msg/EventArray"))
    for name in PACKETS:
        store.register(get_types_from_msg(PACKET, name))
    return store


TYPES = {True: types(ros1=True), False: types(ros1=False)}


class Bag:
    """Messages of one ROS, and the bag that they are written to."""

    def __init__(self, ros1: bool) -> None:
        self.ros1, self.store = ros1, TYPES[ros1]
        self.messages = []

    def made(self, name: str, **fields):
        return self.store.types[name](**fields)

    def header(self, time_ns: int):
        stamp = self.made("builtin_interfaces/msg/Time", sec=time_ns // 10**9, nanosec=time_ns % 10**9)
        extra = {"seq": 7} if self.ros1 else {}
        return self.made("std_msgs/msg/Header", stamp=stamp, frame_id="camera", **extra)

    def add(self, topic: str, name: str, time_ns: int, **fields) -> None:
        message = self.made(name, header=self.header(time_ns), **fields)
        self.messages.append((topic, name, len(self.messages) + 1, self.serialised(message, name)))

    def serialised(self, message, name: str) -> bytes:
        serialise = self.store.serialize_ros1 if self.ros1 else self.store.serialize_cdr
        return bytes(serialise(message, name))

    def add_array(self, topic: str, events: Events, name: str = ARRAYS[0]) -> None:
        rows = [
            self.made(name.replace("Array", ""), x=x, y=y, polarity=bool(p),
                      ts=self.made("builtin_interfaces/msg/Time", sec=t // 10**6, nanosec=t % 10**6 * 1000 + 999))
            for x, y, t, p in zip(*(getattr(events, one).tolist() for one in "xytp"), strict=True)
        ]  # fmt: skip
        self.add(topic, name, (events.t0 + 5) * 1000, height=events.height, width=events.width, events=rows)

    def add_packet(
        self,
        topic,
        content,
        base_ns,
        stamp_ns,
        encoding="mono",
        name=PACKETS[0],
        swapped=False,
        size=(64, 48),
        seq=None,
    ):
        seq = len(self.messages) if seq is None else seq
        self.add(
            topic, name, stamp_ns, height=size[1], width=size[0], seq=seq, time_base=base_ns, encoding=encoding,
            is_bigendian=swapped, events=np.frombuffer(content, np.uint8),
        )  # fmt: skip

    def add_image(self, topic, time_us, pixels, encoding="rgb8", step=None, swapped=False):
        rows = np.frombuffer(pixels.tobytes(), np.uint8)
        height, width = pixels.shape[:2]
        self.add(
            topic, IMAGES[0], time_us * 1000, height=height, width=width, encoding=encoding,
            is_bigendian=int(swapped), step=step or len(rows) // height, data=rows,
        )  # fmt: skip

    def write(self, path: Path, kind: str) -> Path:
        """Write "bag", or a folder of "db3" or "mcap"."""
        if kind == "bag":
            writer = rosbag1.Writer(path)
        else:
            plugin = rosbag2.StoragePlugin.MCAP if kind == "mcap" else rosbag2.StoragePlugin.SQLITE3
            writer = rosbag2.Writer(path, version=9, storage_plugin=plugin)
        with writer:
            topics = {}
            for topic, name, recorded_ns, content in self.messages:
                if topic not in topics:
                    topics[topic] = writer.add_connection(topic, name, typestore=self.store)
                writer.write(topics[topic], recorded_ns, content)
        return path


def mono(events: Events, base_us: int) -> bytes:
    x, y, p = (column.astype(np.uint64) for column in (events.x, events.y, events.p))
    return ((events.t - base_us).astype(np.uint64) * 1000 | x << 32 | y << 48 | p << 63).astype("<u8").tobytes()


def parts(events: Events, size: int):
    return [events.take(slice(begin, begin + size)) for begin in range(0, len(events), size)]


def bag_of(kind: str) -> Bag:
    return Bag(ros1=kind == "bag")


@pytest.mark.parametrize("kind", ["bag", "db3", "mcap"])
@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_of_every_bag_are_read(tmp_path, kind, name):
    events, bag = made_up(300, start_us=START_US), bag_of(kind)
    bag.add("/imu", "sensor_msgs/msg/TimeReference", 1, time_ref=bag.header(1).stamp, source="x")
    for part in (*parts(events, 40), events.take(slice(0, 0))):
        bag.add_array("/dvs/events", part, name)
    path = bag.write(tmp_path / "a.bag", kind)
    assert detect_format(path) == "rosbag"
    assert same(read_events(path), events)
    if kind != "bag":
        assert same(read_events(next(path.glob(f"*.{kind}"))), events)
    span = START_US + 10_000, START_US + 20_000
    assert same(read_events(path, start_us=span[0], end_us=span[1]), events.slice(*span))
    assert same(read_events(path, newest=Newest(us=3000)), Newest(us=3000).of(events))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 40), st.booleans(), st.text("abcdé", max_size=9), st.integers(0, 2**31 - 1))
def test_messages_are_parsed_as_the_package_does(count, ros1, frame, seconds):
    """Whatever the length of the frame's name before them, by which CDR moves what follows."""
    bag = Bag(ros1)
    events = made_up(count, start_us=seconds * 10**6)
    bag.add_array("/a", events)
    header = replace(bag.header(5), frame_id=frame)
    message = bag.store.deserialize_ros1 if ros1 else bag.store.deserialize_cdr
    found = message(bag.messages[0][3], ARRAYS[0])
    content = bag.serialised(replace(found, header=header), ARRAYS[0])
    cursor = rosbag.RosMessage(content, not ros1)
    assert cursor.stamp() == 5
    assert (cursor.number("I"), cursor.number("I")) == (48, 64)
    rows, t = cursor.events()
    assert same(Events.checked(rows["x"], rows["y"], t, rows["p"], 64, 48), events)
    for length in range(0, len(content) - 3, 5):  # CDR may end with padding
        cursor = (
            rosbag.RosMessage(content[:length].ljust(4, b"\0"), aligned=False)
            if length < 4
            else rosbag.RosMessage(content[:length], not ros1)
        )
        with pytest.raises((ValueError, struct.error)):
            for _ in range(3 if cursor.stamp() is None else 2):
                cursor.number("I")
            cursor.events()
            raise ValueError("an event less")


@pytest.mark.parametrize("kind", ["bag", "db3", "mcap"])
@pytest.mark.parametrize("name", PACKETS)
def test_mono_packets_come_on_the_clock_of_their_stamps(tmp_path, kind, name):
    events, bag = made_up(300, start_us=77_000), bag_of(kind)
    moved = START_US - events.t0
    for index, part in enumerate(parts(events, 50)):
        late_us = 0 if index == 0 else 40 * index  # how long the first event of a later packet waited is not added
        bag.add_packet("/events", mono(part, 70_000), 70_000_000, (part.t0 + moved + late_us) * 1000, name=name)
    found = read_events(bag.write(tmp_path / "a.bag", kind))
    assert same(found, replace(events, t=events.t + moved))


def evt3(events: Events) -> list[int]:
    """Words of single events: each with its time, row and column."""
    words = []
    for t, x, y, p in zip(*(getattr(events, name).tolist() for name in "txyp"), strict=True):
        words += [0x8000 | t >> 12 & 0xFFF, 0x6000 | t & 0xFFF, y, 0x2000 | p << 11 | x, 0xA000]  # a trigger as well
    return words


@pytest.mark.parametrize("kind", ["bag", "db3", "mcap"])
def test_evt3_packets_continue_each_other_across_the_clocks_wrap(tmp_path, kind):
    events, bag = made_up(600, start_us=16_700_000, span_us=200_000), bag_of(kind)
    words, moved = np.array(evt3(events), "<u2"), START_US - events.t0
    bag.add_packet("/events", words[:1], 0, 1, "evt3")  # a packet without events has no part in the clock
    for begin in range(1, len(words), 333):  # packets end anywhere
        stamp_us = START_US if begin == 1 else START_US + 9_000
        bag.add_packet("/events", words[begin : begin + 333], 5, stamp_us * 1000, "evt3")
    path = bag.write(tmp_path / "a.bag", kind)
    found = read_events(path)
    assert same(found, replace(events, t=events.t + moved))
    assert [f"moved by {moved:,} µs" in note for note in found.notes] == [True]
    span = START_US + 50_000, START_US + 60_000
    assert same(read_events(path, start_us=span[0], end_us=span[1]), found.slice(*span))
    assert same(read_events(path, newest=Newest(most=7)), Newest(most=7).of(found))


def test_packets_that_were_lost_are_noted(tmp_path):
    events, bag = made_up(120), Bag(ros1=False)
    for number, part in zip((4, 5, 9, 2), parts(events, 30), strict=True):  # its driver was started anew
        bag.add_packet("/events", mono(part, 0), 0, part.t0 * 1000, seq=number)
    found = read_events(bag.write(tmp_path / "a", "mcap"))
    assert same(found, events)
    assert found.notes == ("3 packets of events were lost while the bag was recorded.",)


def test_an_event_of_a_packet_outside_the_sensor_is_refused(tmp_path):
    bag = Bag(ros1=True)
    for encoding, content in (("evt3", np.array(evt3(made_up(9)), "<u2")), ("mono", mono(made_up(9), 0))):
        bag.messages.clear()
        bag.add_packet("/events", content, 0, 5, encoding, size=(8, 8))
        with pytest.raises(CrossdraftError, match="outside"):
            read_events(bag.write(tmp_path / f"{encoding}.bag", "bag"))
        assert len(read_events(tmp_path / f"{encoding}.bag", sensor=(64, 48))) == 9


@pytest.mark.parametrize(("encoding", "swapped"), [("libcaer_cmp", False), ("mono", True), ("trigger", False)])
def test_packets_of_other_encodings_are_refused_by_name(tmp_path, encoding, swapped):
    bag = Bag(ros1=False)
    bag.add_packet("/events", mono(made_up(5), 0), 0, 5, encoding, swapped=swapped)
    with pytest.raises(CrossdraftError, match=f"in {encoding}"):
        read_events(bag.write(tmp_path / "a", "mcap"))


def test_a_topic_is_chosen_where_there_are_several(tmp_path):
    left, right, bag = made_up(50, seed=1), made_up(60, seed=2), Bag(ros1=True)
    bag.add_array("/left", left)
    bag.add_array("/right", right)
    path = bag.write(tmp_path / "a.bag", "bag")
    with pytest.raises(CrossdraftError, match="/left, /right; name one"):
        read_events(path)
    assert same(read_events(path, format="rosbag:/left"), left)
    assert same(read_events(path, format="rosbag:/right"), right)
    with pytest.raises(CrossdraftError, match="has no topic /up; it has /left, /right"):
        read_events(path, format="rosbag:/up")
    with pytest.raises(CrossdraftError, match="no event format 'dsec'"):
        read_events(path, format="dsec:/left")


def test_a_folder_of_several_files_is_one_bag(tmp_path):
    events = made_up(120)
    (tmp_path / "all").mkdir()
    for index, part in enumerate(parts(events, 10)):
        bag = Bag(ros1=False)
        bag.add_array("/dvs/events", part)
        (one,) = bag.write(tmp_path / f"part{index}", "mcap").glob("*.mcap")
        one.rename(tmp_path / "all" / f"all_{index}.mcap")
    assert same(read_events(tmp_path / "all"), events)


def test_long_recordings_come_in_chunks(tmp_path, monkeypatch):
    events, bag = made_up(300), Bag(ros1=True)
    for part in parts(events, 20):
        bag.add_array("/e", part)
    path = bag.write(tmp_path / "a.bag", "bag")
    monkeypatch.setattr(rosbag, "FIRST_EVENTS", 50)
    chunks = list(iter_events(path))
    assert len(chunks) > 4
    assert same(concatenate(chunks), events)
    for limits in (EventLimits(events=200), EventLimits(scanned=200)):
        with pytest.raises(CrossdraftError, match="more than 200 events"):
            read_events(path, limits=limits)


@pytest.mark.parametrize("kind", ["bag", "mcap"])
def test_disorder_and_another_sensor_are_refused(tmp_path, kind):
    first, second = parts(made_up(100), 50)
    bag = bag_of(kind)
    for part in (second, first):
        bag.add_array("/e", part)
    with pytest.raises(CrossdraftError, match=r"out of order|earlier"):
        read_events(bag.write(tmp_path / "a.bag", kind))
    bag = bag_of(kind)
    bag.add_array("/e", first)
    bag.add_array("/e", replace(second, width=80))
    path = bag.write(tmp_path / "b.bag", kind)
    with pytest.raises(CrossdraftError, match="sensor"):
        read_events(path)
    assert len(read_events(path, sensor=(640, 480))) == 100


@pytest.mark.parametrize("kind", ["bag", "db3", "mcap"])
def test_damage_is_one_sentence(tmp_path, kind):
    bag = bag_of(kind)
    for part in parts(made_up(60), 20):
        bag.add_array("/e", part)
    path = bag.write(tmp_path / "a.bag", kind)
    file = path if kind == "bag" else next(path.glob(f"*.{kind}"))
    whole, rng = file.read_bytes(), np.random.default_rng(0)
    broken = tmp_path / f"b.{kind}"
    for length in np.linspace(20, len(whole) - 40, 12).astype(int):
        broken.write_bytes(whole[:length])
        with pytest.raises(CrossdraftError) as caught:
            read_events(broken)
        assert "\n" not in str(caught.value)
    for _ in range(30):
        damaged = np.frombuffer(whole, np.uint8).copy()
        damaged[rng.integers(16, len(whole), 4)] = rng.integers(0, 256, 4)
        broken.write_bytes(damaged.tobytes())
        try:
            read_events(broken)
        except CrossdraftError as error:
            assert "\n" not in str(error)  # noqa: PT017


def test_bags_without_events(tmp_path):
    bag = Bag(ros1=True)
    bag.add_image("/image", 5, np.zeros((4, 6, 3), np.uint8))
    with pytest.raises(CrossdraftError, match="it has /image"):
        read_events(bag.write(tmp_path / "a.bag", "bag"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(CrossdraftError, match="is a folder"):
        read_events(tmp_path / "empty")


@pytest.mark.parametrize("how", ["bz2", "lz4", "mcap", "message"])
def test_packed_bags_are_read_and_bounded(tmp_path, how):
    bag, events = bag_of("bag" if how in ("bz2", "lz4") else how), made_up(100)
    bag.add_array("/e", events)
    bag.add_packet("/zeros", bytes(3_000_000), 0, events.t0)
    path = tmp_path / "a.bag"
    if how in ("bz2", "lz4"):
        writer = rosbag1.Writer(path)
        writer.set_compression(writer.CompressionFormat[how.upper()])
    else:
        writer = rosbag2.Writer(path, version=9, storage_plugin=rosbag2.StoragePlugin.MCAP)
        mode = rosbag2.CompressionMode.STORAGE if how == "mcap" else rosbag2.CompressionMode.MESSAGE
        writer.set_compression(mode, rosbag2.CompressionFormat.ZSTD)
    with writer:
        for topic, name, recorded_ns, content in bag.messages:
            writer.write(writer.add_connection(topic, name, typestore=bag.store), recorded_ns, content)
    assert same(read_events(path, format="rosbag:/e"), events)
    with pytest.raises(CrossdraftError, match=r"above the limit|more than 1,048,576 bytes"):
        read_events(path, format="rosbag:/zeros", limits=EventLimits(block_bytes=1 << 20))


@pytest.mark.parametrize("ros1", [True, False])
def test_images_become_rgb(ros1, tmp_path):
    rng = np.random.default_rng(0)
    rgb = rng.integers(0, 256, (6, 8, 3), np.uint8)
    grey = rgb[..., :1]
    alpha = np.concatenate([rgb, grey], axis=2)
    bag = Bag(ros1)
    deep = (grey.astype(np.uint16) << 8) + 255
    given = [
        (rgb, "rgb8", rgb), (rgb[..., ::-1], "bgr8", rgb), (rgb[..., ::-1], "8UC3", rgb), (alpha, "rgba8", rgb),
        (alpha[..., [2, 1, 0, 3]], "bgra8", rgb), (grey, "mono8", grey.repeat(3, 2)), (grey, "8UC1", grey.repeat(3, 2)),
        (deep, "16UC1", grey.repeat(3, 2)),
    ]  # fmt: skip
    for index, (pixels, encoding, _) in enumerate(given):
        bag.add_image("/image", 1000 * index, pixels, encoding)
    bag.add_image("/image", 8000, deep.byteswap(), "mono16", swapped=True)
    padded = np.concatenate([rgb.reshape(6, 24), np.zeros((6, 5), np.uint8)], axis=1)
    bag.add(
        "/image", IMAGES[0], 9_000_000, height=6, width=8, encoding="rgb8", is_bigendian=0, step=29, data=padded.ravel()
    )
    found = list(rosbag.read_images(bag.write(tmp_path / "a.bag", "bag" if ros1 else "mcap"), lambda data: rgb))
    assert [time_us for time_us, _ in found] == list(range(0, 10_000, 1000))
    for (_, pixels), wanted in zip(found, [*(one for _, _, one in given), grey.repeat(3, 2), rgb], strict=True):
        assert np.array_equal(pixels, wanted)


@pytest.mark.parametrize("ros1", [True, False])
def test_compressed_images_are_read_from_their_bytes(ros1, tmp_path):
    cv2, bag = pytest.importorskip("cv2"), Bag(ros1)
    rgb = np.random.default_rng(0).integers(0, 256, (6, 8, 3), np.uint8)
    png = cv2.imencode(".png", rgb[..., ::-1])[1]
    bag.add("/image/compressed", IMAGES[1], 5_000_000, format="rgb8; png compressed bgr8", data=png.ravel())
    path = bag.write(tmp_path / "a.bag", "bag" if ros1 else "mcap")
    ((time_us, pixels),) = rosbag.read_images(path, lambda data: read_pixels(data)[0][0])
    assert time_us == 5000
    assert np.array_equal(pixels, rgb)


@pytest.mark.parametrize("order", ["rggb", "bggr", "gbrg", "grbg"])
def test_the_colours_of_a_bayer_mosaic(tmp_path, order):
    """A red scene lights the red sites alone, wherever they are."""
    bag = Bag(ros1=True)
    for time_us, colour in enumerate("rgb"):
        tile = np.array([255 if site == colour else 0 for site in order], np.uint8).reshape(2, 2)
        bag.add_image("/image", time_us, np.tile(tile, (8, 8)), f"bayer_{order}8")
    for index, (_, pixels) in enumerate(rosbag.read_images(bag.write(tmp_path / "a.bag", "bag"), bytes)):
        inner = pixels[4:-4, 4:-4].reshape(-1, 3).mean(0)
        assert inner.argmax() == index
        assert inner[index] > 250
        assert inner.sum() - inner[index] < 5


def test_images_of_an_odd_side_lose_a_line_and_others_are_refused(tmp_path):
    bag = Bag(ros1=True)
    bag.add_image("/image", 1, np.ones((5, 7, 3), np.uint8))
    bag.add_image("/image", 2, np.ones((5, 7, 3), np.uint8), "32FC3")
    images = rosbag.read_images(bag.write(tmp_path / "a.bag", "bag"), bytes)
    assert next(images)[1].shape == (4, 6, 3)
    with pytest.raises(CrossdraftError, match="in 32FC3 are not read"):
        next(images)


def mcap_of(path: Path, chunk: bytes, *, stated=100, index=()) -> Path:
    """A bag of a chunk, said to be packed by Zstandard, whose index names the places `index`."""

    def record(kind, content):
        return struct.pack("<BQ", kind, len(content)) + content

    def text(content):
        return struct.pack("<I", len(content)) + content

    start = b"\x89MCAP0\r\n" + record(1, text(b"ros2") + text(b""))
    data = start + record(
        6, struct.pack("<QQQI", 0, 9, stated, 0) + text(b"zstd") + struct.pack("<Q", len(chunk)) + chunk
    )
    packing = text(b"zstd") + struct.pack("<QQ", len(chunk), stated)
    names = [record(8, struct.pack("<QQQQIQ", 0, 9, place or len(start), 9, 0, 0) + packing) for place in index]
    names += [record(3, struct.pack("<H", 1) + 3 * text(b"")), record(11, bytes(46))] if index else []
    footer = record(2, struct.pack("<QQI", len(data) if index else 0, 0, 0))
    path.write_bytes(data + b"".join(names) + footer + b"\x89MCAP0\r\n")
    return path


def zstd_of(blocks: int) -> bytes:
    """A frame that states no size, of blocks of a repeated byte, 128 KiB in four bytes each."""
    return (
        rosbag.ZSTD
        + b"\0\x38"
        + b"".join(((1 << 20) + 2 + (i == blocks - 1)).to_bytes(4, "little") for i in range(blocks))
    )


@pytest.mark.parametrize(
    "chunk", [zstd_of(600), zstd_of(1) + zstd_of(600), b"\x50\x2a\x4d\x18" + bytes(4) + zstd_of(600)]
)
def test_a_chunk_that_does_not_say_its_size_is_refused_before_it_is_unpacked(tmp_path, monkeypatch, chunk):
    monkeypatch.setattr("rosbags.rosbag2.storage_mcap.decompress", None)
    with pytest.raises(CrossdraftError, match=r"above the limit|not packed by Zstandard"):
        read_events(mcap_of(tmp_path / "a.mcap", chunk))


def test_an_index_that_names_a_chunk_twice_or_something_else_is_refused(tmp_path):
    zstandard = pytest.importorskip("zstandard")
    chunk = zstandard.ZstdCompressor().compress(bytes(99))
    for index in ((0, 0), (5,)):
        with pytest.raises(CrossdraftError, match="names a chunk twice"):
            read_events(mcap_of(tmp_path / "a.mcap", chunk, index=index))
    for index in ((), (0,)):
        with pytest.raises(CrossdraftError) as caught:
            read_events(mcap_of(tmp_path / "a.mcap", chunk, index=index))
        assert "twice" not in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE messages ADD COLUMN more BLOB AS (zeroblob(900000000)) VIRTUAL",
        "CREATE VIEW more AS WITH RECURSIVE a(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM a) SELECT max(x) FROM a",
    ],
)
def test_a_database_that_computes_is_refused(tmp_path, change):
    bag = bag_of("db3")
    bag.add_array("/e", made_up(9))
    (path,) = bag.write(tmp_path / "a", "db3").glob("*.db3")
    assert len(read_events(path)) == 9
    with closing(sqlite3.connect(path)) as base:
        base.execute(change)
    with pytest.raises(CrossdraftError, match="computed"):
        read_events(path)


@pytest.mark.parametrize("alternate", [False, True])
def test_what_a_bag_unpacks_to_is_bounded_in_all(tmp_path, monkeypatch, alternate):
    """Many chunks that pack well, or one that is unpacked anew for each of its messages."""
    bag, path, zeros = Bag(ros1=True), tmp_path / "a.bag", bytes(8 * 200_000)
    for index in range(8):
        bag.add_packet("/e", b"" if alternate else zeros, 0, 0)
        if alternate and index == 3:
            bag.add_packet("/zeros", zeros, 0, 0)
    writer = rosbag1.Writer(path)
    writer.set_compression(writer.CompressionFormat.BZ2)
    with writer:
        topics = {name: writer.add_connection(name, PACKETS[0], typestore=bag.store) for name in ("/e", "/zeros")}
        for index, (topic, _, _, content) in enumerate(bag.messages):
            writer.write(topics[topic], index * 2 % 9, content)  # 0, 2, 4, 6, 8 and 1, 3, 5, 7
    found = read_events(path, format="rosbag:/e", limits=EventLimits(ratio=1e6))
    assert len(found) == 0 if alternate else len(found) == 1_600_000
    monkeypatch.setattr("crossdraft.events.limits.SMALL_BYTES", 2 * len(zeros))
    with pytest.raises(CrossdraftError, match="unpacks from"):
        read_events(path, format="rosbag:/e")


def test_blocks_of_zstandard_are_counted_whatever_a_frame_states_of_itself():
    blocks = (5 << 3, b"12345"), (7 << 3 | 2, b"1"), (9 << 3 | 5, bytes(9))  # stored, repeated, and packed, the last
    stored = b"".join(size.to_bytes(3, "little") + content for size, content in blocks)
    # Behind the letters: a window's size, a dictionary's name, the content's size; behind the blocks a checksum.
    heads = {0: 1, 0x20: 1, 0x60: 2, 0xE4: 8, 0x03: 5, 0x42: 5, 0x81: 6, 0xC4: 9}
    for head, more in heads.items():
        frame = rosbag.ZSTD + bytes([head]) + bytes(more) + stored + bytes(4 * (head >> 2 & 1))
        assert rosbag._most_unpacked(2 * frame, 0, 2 * len(frame)) == 2 * (5 + 7 + (1 << 17)), head


def test_messages_of_ros_1_are_not_taken_for_packed_ones(tmp_path):
    bag, events = Bag(ros1=True), made_up(20)
    bag.add_array("/e", events)
    bag.messages[0] = (*bag.messages[0][:3], rosbag.LZ4 + bag.messages[0][3][4:])  # its number begins as LZ4 does
    assert same(read_events(bag.write(tmp_path / "a.bag", "bag")), events)


def test_another_file_is_said_to_be_no_bag(tmp_path):
    (tmp_path / "a.raw").write_bytes(b"% evt 3.0\n")
    with pytest.raises(CrossdraftError, match="is no bag of ROS 1 or 2"):
        read_events(tmp_path / "a.raw", format="rosbag:/e")


@pytest.fixture
def growing(tmp_path):
    """A bag's database, as its recorder has it open, with 40 events and a function that adds messages to it."""
    bag = bag_of("db3")
    bag.add("/imu", "sensor_msgs/msg/TimeReference", 1, time_ref=bag.header(1).stamp, source="x")
    bag.add_array("/dvs/events", made_up(40, start_us=START_US))
    file = next(bag.write(tmp_path / "a.bag", "db3").glob("*.db3"))
    with closing(sqlite3.connect(file)) as base:

        def add(events: Events, topic: str = "/dvs/events") -> None:
            other = bag_of("db3")
            other.add_array(topic, events)
            (number,) = base.execute("SELECT id FROM topics WHERE name = ?", (topic,)).fetchone()
            base.execute(
                "INSERT INTO messages(topic_id, timestamp, data) VALUES (?, 1, ?)", (number, other.messages[0][3])
            )
            base.commit()

        yield file, base, add


def test_a_bag_that_grows_gives_what_is_added_from_now_on(growing):
    file, base, add = growing
    found = rosbag.growing_bag(file)
    assert next(found) is None
    new = made_up(30, start_us=START_US + 10**6)
    add(new.take(slice(0, 10)))
    add(new.take(slice(10, 30)))
    assert same(concatenate([next(found), next(found)]), new)
    assert next(found) is None
    base.execute("BEGIN EXCLUSIVE")  # while the recorder writes, nothing can be read
    assert next(found) is None
    base.rollback()
    base.execute("INSERT INTO messages(topic_id, timestamp, data) SELECT topic_id, 1, data FROM messages WHERE id = 1")
    base.commit()
    assert next(found) is None  # of another kind
    add(new.take(slice(0, 5)))
    assert len(next(found)) == 5


def test_what_is_no_bag_that_grows_is_refused(growing, tmp_path):
    file, base, _ = growing
    found = rosbag.growing_bag(file)
    assert next(found) is None
    base.execute(
        "INSERT INTO messages(topic_id, timestamp, data) SELECT topic_id, 1, substr(data, 1, 90) FROM messages"
    )
    base.commit()
    with pytest.raises(CrossdraftError, match="cannot be read as it grows"):
        list(found)
    base.execute("CREATE VIEW other AS SELECT * FROM messages")
    base.commit()
    for other, said in ((file, "computed"), (tmp_path / "none.db3", "unable to open"), (tmp_path / "text", "database")):
        (tmp_path / "text").write_text("no database " * 100)
        with pytest.raises(CrossdraftError, match=said):
            next(rosbag.growing_bag(other))


def test_a_live_source_reads_a_bag_that_grows(growing):
    file, _, add = growing
    events, new = open_events(f"live:bag:{file}", 60.0), made_up(4000, start_us=START_US + 10**6)
    starting, part = threading.Thread(target=events.reader.start), 0
    starting.start()
    while starting.is_alive():  # what is added before it looks is of before
        add(new.take(slice(part, part + 10)))
        part += 10
        starting.join(0.05)
    events.reader.close()
    assert events.reader.status().received >= 1
    assert str(file) in events.to_json()["source"]
