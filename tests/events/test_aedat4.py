"""AEDAT 4 files made by hand from the format's description, by dv-processing where it is installed, and by faery."""

import struct

import numpy as np
import pytest

from crossdraft.errors import CrossdraftError
from crossdraft.events import EventLimits, Events, Newest, aedat4, concatenate, iter_events, read_events
from tests.events.helpers import made_up, same

lz4 = pytest.importorskip("lz4.frame")
zstandard = pytest.importorskip("zstandard")
PACKERS = {
    0: bytes, 1: lz4.compress, 2: lambda packet: lz4.compress(packet, compression_level=9),
    3: zstandard.ZstdCompressor().compress, 4: zstandard.ZstdCompressor(level=19).compress,
}  # fmt: skip
STREAMS = ("FRME", "IMUS", "EVTS", "TRIG", "EVTS", "NEWS")


def flatbuffer(identifier: bytes, *fields) -> bytes:
    """A size-prefixed FlatBuffer of one table; a field is None, (format, number) or (bytes, number of elements)."""
    names = b"".join(struct.pack("<H", 0 if field is None else 8 + 8 * i) for i, field in enumerate(fields))
    start = -(-(12 + len(names)) // 8) * 8  # of the table; the names of its fields are before it, at 8
    body = struct.pack("<I4sHH", start, identifier, 4 + len(names), 8 + 8 * len(fields)) + names
    body = body.ljust(start, b"\0") + struct.pack("<ii", start - 8, 0)
    behind, place = b"", start + 8 + 8 * len(fields)
    for field in fields:
        if field is not None and isinstance(field[0], bytes):
            body += struct.pack("<Ii", place + len(behind) + 4 - len(body), 0)
            behind += struct.pack("<ii", 0, field[1]) + field[0].ljust(-(-len(field[0]) // 8) * 8, b"\0")
        else:
            body += bytes(8) if field is None else struct.pack(f"<{field[0]}", field[1]).ljust(8, b"\0")
    body += behind
    return struct.pack("<I", len(body)) + body


def event_packet(events: Events) -> bytes:
    rows = np.zeros(len(events), aedat4.EVENT)
    for name in "txyp":
        rows[name] = getattr(events, name)
    return flatbuffer(b"EVTS", (rows.tobytes(), len(rows)))


def frame_packet(depth: str) -> bytes:
    """A frame; one of 16 bits has OpenCV's number for its type (2), which the first readers do not know."""
    pixels = np.arange(12).astype(depth).tobytes()
    form = {"u1": 0, "u2": 2}[depth]
    return flatbuffer(b"FRME", *[("q", 5)] * 5, ("b", form), ("h", 4), ("h", 3), None, None, (pixels, len(pixels)))


def description(streams=STREAMS, size=(64, 48)) -> str:
    sides = "".join(f'<attr key="size{axis}" type="int">{side}</attr>' for axis, side in zip("XY", size, strict=False))
    nodes = "".join(
        f'<node name="{index}" path="/outInfo/{index}/"><attr key="typeIdentifier" type="string">{kind}'
        f'</attr><node name="info"><attr key="source" type="string"></attr><attr key="gain" type="float">1.5</attr>'
        f"{sides if kind in ('EVTS', 'FRME') else ''}</node></node>"
        for index, kind in enumerate(streams)
    )
    return f'<dv version="2.0"><node name="outInfo" path="/mainloop/Recorder/outInfo/">{nodes}</node></dv>'


def written(path, packets, compression=1, text=None, closed=True) -> bytes:
    """Write packets (stream, content) with a header and a table, which readers may do without."""
    xml = (description() if text is None else text).encode()
    stored = b"".join(
        struct.pack("<ii", stream, len(packed)) + packed
        for stream, packed in ((stream, PACKERS[compression](content)) for stream, content in packets)
    )

    def header(table):
        return aedat4.MAGIC + flatbuffer(b"IOHE", ("i", compression), ("q", table), (xml, len(xml)))

    whole = header(len(header(0)) + len(stored) if closed else -1) + stored + (b"a table" if closed else b"")
    path.write_bytes(whole)
    return whole


def mixed(events: Events, size: int = 50):
    """Packets of events between packets of everything else, and one of each kind that no reader knows."""
    parts = [events.take(slice(begin, begin + size)) for begin in range(0, len(events), size)]
    others = [
        (0, frame_packet("u1")), (0, frame_packet("u2")), (1, flatbuffer(b"IMUS", (bytes(48), 1))),
        (3, flatbuffer(b"TRIG", (bytes(16), 1))), (4, event_packet(made_up(3))), (5, b"no FlatBuffer"),
    ]  # fmt: skip
    packets = [(2, flatbuffer(b"EVTS", None))]
    for index, part in enumerate(parts):
        packets += [others[index % len(others)], (2, event_packet(part))]
    return [*packets, (2, flatbuffer(b"EVTS", (b"", 0))), *others]


@pytest.mark.parametrize("compression", PACKERS)
def test_other_packets_are_passed_over(tmp_path, compression):
    events = made_up(600, start_us=1_700_000_000_000_000)
    written(tmp_path / "a.aedat4", mixed(events), compression)
    found = read_events(tmp_path / "a.aedat4")
    assert same(found, events)
    assert found.notes == ("2 streams of events are recorded; the first is read.",)
    for first, last in ((-1, 10_000), (20_000, 30_000), (49_000, 60_000), (60_000, 70_000)):
        span = (events.t0 + first, events.t0 + last)
        assert same(read_events(tmp_path / "a.aedat4", start_us=span[0], end_us=span[1]), events.slice(*span))


@pytest.mark.parametrize(
    "newest", [Newest(us=2000), Newest(us=1, least=70), Newest(us=20_000, most=130), Newest(most=9)]
)
@pytest.mark.parametrize("ends", [None, 30_000])
def test_the_newest_window_unpacks_few_packets(tmp_path, monkeypatch, newest, ends):
    events = made_up(6000)
    written(tmp_path / "a.aedat4", mixed(events))
    unpacked, honest = [], aedat4.unpacked
    monkeypatch.setattr(aedat4, "unpacked", lambda *packet: unpacked.append(packet) or honest(*packet))
    found = read_events(tmp_path / "a.aedat4", end_us=ends, newest=newest)
    assert same(found, newest.of(events.slice(-1, 1 << 60 if ends is None else ends)))
    assert len(unpacked) < 110 if newest.us == 20_000 else len(unpacked) < 30  # of 122


def test_the_newest_events_are_exact_at_the_edges_of_packets(tmp_path):
    events = Events.checked(range(6), range(6), [0, 10, 10, 14, 15, 20], [0] * 6, 64, 48)
    packets = [(2, event_packet(events.take(slice(begin, begin + 2)))) for begin in (0, 2, 4)]
    written(tmp_path / "a.aedat4", packets)
    for end_us, newest in ((20, Newest(us=6)), (None, Newest(most=3)), (None, Newest(least=5, us=1))):
        wanted = newest.of(events.slice(0, end_us or 99))
        assert same(read_events(tmp_path / "a.aedat4", start_us=0, end_us=end_us, newest=newest), wanted)


def test_long_recordings_come_in_chunks(tmp_path, monkeypatch):
    events = made_up(600)
    written(tmp_path / "a.aedat4", mixed(events))
    monkeypatch.setattr(aedat4, "FIRST_EVENTS", 100)
    chunks = list(iter_events(tmp_path / "a.aedat4"))
    assert len(chunks) > 4
    assert same(concatenate(chunks), events)


@pytest.mark.parametrize("order", [(0, 2, 1, 3), (1, 0, 2, 3)])
def test_packets_and_events_out_of_order_are_refused(tmp_path, order):
    events = made_up(200)
    parts = [event_packet(events.take(slice(50 * i, 50 * i + 50))) for i in order]
    written(tmp_path / "a.aedat4", [(2, part) for part in parts])
    backward = Events(events.x, events.y, events.t[::-1].copy(), events.p, 64, 48)
    written(tmp_path / "b.aedat4", [(2, event_packet(backward))])
    for name in ("a.aedat4", "b.aedat4"):
        with pytest.raises(CrossdraftError, match=f"{name}: events out of order"):
            read_events(tmp_path / name)


def test_a_file_cut_anywhere_is_refused(tmp_path):
    whole = written(tmp_path / "a.aedat4", mixed(made_up(60), 20))
    for length in range(1, len(whole) - len(b"a table"), 7):
        (tmp_path / "b.aedat4").write_bytes(whole[:length])
        with pytest.raises(CrossdraftError, match=r"cut off|cannot be read|not a whole") as caught:
            read_events(tmp_path / "b.aedat4")
        assert "\n" not in str(caught.value)
    (tmp_path / "b.aedat4").write_bytes(whole[: -len(b"a table")])
    assert len(read_events(tmp_path / "b.aedat4")) == 60  # all its packets are there


def test_a_recording_that_was_never_closed_is_read_up_to_its_last_whole_packet(tmp_path):
    events = made_up(60)
    packets = [(2, event_packet(events.take(slice(begin, begin + 20)))) for begin in (0, 20, 40)]
    whole = written(tmp_path / "a.aedat4", packets, text=description(("FRME", "IMUS", "EVTS")), closed=False)
    assert read_events(tmp_path / "a.aedat4").notes == ()
    last = len(PACKERS[1](packets[2][1]))
    for cut in (1, last - 1, last, last + 7):
        (tmp_path / "b.aedat4").write_bytes(whole[:-cut])
        found = read_events(tmp_path / "b.aedat4")
        assert same(found, events.take(slice(0, 40)))
        size = len(whole) - cut
        assert found.notes == (
            f"The recording was never closed; it was read up to byte {len(whole) - last - 8:,} of {size:,}.",
        )


def test_damage_is_refused_or_read_never_worse(tmp_path):
    whole = written(tmp_path / "a.aedat4", mixed(made_up(60), 20))
    rng = np.random.default_rng(0)
    for _ in range(150):
        damaged = np.frombuffer(whole, np.uint8).copy()
        damaged[rng.integers(14, len(whole), 3)] = rng.integers(0, 256, 3)
        (tmp_path / "b.aedat4").write_bytes(damaged.tobytes())
        try:
            read_events(tmp_path / "b.aedat4")
        except CrossdraftError as error:
            assert "\n" not in str(error)  # noqa: PT017


@pytest.mark.parametrize("compression", [1, 3])
def test_a_packet_that_unpacks_without_bound_is_refused(tmp_path, compression):
    written(tmp_path / "a.aedat4", [(2, bytes(40_000_000))], compression)
    with pytest.raises(CrossdraftError, match="unpacks to"):
        read_events(tmp_path / "a.aedat4", limits=EventLimits(block_bytes=1 << 20))
    packet = struct.pack("<I", 40_000_000 - 4) + bytes(40_000_000 - 4)
    written(tmp_path / "a.aedat4", [(2, packet)], 3)
    with pytest.raises(CrossdraftError, match="unpacks from"):
        read_events(tmp_path / "a.aedat4")


def test_a_frame_of_zstandard_may_look_128_mib_back():
    frame = aedat4.ZSTD + b"\0%c" + (5 << 3 | 1).to_bytes(3, "little") + b"hello"
    assert aedat4.unpacked(frame % 0x88, 5) == b"hello"
    assert aedat4.unpacked(lz4.compress(bytes(10_000)), 10_000) == bytes(10_000)  # 200 to 1
    with pytest.raises(ValueError, match="memory"):
        aedat4.unpacked(frame % 0x89, 5)  # an eighth more


def test_limits_count_what_is_unpacked(tmp_path):
    written(tmp_path / "a.aedat4", mixed(made_up(600)))
    for limits in (EventLimits(events=500), EventLimits(scanned=500)):
        with pytest.raises(CrossdraftError, match="more than 500 events"):
            read_events(tmp_path / "a.aedat4", limits=limits)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (description(("FRME", "IMUS")), "names no stream of events"),
        (description(size=()), "how large its sensor is"),
        ('<!DOCTYPE dv [<!ENTITY a "aaaa">]>' + description(), "document type"),
        ("<dv>", "cannot be read"),
        ("", "cannot be read"),
        (description(size=("a", 3)), "cannot be read"),
    ],
)
def test_headers_that_cannot_be_used(tmp_path, text, sentence):
    written(tmp_path / "a.aedat4", mixed(made_up(60)), text=text)
    with pytest.raises(CrossdraftError, match=sentence) as caught:
        read_events(tmp_path / "a.aedat4")
    assert "\n" not in str(caught.value)


def test_a_sensor_that_is_given_stands_for_one_that_is_not_stated(tmp_path):
    events = made_up(60)
    written(tmp_path / "a.aedat4", mixed(events), text=description(size=()))
    assert same(read_events(tmp_path / "a.aedat4", sensor=(64, 48)), events)


@pytest.mark.parametrize(("compression", "package"), [(1, "lz4"), (3, "zstandard")])
def test_a_package_that_is_missing_is_named(tmp_path, monkeypatch, compression, package):
    written(tmp_path / "a.aedat4", mixed(made_up(60)), compression)

    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(aedat4, "import_module", missing)
    with pytest.raises(CrossdraftError, match=f"pip install {package}"):
        read_events(tmp_path / "a.aedat4")


def test_what_dv_processing_writes_is_read(tmp_path):
    dv = pytest.importorskip("dv_processing")
    events = made_up(3000, start_us=1_700_000_000_000_000)
    config = dv.io.MonoCameraWriter.Config("made up")
    config.addEventStream((64, 48))
    config.addFrameStream((64, 48))
    config.addImuStream()
    config.addTriggerStream()
    writer = dv.io.MonoCameraWriter(str(tmp_path / "a.aedat4"), config)
    for start in range(0, 3000, 500):
        store = dv.EventStore()
        for t, x, y, p in zip(*(getattr(events, name)[start : start + 500].tolist() for name in "txyp"), strict=True):
            store.push_back(t, x, y, bool(p))
        depth = np.uint8 if start % 1000 else np.uint16
        writer.writeFrame(dv.Frame(int(events.t[start]), np.full((48, 64), 7, depth)))
        writer.writeImu(dv.IMU(int(events.t[start]), 20.0, 1, 2, 3, 4, 5, 6, 7, 8, 9))
        writer.writeTrigger(dv.Trigger(int(events.t[start]), dv.TriggerType.EXTERNAL_SIGNAL_RISING_EDGE))
        writer.writeEvents(store)
    del writer
    assert same(read_events(tmp_path / "a.aedat4"), events)
    assert same(read_events(tmp_path / "a.aedat4", newest=Newest(us=999)), Newest(us=999).of(events))
