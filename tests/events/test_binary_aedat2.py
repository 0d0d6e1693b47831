import struct

import pytest

from crossdraft.errors import CrossdraftError
from crossdraft.events import binary, iter_events, read_events

HEADER = b"#!AER-DAT2.0\r\n# This is a raw AE data file\r\n# Creation time: 11:07AM\r\n"


def pack(events, width=346, height=260, header=HEADER, flags=0) -> bytes:
    """AEDAT 2 bytes as jAER and v2e write them: big-endian, both axes mirrored."""
    words = (((height - 1 - y) << 22 | (width - 1 - x) << 12 | p << 11 | flags, t) for t, x, y, p in events)
    return header + b"".join(struct.pack(">II", *pair) for pair in words)


EVENTS = [(5, 1, 2, 0), (6, 345, 259, 1), (6, 0, 0, 1)]


def test_bytes_packed_by_hand(tmp_path):
    (tmp_path / "a.aedat").write_bytes(pack(EVENTS))
    events = read_events(tmp_path / "a.aedat")
    assert list(zip(events.t, events.x, events.y, events.p, strict=True)) == EVENTS
    assert (events.width, events.height) == (346, 260)


def test_one_event_bit_by_bit(tmp_path):
    # y address 3, x address 5, polarity 1 at 258 µs: the pixel (340, 256) of a DAVIS346.
    word = bytes([0b0_0000000, 0b11_000000, 0b0101_1_000, 0, 0, 0, 1, 2])
    (tmp_path / "a.aedat").write_bytes(HEADER + word)
    events = read_events(tmp_path / "a.aedat")
    assert [int(getattr(events, name)[0]) for name in "xytp"] == [340, 256, 258, 1]


def test_frames_inertial_data_and_triggers_are_skipped(tmp_path):
    mixed = pack(EVENTS[:1]) + pack(EVENTS[:1], header=b"", flags=1 << 31)
    mixed += pack(EVENTS[1:2], header=b"", flags=1 << 10) + pack(EVENTS[1:], header=b"")
    (tmp_path / "a.aedat").write_bytes(mixed)
    assert read_events(tmp_path / "a.aedat").t.tolist() == [5, 6, 6]


def test_davis240_by_header_or_by_name(tmp_path):
    events = [(5, 239, 179, 1), (7, 0, 3, 0)]
    (tmp_path / "a.aedat").write_bytes(pack(events, 240, 180, HEADER + b"# chip DAVIS240C\r\n"))
    (tmp_path / "b.aedat").write_bytes(pack(events, 240, 180))
    for found in (read_events(tmp_path / "a.aedat"), read_events(tmp_path / "b.aedat", sensor=(240, 180))):
        assert list(zip(found.t, found.x, found.y, found.p, strict=True)) == events
    (tmp_path / "a.aedat").write_bytes(pack([(5, 39, 7, 1)], 640, 480))  # its column is stored as 600
    assert read_events(tmp_path / "a.aedat", sensor=(640, 480)).x.tolist() == [39]
    (tmp_path / "a.aedat").write_bytes(pack(EVENTS))
    with pytest.raises(CrossdraftError, match="outside the 240x180"):
        read_events(tmp_path / "a.aedat", sensor=(240, 180))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (pack(EVENTS)[:-3], "ends within an event"),
        (pack(EVENTS[::-1]), "out of order"),
        (b"#!AER-DAT3.1\r\n" + b"\0" * 16, "not AEDAT 2"),
        (b"#!AER-DAT2.0", None),
    ],
)
def test_bad_files_are_refused(tmp_path, content, words):
    (tmp_path / "a.aedat").write_bytes(content)
    if words is None:
        assert len(read_events(tmp_path / "a.aedat")) == 0
        return
    with pytest.raises(CrossdraftError, match=words):
        read_events(tmp_path / "a.aedat")


@pytest.mark.parametrize("end", [b"", b"#End Of ASCII Header\r\n", b"# end of ascii header\n"])
def test_an_event_that_begins_with_the_byte_of_a_comment_is_an_event(tmp_path, end):
    """Raw y 140 to 143 puts 0x23, the letter #, in front."""
    events = [(t, 7, 260 - 1 - 141, t % 2) for t in range(1, 21)]
    (tmp_path / "a.aedat").write_bytes(pack(events, header=HEADER + end))
    assert read_events(tmp_path / "a.aedat").t.tolist() == list(range(1, 21))
    (tmp_path / "a.aedat").write_bytes(HEADER + end + b"#@     \n")  # as a line of text, unless the end was stated
    assert read_events(tmp_path / "a.aedat").t.tolist() == ([0x2020_200A] if end else [])


def test_chunks_are_read_as_far_as_the_window(tmp_path, monkeypatch):
    monkeypatch.setattr(binary, "CHUNK_EVENTS", 2)
    top = (1 << 32) - 2
    rows = [(top - 4, 1, 1, 0), (top, 2, 2, 1), (3, 3, 3, 0), (4, 4, 4, 1), (9, 5, 5, 0)]
    (tmp_path / "a.aedat").write_bytes(pack(rows))
    found = [chunk.t.tolist() for chunk in iter_events(tmp_path / "a.aedat")]
    assert found == [[top - 4, top], [top + 5, top + 6], [top + 11]]
    (tmp_path / "a.aedat").write_bytes(pack([*rows, (8, 5, 5, 0)]))
    assert read_events(tmp_path / "a.aedat", end_us=top + 6).t.tolist() == [top - 4, top, top + 5]


def test_a_restart_of_the_camera_is_named(tmp_path):
    frame = pack([(7, 1, 1, 0)], header=b"", flags=1 << 31)  # its clock does not count
    rows = [(3_000_000_000, 1, 1, 0), (5, 2, 2, 1), (9, 3, 3, 1)]
    (tmp_path / "a.aedat").write_bytes(pack(rows[:1]) + frame + pack(rows[1:], header=b""))
    with pytest.raises(CrossdraftError, match=r"event 1 is 2999999995 µs earlier .*a camera that is restarted"):
        read_events(tmp_path / "a.aedat")
