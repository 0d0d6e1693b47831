"""Recordings of eight bytes an event: the clock that wraps, and Prophesee DAT."""

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossdraft.errors import CrossdraftError
from crossdraft.events import binary, iter_events, read_events, write_events
from crossdraft.events.binary import WrappingClock, word_pairs
from crossdraft.events.limits import DEFAULT_LIMITS
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
    assert [column.tolist() for column in binary._unpack(np.array([0xFFFF_FFFF]))] == [[0x3FFF], [0x3FFF], [1]]


def test_the_sensor_without_a_size_in_the_header(tmp_path):
    for last, sensor in (((9, 303, 239, 1), (304, 240)), ((9, 304, 0, 1), (640, 480)), ((9, 0, 700, 0), (1280, 720))):
        (tmp_path / "a.dat").write_bytes(pack([last], header=b"% Data file containing CD events.\n"))
        assert (read_events(tmp_path / "a.dat").width, read_events(tmp_path / "a.dat").height) == sensor
    for header, x, sensor in (
        (b"", 1300, (1301, 6)), (b"% Width 640\n", 5, (304, 240)), (b"% width 640\n% HEIGHT 480\n", 5, (640, 480)),
    ):  # fmt: skip
        (tmp_path / "a.dat").write_bytes(pack([(9, x, 5, 1)], header=header))
        assert (read_events(tmp_path / "a.dat").width, read_events(tmp_path / "a.dat").height) == sensor
    (tmp_path / "a.dat").write_bytes(pack([(9, 5, 5, 1)], header=b""))
    assert read_events(tmp_path / "a.dat", sensor=(10, 10)).width == 10


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
        (pack(EVENTS, header=b"% T0 " + b"9" * 19 + b"\n"), "T0 in its header has 19 digits"),
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


def test_words_of_either_order_come_in_chunks(tmp_path, monkeypatch):
    monkeypatch.setattr(binary, "CHUNK_EVENTS", 2)
    (tmp_path / "a").write_bytes(b"head" + bytes(range(40)))
    with (tmp_path / "a").open("rb") as file:
        file.seek(4)
        chunks = [chunk.tolist() for chunk in word_pairs(file, ">", tmp_path, DEFAULT_LIMITS)]
        assert [len(chunk) for chunk in chunks] == [2, 2, 1]
        assert chunks[0][0] == [0x00010203, 0x04050607]
        file.seek(4)
        assert next(word_pairs(file, "<", tmp_path, DEFAULT_LIMITS))[0].tolist() == [0x03020100, 0x07060504]


def test_an_empty_rest_is_one_empty_chunk_and_a_cut_one_is_refused(tmp_path):
    (tmp_path / "a").write_bytes(bytes(9))
    with (tmp_path / "a").open("rb") as file:
        with pytest.raises(CrossdraftError, match="ends within an event"):
            next(word_pairs(file, "<", tmp_path, DEFAULT_LIMITS))
        file.seek(9)
        assert [chunk.shape for chunk in word_pairs(file, "<", tmp_path, DEFAULT_LIMITS)] == [(0, 2)]


MINUTE = 60_000_000


@given(st.lists(st.integers(0, MINUTE), max_size=90), st.integers(0, (1 << 32) - 1), st.integers(1, 5))
def test_a_wrap_is_undone_wherever_a_chunk_ends(steps, start, size):
    true = start + np.cumsum([0, *steps], dtype=np.int64)
    raw = (true % (1 << 32)).astype(np.uint32)
    clock = WrappingClock("x")
    found = [t for i in range(0, len(raw), size) for t in clock(raw[i : i + size]).tolist()]
    assert found == true.tolist()
    assert clock(raw[:0]).tolist() == []


def test_disorder_between_chunks_is_seen():
    clock = WrappingClock("x")
    clock(np.array([500], np.uint32))
    with pytest.raises(CrossdraftError, match=r"event 1 is 100 µs earlier .* places\); sort the recording by time"):
        clock(np.array([400], np.uint32))


@pytest.mark.parametrize("size", [1, 5])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (3_000_000_100, 5),  # after 50 minutes
        (2_200_000_000, 10),  # more than half of the range
        ((1 << 32) - MINUTE - 1, 5),
        ((1 << 32) - 1, MINUTE),
        (5_000_000, 0),
    ],
)
def test_a_restart_of_the_camera_is_no_wrap(tmp_path, monkeypatch, before, after, size):
    monkeypatch.setattr(binary, "CHUNK_EVENTS", size)
    (tmp_path / "a.dat").write_bytes(pack([(t, 1, 1, 0) for t in (before - 1, before, after, after + 9)]))
    words = f"event 2 is {before - after} µs earlier than the one before it .*restarted"
    with pytest.raises(CrossdraftError, match=words) as caught:
        read_events(tmp_path / "a.dat")
    assert "\n" not in str(caught.value)


@given(
    st.lists(st.integers(0, MINUTE), max_size=90),
    st.integers(0, (1 << 32) - 1),
    st.integers(1, 90),
    st.integers(0, (1 << 32) - 1),
    st.integers(1, 5),
)
def test_a_clock_that_is_set_anew_is_refused_or_was_at_its_edges(steps, start, at, anew, size):
    """The reader never invents time: a jump by which it goes on is forward, or a wrap by the stated bound."""
    raw = ((start + np.cumsum([0, *steps], dtype=np.int64)) % (1 << 32)).astype(np.uint32)
    raw[at:] = anew
    clock, back = WrappingClock("x"), np.flatnonzero(np.diff(raw.astype(np.int64)) < 0)
    wraps = all(raw[i] >= (1 << 32) - MINUTE and raw[i + 1] < MINUTE for i in back)
    try:
        found = [t for i in range(0, len(raw), size) for t in clock(raw[i : i + size]).tolist()]
    except CrossdraftError:
        assert not wraps
        return
    assert wraps
    assert np.diff(found).min(initial=0) >= 0
    assert (np.array(found) % (1 << 32) == raw).all()
