import pytest

from crossdraft.errors import CrossdraftError
from crossdraft.events import EventLimits, iter_events, read_events
from tests.datasets.helpers import five_bytes


def test_the_five_bytes_by_hand(tmp_path):
    # x = 17, y = 5, ON, t = 0x012345 = 74565 µs
    (tmp_path / "a.bin").write_bytes(bytes([17, 5, 0x81, 0x23, 0x45]))
    events = read_events(tmp_path / "a.bin")
    assert (events.x[0], events.y[0], events.p[0], events.t[0]) == (17, 5, 1, 74565)
    assert (events.width, events.height) == (240, 180)


def test_an_overflow_of_the_clock_is_no_event(tmp_path):
    rows = [(1, 1, 0, 8000), (0, 240, 0, 0), (2, 2, 1, 100), (0, 240, 0, 0), (3, 3, 1, 50)]
    (tmp_path / "a.bin").write_bytes(five_bytes(rows))
    events = read_events(tmp_path / "a.bin")
    assert events.x.tolist() == [1, 2, 3]
    assert events.t.tolist() == [8000, 8192 + 100, 2 * 8192 + 50]


def test_a_wrap_of_the_23_bits_is_undone_and_a_restart_refused(tmp_path):
    top = 1 << 23
    (tmp_path / "a.bin").write_bytes(five_bytes([(1, 1, 0, top - 9), (2, 2, 1, 10), (3, 3, 1, 20)]))
    assert read_events(tmp_path / "a.bin").t.tolist() == [top - 9, top + 10, top + 20]
    part = read_events(tmp_path / "a.bin", start_us=top, end_us=top + 20)
    assert (part.t.tolist(), part.notes) == ([top + 10], ("Its clock of 23 bits wrapped, which is undone.",))
    for limits, words in ((EventLimits(events=2), "more than 2 events"), (EventLimits(held_bytes=14), "has 15 bytes")):
        with pytest.raises(CrossdraftError, match=words):
            next(iter(iter_events(tmp_path / "a.bin", limits=limits)))
    for rows, words in (
        ([(1, 1, 0, 7_000_000), (2, 2, 1, 10)], "6999990 µs earlier .*a camera that is restarted"),
        ([(1, 1, 0, top - 9), (2, 2, 1, 1_000_000)], "restarted"),
        ([(1, 1, 0, 200), (2, 2, 1, 100)], "100 µs earlier .*sort the recording"),
        ([(1, 1, 0, top - 9), (0, 240, 0, 0), (2, 2, 1, 10)], "restarted"),
    ):
        (tmp_path / "a.bin").write_bytes(five_bytes(rows))
        with pytest.raises(CrossdraftError, match=words):
            read_events(tmp_path / "a.bin")


def test_what_is_cut_off_or_outside(tmp_path):
    (tmp_path / "a.bin").write_bytes(five_bytes([(1, 1, 0, 5)])[:-1])
    with pytest.raises(CrossdraftError, match="within an event"):
        read_events(tmp_path / "a.bin")
    (tmp_path / "a.bin").write_bytes(five_bytes([(1, 200, 0, 5)]))
    with pytest.raises(CrossdraftError, match="outside the 240x180 sensor"):
        read_events(tmp_path / "a.bin")
    assert len(read_events(tmp_path / "a.bin", sensor=(304, 240))) == 1
