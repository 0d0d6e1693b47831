import ctypes
import os
import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import h5py
import hdf5plugin
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crossdraft.errors import CrossdraftError
from crossdraft.events import Events, concatenate, iter_events, random_access, read_events, write_dsec_h5
from crossdraft.events.hdf5 import dataset
from crossdraft.events.limits import DEFAULT_LIMITS
from crossdraft.events.stream import Window
from tests.events.helpers import made_up, same

OFFSET = 57_922_807_588  # a real DSEC clock: far beyond 32 bits


def foreign_dsec(path, events: Events, index: bool = True) -> None:
    """DSEC's layout, written with h5py alone: uint32 times on the file's own clock."""
    t = events.t - OFFSET
    with h5py.File(path, "w") as file:
        for name, values in (("x", events.x), ("y", events.y), ("t", t.astype("u4")), ("p", events.p)):
            file.create_dataset(f"events/{name}", data=values, **hdf5plugin.Blosc(cname="zstd"))
        file["t_offset"] = OFFSET
        if index:
            marks = np.arange(int(t[-1]) // 1000 + 1) * 1000
            file["ms_to_idx"] = np.array([np.count_nonzero(t < mark) for mark in marks], "u8")


def m3ed(path, events: Events) -> None:
    with h5py.File(path, "w") as file:
        for name in "xytp":
            file[f"prophesee/left/{name}"] = getattr(events, name)
        marks = np.arange(int(events.t[-1]) // 1000) * 1000
        file["prophesee/left/ms_map_idx"] = np.searchsorted(events.t, marks).astype("u8")


def mvsec(path, events: Events) -> None:
    table = np.stack([events.x, events.y, events.t / 1e6, events.p * 2.0 - 1], axis=1)
    with h5py.File(path, "w") as file:
        file["davis/left/events"] = table


@pytest.fixture(scope="module")
def recordings(tmp_path_factory):
    """The same events in every layout, and each layout's clock."""
    folder = tmp_path_factory.mktemp("h5")
    absolute = made_up(20_000, 640, 480, start_us=OFFSET, span_us=90_000)
    relative = made_up(20_000, 1280, 720, span_us=90_000)
    epoch = made_up(20_000, 346, 260, start_us=1_506_117_889_000_000, span_us=90_000)
    foreign_dsec(folder / "dsec.h5", absolute)
    foreign_dsec(folder / "no_index.h5", absolute, index=False)
    write_dsec_h5(folder / "ours.h5", absolute)
    m3ed(folder / "m3ed.h5", relative)
    mvsec(folder / "mvsec.hdf5", epoch)
    return {
        folder / "dsec.h5": absolute,
        folder / "no_index.h5": absolute,
        folder / "ours.h5": absolute,
        folder / "m3ed.h5": relative,
        folder / "mvsec.hdf5": epoch,
    }


def test_every_layout_is_read_exactly(recordings):
    for path, events in recordings.items():
        assert same(read_events(path), events), path.name


@settings(max_examples=25)
@given(st.integers(-2_000, 95_000), st.integers(0, 95_000))
def test_slices_are_exact(recordings, start, span):
    for path, events in recordings.items():
        since = events.t0 // 1000 * 1000 + start
        found = read_events(path, start_us=since, end_us=since + span)
        assert same(found, events.slice(since, since + span)), path.name


def test_open_ended_slices(recordings):
    for path, events in recordings.items():
        middle = int(events.t[len(events) // 2])
        assert same(read_events(path, start_us=middle), events.slice(middle, 1 << 62))
        assert same(read_events(path, end_us=middle), events.slice(0, middle))


def test_an_index_that_no_longer_fits_is_not_believed(tmp_path, recordings):
    events = next(iter(recordings.values()))
    for wrong in (np.zeros(90, "u8"), np.full(90, 20_000, "u8"), np.full(90, 10**12, "u8"), np.arange(90)[::-1]):
        foreign_dsec(tmp_path / "a.h5", events, index=False)
        with h5py.File(tmp_path / "a.h5", "a") as file:
            file["ms_to_idx"] = wrong
        since = OFFSET + 40_000
        assert same(
            read_events(tmp_path / "a.h5", start_us=since, end_us=since + 9_999), events.slice(since, since + 9_999)
        )


def test_a_slice_reads_little_more_than_itself():
    count, asked = 100_000_000, []
    index: Any = np.arange(0, count, 1000)  # an event every µs, so 1000 a ms

    def times(i: int, j: int) -> np.ndarray:
        asked.append(j - i)
        return np.arange(i, j)

    def columns(i: int, j: int):
        return np.zeros(j - i, int), np.zeros(j - i, int), np.arange(i, j), np.zeros(j - i, int)

    for ms_to_idx in (index, None):
        asked.clear()
        recording = random_access.Recording(count, (1, 1), times, columns, ms_to_idx)
        chunks = list(random_access.chunks_of(recording, Window(5_000_500, 5_001_500), Path("x"), DEFAULT_LIMITS))
        assert concatenate(chunks).t.tolist() == list(range(5_000_500, 5_001_500))
        assert sum(asked) < 2 * (1 << 16) + 100


@pytest.mark.parametrize("probe", [1, 65_536])
def test_an_index_of_ms_leads_to_each_row_and_a_wrong_one_nowhere_else(monkeypatch, probe):
    monkeypatch.setattr(random_access, "_PROBE_EVENTS", probe)
    t = np.array([0, 500, 1000, 1000, 2500, 3999])
    for index in ([0, 2, 4, 5], [0, 3, 4, 5], [0, 9, 4, 5], [5, 4, 3, 2], [0], None):
        one = random_access.Recording.of((t, t, t, t), (1, 1), index)
        for time_us in range(-1, 5000, 250):
            assert random_access.first_at(one, time_us) == np.count_nonzero(t < time_us)
        assert (random_access.first_at(one, 0, 3, 6), random_access.first_at(one, 4500, 0, 4)) == (3, 4)
    moved = random_access.Recording.of((t, t, t + 7000, t), (1, 1), [0, 2, 4, 5], 7000)
    brackets = [random_access._bracket(moved, 7000 + time_us) for time_us in (-1, 999, 1000, 2600, 4500)]
    assert brackets == [(0, 2), (0, 2), (2, 4), (4, 5), (5, 6)]


def test_long_recordings_come_in_chunks(tmp_path, monkeypatch):
    events = made_up(1000)
    write_dsec_h5(tmp_path / "a.h5", events)
    monkeypatch.setattr(random_access, "FIRST_EVENTS", 300)
    monkeypatch.setattr(random_access, "CHUNK_EVENTS", 300)
    chunks = list(iter_events(tmp_path / "a.h5"))
    assert [len(chunk) for chunk in chunks] == [300, 300, 300, 100]
    assert same(concatenate(chunks), events)


@pytest.mark.parametrize("events", [Events.empty(20, 10), made_up(1, 20, 10, start_us=5)])
def test_tiny_recordings(tmp_path, events):
    write_dsec_h5(tmp_path / "a.h5", events)
    assert same(read_events(tmp_path / "a.h5"), events)
    assert len(read_events(tmp_path / "a.h5", start_us=10, end_us=20)) == 0


def test_the_written_file_keeps_dsecs_promises(tmp_path):
    events = made_up(5000, 112, 112, start_us=OFFSET, span_us=40_000)
    assert write_dsec_h5(tmp_path / "a.h5", events) == 5000
    with h5py.File(tmp_path / "a.h5") as file:
        assert (file.attrs["width"], file.attrs["height"]) == (112, 112)
        stored = {name: dataset(file, f"events/{name}") for name in "xytp"}
        assert {name: data.dtype for name, data in stored.items()} == {"x": "u2", "y": "u2", "t": "u4", "p": "u1"}
        assert all(str(hdf5plugin.Blosc.filter_id) in str(data._filters) for data in stored.values())
        t, index = stored["t"][:].astype(int), dataset(file, "ms_to_idx")[:]
        assert (t + dataset(file, "t_offset")[()]).tolist() == events.t.tolist()
        assert len(index) == t[-1] // 1000 + 1
        for ms, row in enumerate(index):
            assert t[row] >= 1000 * ms
            assert row == 0 or t[row - 1] < 1000 * ms


def test_chunks_write_the_same_file_as_the_whole(tmp_path, monkeypatch):
    events = made_up(3000, span_us=3_000_000)
    parts = [Events.empty(64, 48), *(events.take(slice(i, i + 70)) for i in range(0, 3000, 70))]
    monkeypatch.setattr("crossdraft.events.hdf5_write.BATCH_EVENTS", 100)
    write_dsec_h5(tmp_path / "whole.h5", events)
    write_dsec_h5(tmp_path / "parts.h5", iter(parts))
    assert same(read_events(tmp_path / "parts.h5"), events)
    with h5py.File(tmp_path / "whole.h5") as whole, h5py.File(tmp_path / "parts.h5") as joined:
        assert dataset(whole, "ms_to_idx")[:].tolist() == dataset(joined, "ms_to_idx")[:].tolist()


@pytest.mark.parametrize(
    ("chunks", "words"),
    [
        ([made_up(5, start_us=9000), made_up(5, span_us=50)], "before the one in front"),
        ([made_up(5), Events.empty(9, 9)], "different sizes"),
        ([made_up(5), made_up(5, start_us=1 << 33)], "71.6 minutes"),
        ([], "no event chunks"),
    ],
)
def test_what_the_format_cannot_hold_is_refused_and_leaves_nothing(tmp_path, monkeypatch, chunks, words):
    monkeypatch.setattr("crossdraft.events.hdf5_write.BATCH_EVENTS", 1)
    with pytest.raises(CrossdraftError, match=words):
        write_dsec_h5(tmp_path / "a.h5", chunks)
    assert not list(tmp_path.iterdir())


def test_another_suffix_is_refused(tmp_path):
    with pytest.raises(CrossdraftError, match=r"ends in \.h5"):
        write_dsec_h5(tmp_path / "a.npy", made_up(5))


def test_a_missing_plugin_is_named_with_its_cure(tmp_path, monkeypatch):
    write_dsec_h5(tmp_path / "a.h5", made_up(5))
    monkeypatch.setitem(sys.modules, "hdf5plugin", None)
    for action in (lambda: read_events(tmp_path / "a.h5"), lambda: write_dsec_h5(tmp_path / "b.h5", made_up(5))):
        with pytest.raises(CrossdraftError, match="pip install hdf5plugin"):
            action()


@pytest.mark.parametrize("share", [0.001, 0.3, 0.9, 0.99])
def test_a_cut_off_file_is_refused(tmp_path, share):
    write_dsec_h5(tmp_path / "whole.h5", made_up(50_000))
    whole = (tmp_path / "whole.h5").read_bytes()
    (tmp_path / "a.h5").write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(CrossdraftError, match=r"damaged|whole HDF5"):
        read_events(tmp_path / "a.h5")


@settings(max_examples=40)
@given(st.data())
def test_damage_gives_one_sentence_or_events_but_never_another_error(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("damage")
    write_dsec_h5(folder / "a.h5", made_up(50))
    damaged = bytearray((folder / "a.h5").read_bytes())
    for _ in range(data.draw(st.integers(1, 8))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    (folder / "b.h5").write_bytes(damaged)
    with suppress(CrossdraftError):
        assert isinstance(read_events(folder / "b.h5"), Events)


def broken(path, change) -> None:
    foreign_dsec(path, made_up(50, 640, 480, start_us=OFFSET))
    with h5py.File(path, "a") as file:
        change(file)


def drop(*names):
    def change(file):
        for name in names:
            del file[name]

    return change


def size(**attributes):
    def change(file):
        file.attrs.update(attributes)

    return change


def put(name, value):
    def change(file):
        del file[name]
        file[name] = value

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (drop("events/x"), "lacks a part"),
        (drop("events"), "holds no events that we know"),
        (put("events/x", np.zeros(49, "u2")), "differ in length"),
        (put("events/x", np.zeros((50, 2), "u2")), "differ in length"),
        (put("events/p", np.full(50, b"a")), "should be numbers"),
        (put("events/x", np.full(50, 640, "u2")), "outside the 640x480"),
        (put("events/t", np.arange(50, 0, -1)), "out of order"),
        (put("events/p", np.full(50, 7, "u1")), "polarity"),
        (put("events/t", np.array([float("nan")] + [1e3] * 49)), "finite"),
        (put("events/t", np.array([1 << 63] * 50, "u8")), "below 2"),
        (put("t_offset", np.zeros(2, int)), "t_offset should be one whole number"),
        (put("t_offset", float("nan")), "t_offset should be one whole number"),
        (put("t_offset", float("inf")), "t_offset should be one whole number"),
        (put("t_offset", np.uint64((1 << 64) - 1)), "t_offset should be one whole number"),
        (put("t_offset", h5py.Empty("f8")), "t_offset should be one whole number"),
        (put("ms_to_idx", 5), "ms_to_idx should be a row of event numbers"),
        (put("ms_to_idx", np.zeros((2, 2), int)), "ms_to_idx should be a row of event numbers"),
        (put("ms_to_idx", np.full(90, np.inf)), "ms_to_idx should be a row of event numbers"),
        (size(width=np.array([640, 480])), "width should be one whole number"),
        (size(width=640, height="tall"), "height should be one whole number"),
        (size(width=640, height=h5py.Empty("i4")), "height should be one whole number"),
        (size(width=640.5), "width should be one whole number"),
    ],
)
def test_broken_recordings_are_refused(tmp_path, change, words):
    broken(tmp_path / "a.h5", change)
    with pytest.raises(CrossdraftError, match=words) as caught:
        read_events(tmp_path / "a.h5")
    assert "\n" not in str(caught.value)


def test_a_number_in_a_box_is_a_number_and_a_given_sensor_needs_no_attributes(tmp_path):
    events = made_up(50, 640, 480, start_us=OFFSET)
    broken(tmp_path / "a.h5", put("t_offset", np.array([[OFFSET]])))
    assert same(read_events(tmp_path / "a.h5"), events)
    broken(tmp_path / "b.h5", size(width=np.array([1, 2])))
    assert same(read_events(tmp_path / "b.h5", sensor=(640, 480)), events)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("times", [(np.nan, 1.0), (1.0, np.inf), (-np.inf, 1.0), (1.0, 1e300)])
def test_mvsec_times_that_are_no_times(tmp_path, times):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["davis/left/events"] = np.array([[1.0, 1.0, t, 1.0] for t in times])
    with pytest.raises(CrossdraftError, match="finite"):
        read_events(tmp_path / "a.h5")


def test_columns_of_another_shape_are_refused(tmp_path):
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file["davis/left/events"] = np.zeros((3, 5))
    with pytest.raises(CrossdraftError, match=r"\[N, 4\]"):
        read_events(tmp_path / "b.h5")


IN_OPEN = 0x20  # of inotify


def named(recordings: dict[Path, Events], name: str) -> Path:
    return next(path for path in recordings if path.name == name)


@contextmanager
def watched(path: Path):
    """Whether anything opens a file, in C as well; a function that says it."""
    libc = ctypes.CDLL(None, use_errno=True)
    watch = libc.inotify_init1(os.O_NONBLOCK)
    assert libc.inotify_add_watch(watch, os.fsencode(path), IN_OPEN) >= 0

    def opened() -> bool:
        try:
            return bool(os.read(watch, 4096))
        except BlockingIOError:
            return False

    try:
        yield opened
    finally:
        os.close(watch)


def linked(path: Path, **links) -> Path:
    """A file of links, and of columns of events where no link is."""
    with h5py.File(path, "w") as file:
        for name, link in links.items():
            file[name.replace("__", "/")] = link
    return path


@pytest.mark.skipif(sys.platform != "linux", reason="inotify is Linux's")
@pytest.mark.parametrize("there", [True, False])
def test_no_link_makes_another_file_open(recordings, tmp_path, there):
    """Nor does an error say whether there is one."""
    other = named(recordings, "no_index.h5") if there else tmp_path / "nothing.h5"
    away = {
        "group": {"events": h5py.ExternalLink(other, "/events")},
        "column": {"events__t": h5py.ExternalLink(other, "/events/t")},
        "soft": {"far": h5py.ExternalLink(other, "/events"), "events": h5py.SoftLink("/far")},
        "m3ed": {"prophesee": h5py.ExternalLink(other, "/prophesee")},
        "mvsec": {"davis__left__events": h5py.ExternalLink(other, "/t_offset")},
        "ecf": {"CD": h5py.ExternalLink(other, "/events")},
    }
    with watched(named(recordings, "no_index.h5")) as opened:
        for name, links in away.items():
            with pytest.raises(CrossdraftError, match="lies in another file"):
                read_events(linked(tmp_path / f"{name}.h5", **links))
        for name in ("dsec", "m3ed", "mvsec"):  # what the format says is there
            with pytest.raises(CrossdraftError, match="lies in another file"):
                read_events(tmp_path / f"{'group' if name == 'dsec' else name}.h5", format=name)
        assert not opened()
        if there:
            read_events(other)
            assert opened()


def test_offsets_and_indices_are_looked_for_in_the_file_alone(recordings, tmp_path):
    for name in ("t_offset", "ms_to_idx"):
        path = tmp_path / f"{name}.h5"
        path.write_bytes((named(recordings, "dsec.h5")).read_bytes())
        with h5py.File(path, "a") as file:
            del file[name]
            file[name] = h5py.ExternalLink(named(recordings, "no_index.h5"), "/t_offset")
        with pytest.raises(CrossdraftError, match=f"{name} lies in another file"):
            read_events(path)


def test_links_within_a_file_are_followed_and_circles_are_not(recordings, tmp_path):
    path = tmp_path / "links.h5"
    path.write_bytes((named(recordings, "no_index.h5")).read_bytes())
    with h5py.File(path, "a") as file:
        file.move("events", "kept/of/it")
        file["kept/again"] = h5py.SoftLink("of/./it")
        file["events"] = h5py.SoftLink("/kept/again")
    assert same(read_events(path), read_events(named(recordings, "no_index.h5")))
    circle = linked(tmp_path / "circle.h5", events=h5py.SoftLink("/round"), round=h5py.SoftLink("events"))
    with pytest.raises(CrossdraftError, match="lies in another file"):
        read_events(circle)
