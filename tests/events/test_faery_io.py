import resource
import struct
from typing import Any

import numpy as np
import pytest

from crossdraft.errors import CrossdraftError
from crossdraft.events import Events, read_events, write_events
from tests.events.helpers import made_up, same

faery = pytest.importorskip("faery")


@pytest.fixture(autouse=True)
def _no_endless_files():
    """faery can write until the disk is full: no test may write more than 64 MB to a file."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 20, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def by_faery(path, events: Events, version: str | None) -> None:
    rows: Any = np.zeros(len(events), faery.EVENTS_DTYPE)
    for name in "txyp":
        rows[name] = getattr(events, name)
    faery.events_stream_from_array(rows, (events.width, events.height)).to_file(path, version=version)


@pytest.mark.parametrize(
    ("name", "version"), [("a.aedat4", None), ("a.raw", "evt2"), ("a.raw", "evt3"), ("a.dat", "dat2")]
)
@pytest.mark.parametrize("start", [0, 57_922_807_588])
def test_what_faery_writes_we_read(tmp_path, name, version, start):
    events = made_up(20_000, 640, 480, start_us=start)
    by_faery(tmp_path / name, events, version)
    assert same(read_events(tmp_path / name), events)
    part = read_events(tmp_path / name, start_us=start + 10_000, end_us=start + 20_000)
    assert same(part, events.slice(start + 10_000, start + 20_000))


@pytest.mark.parametrize("name", ["a.aedat4", "a.raw"])
def test_what_we_write_faery_reads(tmp_path, name):
    events = made_up(5000, 1280, 720, start_us=10_000_000)
    write_events(tmp_path / name, events)
    stream = faery.events_stream_from_file(tmp_path / name)
    rows = stream.to_array()
    assert stream.dimensions() == (1280, 720)
    for column in "xytp":
        assert np.array_equal(rows[column], getattr(events, column))


def test_evt2_words_packed_by_hand(tmp_path):
    """TIME_HIGH (8) sets the upper 28 bits of the time; CD_OFF (0) and CD_ON (1) carry 6 more, x and y."""
    words = [0x8 << 28 | 3, 0x1 << 28 | 5 << 22 | 17 << 11 | 23, 0x8 << 28 | 4, 0x0 << 28 | 1 << 22 | 639 << 11 | 479]
    header = b"% evt 2.0\n% format EVT2;width=640;height=480\n% geometry 640x480\n% end\n"
    (tmp_path / "a.raw").write_bytes(header + struct.pack("<4I", *words))
    events = read_events(tmp_path / "a.raw")
    assert list(zip(events.t, events.x, events.y, events.p, strict=True)) == [
        (3 * 64 + 5, 17, 23, 1),
        (4 * 64 + 1, 639, 479, 0),
    ]
    assert (events.width, events.height) == (640, 480)


def test_evt3_words_packed_by_hand(tmp_path):
    """TIME_HIGH (8) and TIME_LOW (6) hold 12 bits each; ADDR_Y (0) a row, ADDR_X (2) a column and polarity."""
    words = [0x8 << 12 | 2, 0x6 << 12 | 100, 0x0 << 12 | 50, 0x2 << 12 | 1 << 11 | 60, 0x6 << 12 | 101, 0x2 << 12 | 61]
    header = b"% evt 3.0\n% format EVT3;width=1280;height=720\n% geometry 1280x720\n% end\n"
    (tmp_path / "a.raw").write_bytes(header + struct.pack("<6H", *words))
    events = read_events(tmp_path / "a.raw")
    assert list(zip(events.t, events.x, events.y, events.p, strict=True)) == [
        (2 * 4096 + 100, 60, 50, 1),
        (2 * 4096 + 101, 61, 50, 0),
    ]


@pytest.mark.parametrize("name", ["a.aedat4", "a.raw", "a.dat"])
def test_unsorted_events_never_reach_faery(tmp_path, name):
    events = made_up(50)
    unsorted = Events(events.x, events.y, events.t[::-1].copy(), events.p, 64, 48)
    with pytest.raises(CrossdraftError, match="out of order"):
        write_events(tmp_path / name, unsorted)
    assert not list(tmp_path.iterdir())


def test_events_beyond_the_sensor_are_refused(tmp_path):
    write_events(tmp_path / "a.raw", made_up(500))
    with pytest.raises(CrossdraftError, match="outside"):
        read_events(tmp_path / "a.raw", sensor=(8, 8))


def test_without_faery_the_error_names_it(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for name in ("a.raw", "a.aedat4", "a.dat"):
        with pytest.raises(CrossdraftError, match="pip install faery"):
            write_events(tmp_path / name, made_up(5))
