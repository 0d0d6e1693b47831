import struct

import numpy as np
import pytest

from crossdraft.errors import CrossdraftError
from crossdraft.events import binary, iter_events, read_events, write_events
from tests.events.helpers import made_up, same


def pack(events, header=b"% Version 2\n% Width 640\n% Height 480\n", kind=0x0C, size=8) -> bytes:
    """DAT bytes by the format's description: uint32 t, then 14 bits x, 14 bits y, 4 bits polarity."""
    body = b"".join(struct.pack("<II", t, x | y << 14 | p << 28) for t, x, y, p in events)
    return header + bytes([kind, size]) + body


EVENTS = [(5, 1, 2, 0), (6, 639, 479, 1), (6, 0, 0, 1)]


@pytest.mark.parametrize("kind", [0x0C, 0x00])
def test_bytes_packed_by_hand(tmp_path, kind):
    (tmp_path / "a.dat").write_bytes(pack(EVENTS, kind=kind))
    events = read_events(tmp_path / "a.dat")
    assert list(zip(events.t, events.x, events.y, events.p, strict=True)) == EVENTS
    assert (events.width, events.height) == (640, 480)


def test_the_sensor_without_a_size_in_the_header(tmp_path):
    for last, sensor in (((9, 303, 239, 1), (304, 240)), ((9, 304, 0, 1), (640, 480)), ((9, 0, 700, 0), (1280, 720))):
        (tmp_path / "a.dat").write_bytes(pack([last], header=b"% Data file containing CD events.\n"))
        assert (read_events(tmp_path / "a.dat").width, read_events(tmp_path / "a.dat").height) == sensor
    (tmp_path / "a.dat").write_bytes(pack([(9, 5, 5, 1)], header=b""))
    assert read_events(tmp_path / "a.dat", sensor=(10, 10)).width == 10


def test_the_32_bit_clock_wraps(tmp_path):
    top = (1 << 32) - 2
    (tmp_path / "a.dat").write_bytes(pack([(top, 0, 0, 0), (3, 0, 0, 0)]))
    assert read_events(tmp_path / "a.dat").t.tolist() == [top, top + 5]


def test_faery_writes_what_we_read(tmp_path):
    pytest.importorskip("faery")
    events = made_up(2000, 640, 480, start_us=57_922_807_588)
    write_events(tmp_path / "a.dat", events)
    assert same(read_events(tmp_path / "a.dat"), events)
    part = read_events(tmp_path / "a.dat", start_us=events.t0 + 10_000, end_us=events.t0 + 20_000)
    assert same(part, events.slice(events.t0 + 10_000, events.t0 + 20_000))


def test_faery_reads_what_we_pack(tmp_path):
    faery = pytest.importorskip("faery")
    (tmp_path / "a.dat").write_bytes(pack(EVENTS))
    theirs, ours = (faery.events_stream_from_file(tmp_path / "a.dat").to_array(), read_events(tmp_path / "a.dat"))
    for name in "xytp":
        assert np.array_equal(theirs[name], getattr(ours, name))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (pack(EVENTS)[:-1], "ends within an event"),
        (b"% Version 2\n\x0c", "ends within its header"),
        (pack(EVENTS, kind=0x0E), "type 0x0e"),
        (pack(EVENTS, size=16), "only CD events"),
        (pack(EVENTS[::-1]), "out of order"),
        (pack([(1, 640, 0, 0)]), "outside the 640x480"),
        (pack(EVENTS, header=b"% T0 " + b"9" * 20 + b"\n"), "T0 in its header has 20 digits"),
        (pack(EVENTS, header=b"% T0 " + b"9" * 3000 + b"\n"), "T0 in its header has 3000 digits"),
        (pack(EVENTS, header=b"% Width " + b"9" * 30 + b"\n% Height 480\n"), "Width in its header has 30"),
        (pack(EVENTS, header=b"% Width 640\n% Height " + b"9" * 18 + b"\n"), "pixels is impossible"),
        (b"%" * 100_000, "DAT|header"),
    ],
)
def test_bad_files_are_refused(tmp_path, content, words):
    (tmp_path / "a.dat").write_bytes(content)
    with pytest.raises(CrossdraftError, match=words) as caught:
        read_events(tmp_path / "a.dat")
    assert "\n" not in str(caught.value)


def test_a_number_that_nobody_asks_for_may_be_long(tmp_path):
    header = b"% T0 1000\n% serial_number " + b"9" * 30 + b"\n% Width 640\n% Height 480\n"
    (tmp_path / "a.dat").write_bytes(pack(EVENTS, header=header))
    assert read_events(tmp_path / "a.dat").t.tolist() == [1005, 1006, 1006]


@pytest.mark.parametrize("header", [b"% Width 640\n% Height 480\n", b""])
def test_chunks_are_read_as_far_as_the_window(tmp_path, monkeypatch, header):
    monkeypatch.setattr(binary, "CHUNK_EVENTS", 2)
    top = (1 << 32) - 2
    rows = [(top - 4, 1, 1, 0), (top, 639, 2, 1), (3, 3, 3, 0), (4, 4, 4, 1), (9, 5, 5, 0)]
    (tmp_path / "a.dat").write_bytes(pack(rows, header=header))
    chunks = list(iter_events(tmp_path / "a.dat"))
    assert [chunk.t.tolist() for chunk in chunks] == [[top - 4, top], [top + 5, top + 6], [top + 11]]
    assert {(chunk.width, chunk.height) for chunk in chunks} == {(640, 480)}
    (tmp_path / "a.dat").write_bytes(pack([*rows, (8, 5, 5, 0)], header=header))
    assert read_events(tmp_path / "a.dat", end_us=top + 6).t.tolist() == [top - 4, top, top + 5]
    with pytest.raises(CrossdraftError, match="out of order"):
        read_events(tmp_path / "a.dat")
