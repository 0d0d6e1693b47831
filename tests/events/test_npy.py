import io
import pickle
import tracemalloc
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossdraft.errors import CrossdraftError
from crossdraft.events import EventLimits, Events, Newest, read_events, write_eventgpt_npy
from tests.events.helpers import made_up, same


def npy_of(content: object, protocol: int = 4) -> bytes:
    """A `.npy` file around any pickled object, as numpy.save lays it out."""
    file = io.BytesIO()
    header = {"descr": "|O", "fortran_order": False, "shape": ()}
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue() + pickle.dumps(content, protocol=protocol)


def boxed(columns: object) -> np.ndarray:
    box = np.empty((), object)
    box[()] = columns
    return box


def columns_of(events: Events, **replaced) -> dict:
    return {name: getattr(events, name) for name in "xytp"} | replaced


def test_what_is_written_is_read_and_is_what_numpy_reads(tmp_path):
    events = made_up(500, width=640, height=480, start_us=57_922_807_588)
    path = tmp_path / "a.npy"
    write_eventgpt_npy(path, events)
    assert same(read_events(path), events)
    by_numpy = np.load(path, allow_pickle=True).item()
    assert sorted(by_numpy) == ["p", "t", "x", "y"]
    assert by_numpy["t"].dtype == np.int64
    assert by_numpy["t"].tolist() == events.t.tolist()


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_every_pickle_protocol_that_numpy_has_used(tmp_path, protocol):
    events = made_up(50, width=640, height=480)
    path = tmp_path / "a.npy"
    path.write_bytes(npy_of(boxed(columns_of(events)), protocol))
    assert same(read_events(path), events)


def test_pickles_of_numpy_1_name_its_old_modules(tmp_path):
    events = made_up(50, width=640, height=480)
    new = npy_of(boxed(columns_of(events)), 2)
    assert b"numpy._core" in new
    path = tmp_path / "a.npy"
    path.write_bytes(new.replace(b"numpy._core", b"numpy.core"))
    assert same(read_events(path), events)


def test_a_16_bit_clock_that_wrapped_is_put_right(tmp_path):
    events = made_up(3000, width=640, height=480, span_us=200_000)
    path = tmp_path / "a.npy"
    path.write_bytes(npy_of(boxed(columns_of(events, t=events.t.astype(np.uint16)))))
    assert read_events(path).t.tolist() == events.t.tolist()


