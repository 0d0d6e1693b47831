"""No recording costs more than the limits allow, whatever its header says."""

import io
import pickle
import struct
import subprocess
import sys
import zipfile
from dataclasses import replace

import h5py
import numpy as np
import pytest

from crossdraft.errors import CrossdraftError
from crossdraft.events import EventLimits, eventgpt_frames, iter_events, read_events, write_events
from crossdraft.events.limits import DEFAULT_LIMITS
from crossdraft.events.read import gathered
from tests.events.helpers import made_up, same

FEW = EventLimits(events=100, scanned=1000, lines=1000)


def bomb(path, count: int, *, written: bool) -> None:
    """A DSEC file of `count` zeros that takes a few kilobytes, or some hundred if they are `written`."""
    with h5py.File(path, "w") as file:
        for name, kind in (("x", "u2"), ("y", "u2"), ("p", "u1"), ("t", "u4")):
            column = file.create_dataset(
                f"events/{name}", (count,), kind, chunks=(min(count, 1 << 20),), compression="gzip", fillvalue=0
            )
            if written:
                column[:] = 0


PEAK = """
import sys
from crossdraft.errors import CrossdraftError
from crossdraft.events import read_events
import h5py, hdf5plugin

def peak():  # `getrusage` would also tell of the process that started this one
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))

before = peak()
try:
    read_events(sys.argv[1])
except CrossdraftError as error:
    print(peak() - before, error)
"""


@pytest.mark.parametrize("written", [False, True])
def test_a_small_file_of_forty_million_events_costs_a_sentence(tmp_path, written):
    bomb(tmp_path / "bomb.h5", 40_000_000, written=written)
    found = subprocess.run(
        [sys.executable, "-c", PEAK, str(tmp_path / "bomb.h5")], capture_output=True, text=True, check=True
    )
    kilobytes, _, sentence = found.stdout.partition(" ")
    assert int(kilobytes) < 50_000
    assert "more than 32,000,000 events" in sentence if written else "unpacks from 0 to" in sentence
    assert len(sentence.splitlines()) == 1


def test_what_is_packed_tightly_but_small_is_read(tmp_path):
    bomb(tmp_path / "a.h5", 1_000_000, written=True)
    assert len(read_events(tmp_path / "a.h5")) == 1_000_000


@pytest.mark.parametrize(("chunk", "refused"), [(1 << 24, False), ((1 << 24) + 1, True)])
def test_blocks_that_unpack_to_too_much_are_not_unpacked(tmp_path, chunk, refused):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name, kind in (("x", "u2"), ("y", "u2"), ("p", "u1"), ("t", "u4")):
            data = file.create_dataset(
                f"events/{name}", (5,), kind, chunks=(chunk if name == "t" else 5,), maxshape=(None,)
            )
            data[:] = range(5) if name == "t" else 0
    if not refused:
        assert len(read_events(tmp_path / "a.h5")) == 5
        return
    with pytest.raises(CrossdraftError, match=r"events/t is stored in blocks of 67,108,868 bytes"):
        read_events(tmp_path / "a.h5")
    assert len(read_events(tmp_path / "a.h5", limits=EventLimits(block_bytes=1 << 27))) == 5


def test_columns_in_another_file_are_refused(tmp_path):
    write_events(tmp_path / "a.h5", made_up(50))
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file["events"] = h5py.ExternalLink(str(tmp_path / "a.h5"), "/events")
    with pytest.raises(CrossdraftError, match="lies in another file"):
        read_events(tmp_path / "b.h5")


@pytest.mark.parametrize("suffix", [".h5", ".npy", ".txt", ".zip", ".dat", ".aedat4", ".raw"])
def test_more_events_than_may_be_held_or_read_are_refused_and_limits_raise_it(tmp_path, suffix):
    if suffix in (".dat", ".aedat4", ".raw"):
        pytest.importorskip("faery")
    events, path = made_up(400, 640, 480), tmp_path / f"a{suffix}"
    write_events(path, events)
    with pytest.raises(CrossdraftError, match="more than 100 events in the wanted span"):
        read_events(path, limits=FEW)
    assert same(read_events(path, limits=replace(FEW, events=400), sensor=(640, 480)), events)
    half = int(events.t[199])
    assert len(read_events(path, end_us=int(events.t[100]), limits=FEW, sensor=(640, 480))) == 100
    with pytest.raises(CrossdraftError, match=r"more than 150 (events to read through|lines), the limit"):
        read_events(path, end_us=half + 1, limits=replace(FEW, events=400, scanned=150, lines=150), sensor=(640, 480))


def test_a_long_span_and_a_large_sensor_are_refused(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("64 48\n0 1 1 1\n90000 2 2 1\n")
    with pytest.raises(CrossdraftError, match="spans more than 86400 seconds"):
        read_events(path)
    assert len(read_events(path, limits=EventLimits(seconds=1e5))) == 2
    for size in ((100_000, 100_000), (4096, 2305)):
        with pytest.raises(CrossdraftError, match="more than 9,437,184 pixels"):
            read_events(path, sensor=size)
    path.write_text("9999999 9999999\n0 1 1 1\n")
    with pytest.raises(CrossdraftError, match=r"impossible|pixels"):
        read_events(path)


def test_a_zip_of_endless_lines_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("events.txt", b"64 48\n" + b"\n" * 40_000_000)
    with pytest.raises(CrossdraftError, match="more than 1000 times"):
        list(iter_events(tmp_path / "a.zip"))
    with pytest.raises(CrossdraftError, match="more than 5,000 lines"):
        list(iter_events(tmp_path / "a.zip", limits=EventLimits(ratio=1e9, lines=5000)))


def npy_of(content: bytes) -> bytes:
    """An object array's `.npy` whose pickle is `content`."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "|O", "fortran_order": False, "shape": ()})
    return file.getvalue() + content


def test_a_pickle_that_asks_for_memory_gets_none(tmp_path):
    path = tmp_path / "a.npy"
    path.write_bytes(npy_of(pickle.NONE + pickle.LONG_BINPUT + struct.pack("<I", 1 << 30) + pickle.STOP))
    with pytest.raises(CrossdraftError, match="more than 100,000 operations"):
        read_events(path)
    path.write_bytes(npy_of(pickle.PROTO + b"\x05" + pickle.BYTEARRAY8 + struct.pack("<Q", 1 << 40)))
    with pytest.raises(CrossdraftError, match="damaged or was cut off"):
        read_events(path)
    path.write_bytes(npy_of(pickle.EMPTY_LIST + pickle.NONE * 100_001 + pickle.STOP))
    with pytest.raises(CrossdraftError, match="more than 100,000 operations"):
        read_events(path)
    write_events(path, made_up(400))
    with pytest.raises(CrossdraftError, match="can be read only whole"):
        read_events(path, limits=EventLimits(held_bytes=1000))


def test_frames_are_painted_only_as_far_as_memory_goes():
    events = made_up(4000)
    with pytest.raises(CrossdraftError, match="4000 frames of 400x300 take 1,440,000,000 bytes"):
        eventgpt_frames(events, 4000, (300, 400))
    with pytest.raises(CrossdraftError, match="smaller canvas"):
        eventgpt_frames(events, 1, (100_000, 100_000))


def test_chunks_that_are_gathered_are_counted():
    parts = [made_up(60, start_us=50_000 * i) for i in range(4)]
    with pytest.raises(CrossdraftError, match="it has more than 100 events"):
        gathered(iter(parts), "it", FEW)
    assert len(gathered(iter(parts), "it", DEFAULT_LIMITS)) == 240