@pytest.mark.parametrize("step", [1, 7, 1 << 20])
@pytest.mark.parametrize("bits", [16, 32])
def test_any_span_of_a_wrapping_clock_is_as_if_it_were_read_whole(tmp_path, monkeypatch, bits, step):
    monkeypatch.setattr("crossdraft.events.npy.SCANNED_EVENTS", step)
    count = 300 if bits == 16 else 3000  # a clock of 32 bits has an event in each minute
    events = made_up(count, width=640, height=480, span_us=5 << bits, start_us=3)
    table = np.zeros(count, [("x", "<u2"), ("y", "<u2"), ("t", f"<u{bits // 8}"), ("p", "u1")])
    for name in "xyp":
        table[name] = getattr(events, name)
    table["t"] = events.t & ((1 << bits) - 1)
    path = tmp_path / "a.npy"
    np.save(path, table)
    assert (np.diff(table["t"].astype(np.int64)) < 0).sum() == 4
    assert same(read_events(path), events)
    for start, end in ((0, 1 << bits), (2 << bits, 4 << bits), (events.t[count // 2], None)):
        found = read_events(path, start_us=start, end_us=end)
        assert same(found, events.slice(start, int(events.t[-1]) + 1 if end is None else end))
    newest = read_events(path, newest=Newest(us=1 << bits))
    assert newest.t.tolist() == events.t[events.t > events.t[-1] - (1 << bits)].tolist()


def test_disorder_and_endless_overflows_of_a_clock_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr("crossdraft.events.npy.SCANNED_EVENTS", 4)
    table = np.zeros(12, [("x", "<u2"), ("y", "<u2"), ("t", "<u2"), ("p", "u1")])
    table["t"] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 8, 10, 11]
    np.save(tmp_path / "a.npy", table)
    with pytest.raises(CrossdraftError, match="event 9 is 1 µs earlier"):
        read_events(tmp_path / "a.npy", end_us=3)
    table["t"] = [0, 65535] * 6
    np.save(tmp_path / "a.npy", table)
    assert len(read_events(tmp_path / "a.npy")) == 12
    with pytest.raises(CrossdraftError, match=r"spans more than 0\.1 seconds"):
        read_events(tmp_path / "a.npy", end_us=3, limits=EventLimits(seconds=0.1))


def test_a_restart_is_no_overflow_of_32_bits(tmp_path):
    table = np.zeros(4, [("x", "<u2"), ("y", "<u2"), ("t", "<u4"), ("p", "u1")])
    table["t"] = [3_000_000_000, 3_000_000_100, 5, 10]
    np.save(tmp_path / "a.npy", table)
    with pytest.raises(CrossdraftError, match=r"event 2 is 3000000095 µs earlier .*a camera that is restarted"):
        read_events(tmp_path / "a.npy")


def test_a_window_of_a_wrapping_clock_takes_memory_for_the_window(tmp_path):
    """As one of a clock that does not wrap; unwrapped whole this column would be 16 MB."""
    count = 2_000_000
    table = np.zeros(count, [("x", "<u2"), ("y", "<u2"), ("t", "<u4"), ("p", "u1")])
    table["t"] = np.arange(count)
    np.save(tmp_path / "a.npy", table)
    tracemalloc.start()
    try:
        found = read_events(tmp_path / "a.npy", newest=Newest(us=1000))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(found) == 1000
    assert peak < 12e6


@pytest.mark.parametrize("container", ["column", "array of objects"])
def test_lists_that_hold_one_another_are_not_copied_out(tmp_path, container):
    """A few hundred bytes that would be 10^12 numbers."""
    nested: object = [0] * 10
    for _ in range(11):
        nested = [nested] * 10
    column = nested if container == "column" else npy_array_of([nested])
    path = tmp_path / "a.npy"
    path.write_bytes(npy_of(boxed(dict.fromkeys("xyt", np.zeros(3, np.uint16)) | {"p": column})))
    assert path.stat().st_size < 2000
    with pytest.raises(CrossdraftError, match="column p is not a row of numbers"):
        read_events(path)


def npy_array_of(items: list) -> np.ndarray:
    """[len(items)] objects."""
    array = np.empty(len(items), object)
    for index, item in enumerate(items):
        array[index] = item
    return array


def test_flat_lists_are_columns_too(tmp_path):
    path = tmp_path / "a.npy"
    columns = {"x": [1, 2], "y": (3, 4), "t": [5, 6.0], "p": [True, False]}
    path.write_bytes(npy_of(boxed(columns)))
    assert read_events(path).t.tolist() == [5, 6]
    path.write_bytes(npy_of(boxed(columns | {"t": [1.5, 10**400]})))
    with pytest.raises(CrossdraftError, match="column t is not a row of numbers"):
        read_events(path)


def test_other_types_of_columns(tmp_path):
    events = made_up(50, width=346, height=260)
    path = tmp_path / "a.npy"
    wide = {name: getattr(events, name).astype(np.int64) for name in "xyt"}
    path.write_bytes(npy_of(boxed(wide | {"p": events.p.astype(np.int64) * 2 - 1})))
    assert same(read_events(path, sensor=(346, 260)), events)
    assert (read_events(path).width, read_events(path).height) == (640, 480)
    table = np.zeros(50, [(name, getattr(events, name).dtype) for name in "xytp"])
    for name in "xytp":
        table[name] = getattr(events, name)
    np.save(path, table)
    assert same(read_events(path, sensor=(346, 260)), events)


class _Evil:
    def __init__(self, call, *arguments):
        self.call, self.arguments = call, arguments

    def __reduce__(self):
        return self.call, self.arguments


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_a_pickle_that_would_run_code_is_refused_and_runs_nothing(tmp_path, protocol):
    victim = tmp_path / "victim"
    path = tmp_path / "a.npy"
    attack = _Evil(exec, f"open({str(victim)!r}, 'w').write('!')")
    path.write_bytes(npy_of(attack, protocol))
    np.load(path, allow_pickle=True)
    assert victim.exists()  # the attack is real
    victim.unlink()
    with pytest.raises(CrossdraftError, match=r"refused: its pickle asks for .*\.exec"):
        read_events(path)
    path.write_bytes(npy_of(boxed({"x": attack}), protocol))
    with pytest.raises(CrossdraftError, match="refused"):
        read_events(path)
    assert not victim.exists()


def test_other_codecs_are_refused(tmp_path):
    import _codecs

    path = tmp_path / "a.npy"
    path.write_bytes(npy_of(_Evil(_codecs.encode, "x" * 10, "utf-32")))
    with pytest.raises(CrossdraftError, match="codec utf-32"):
        read_events(path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (boxed({"x": np.zeros(1), "y": np.zeros(1)}), "lacks the event columns t, p"),
        (boxed([1, 2]), "not a dict"),
        ({"x": 1}, "pickled dict"),
        (boxed(dict.fromkeys("xytp", "a")), "row of numbers"),
        (boxed(dict.fromkeys("xytp", np.zeros((2, 2)))), "row of numbers"),
        (boxed(dict.fromkeys("xytp", np.array([None, 1], object))), "row of numbers"),
    ],
)
def test_other_contents_are_refused(tmp_path, content, words):
    path = tmp_path / "a.npy"
    path.write_bytes(npy_of(content))
    with pytest.raises(CrossdraftError, match=words):
        read_events(path)


def test_a_plain_array_is_refused(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((5, 4)))
    with pytest.raises(CrossdraftError, match="not a dict"):
        read_events(tmp_path / "a.npy")


@given(st.data())
def test_damage_gives_one_sentence_or_events_but_never_another_error(tmp_path_factory, data):
    whole = npy_of(boxed(columns_of(made_up(20, width=640, height=480))), data.draw(st.sampled_from([2, 4])))
    cut = data.draw(st.integers(1, len(whole) - 1))
    damaged = bytearray(whole[:cut] if data.draw(st.booleans()) else whole)
    for _ in range(data.draw(st.integers(0, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("damage") / "a.npy"
    path.write_bytes(damaged)
    with suppress(CrossdraftError):
        assert isinstance(read_events(path), Events)


@pytest.mark.parametrize("share", [0.01, 0.5, 0.999])
def test_a_cut_off_file_is_refused(tmp_path, share):
    whole = npy_of(boxed(columns_of(made_up(200, width=640, height=480))))
    path = tmp_path / "a.npy"
    path.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(CrossdraftError, match=r"cut off|numpy file"):
        read_events(path)


def test_real_recordings(shared):
    folder = shared / "data" / "events"
    sample = read_events(folder / "eventgpt_sample1.npy")
    assert (len(sample), sample.width, sample.height) == (132_268, 640, 480)
    assert sample.duration_us == 49_595
    window = read_events(folder / "dsec_interlaken_00_d_000069.npy")
    assert len(window) == 293_355
    assert 49_000 < window.duration_us <= 50_000
    half = read_events(folder / "dsec_interlaken_00_d_000069.npy", start_us=window.t0 + 25_000)
    assert same(half, window.slice(window.t0 + 25_000, window.t0 + 100_000))


class _Forged:
    """An element type whose state smuggles an object field in: its bytes would be taken for a pointer."""

    def __reduce__(self):
        fields = {"f": (np.dtype("O"), 0)}
        return np.dtype, ("V8", False, True), (3, "|", None, ("f",), fields, 8, 1, 0)


@pytest.mark.parametrize(
    "attack",
    [
        _Evil(np.ndarray, (), np.dtype("O"), b"A" * 8),
        _Evil(np.zeros(1).__reduce_ex__(5)[0], b"A" * 8, np.dtype("O"), (1,), "C"),
        _Evil(np.zeros(1).__reduce_ex__(5)[0], b"A" * 8, _Forged(), (1,), "C"),
        _Evil(np.float64(0).__reduce__()[0], np.dtype("O"), b"A" * 8),
    ],
    ids=["ndarray over bytes", "objects from bytes", "a forged element type", "a scalar object"],
)
def test_bytes_that_pose_as_objects_are_refused(tmp_path, attack):
    """Each would make Python follow a pointer that the file chose."""
    path = tmp_path / "a.npy"
    for content in (attack, boxed({"x": attack})):
        path.write_bytes(npy_of(content))
        with pytest.raises(CrossdraftError):
            read_events(path)
