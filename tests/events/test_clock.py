"""The unit of a recording's times: what is impossible in it is read in another, or refused; what is odd is noted."""

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crossdraft.errors import CrossdraftError
from crossdraft.events import Excerpt, Newest, iter_events, read_events, write_events
from crossdraft.events.clock import EXPONENTS, time_unit, zero_of
from tests.events.helpers import made_up, same

SENSOR = (640, 480)
OFFSET = 57_922_807_588
EVENTS = made_up(100, *SENSOR, start_us=1000, span_us=100_000)
US = EVENTS.t
TIMES = {
    "us": US, "ns": US * 1000, "s": US / 1e6, "ms": US / 1e3, "epoch ns": US * 1000 + 1_700_000_000_000_000_000,
    "epoch us": US + 1_700_000_000_000_000, "epoch s": US / 1e6 + 1.7e9, "float us": US.astype(float),
    "float32 s": (US / 1e6).astype("f4"), "negative us": US - 50_000,
}  # fmt: skip
READ = {"us", "epoch us", "float us", "negative us"}  # in arrays, without a word
NOTED = {"ns"}  # may be events of two minutes, each in its own ms


def as_npz(path, t):
    np.savez(path / "a.npz", x=EVENTS.x, y=EVENTS.y, t=t, p=EVENTS.p)
    return path / "a.npz"


def as_table(path, t):
    np.savez(path / "a.npz", event_data=np.stack([EVENTS.x, EVENTS.y, t, EVENTS.p], axis=1))
    return path / "a.npz"


def as_dict(path, t):
    content = {"x": EVENTS.x, "y": EVENTS.y, "t": t, "p": EVENTS.p}
    np.save(path / "a.npy", np.array(content, dtype=object), allow_pickle=True)
    return path / "a.npy"


def as_records(path, t):
    table = np.zeros(len(t), [("x", "u2"), ("y", "u2"), ("t", t.dtype), ("p", "u1")])
    for name, column in zip("xytp", (EVENTS.x, EVENTS.y, t, EVENTS.p), strict=True):
        table[name] = column
    np.save(path / "a.npy", table)
    return path / "a.npy"


def as_dsec(path, t):
    with h5py.File(path / "a.h5", "w", libver="latest") as file:
        for name, column in zip("xytp", (EVENTS.x, EVENTS.y, t, EVENTS.p), strict=True):
            file[f"events/{name}"] = column
    return path / "a.h5"


def as_m3ed(path, t):
    with h5py.File(path / "a.h5", "w", libver="latest") as file:
        for name, column in zip("xytp", (EVENTS.x, EVENTS.y, t, EVENTS.p), strict=True):
            file[f"prophesee/left/{name}"] = column
    return path / "a.h5"


def as_mvsec(path, t):
    with h5py.File(path / "a.h5", "w", libver="latest") as file:
        table = np.stack([EVENTS.x, EVENTS.y, t, EVENTS.p * 2.0 - 1], axis=1)
        file.create_dataset("davis/left/events", data=table, compression="gzip", shuffle=True)
    return path / "a.h5"


def as_text(path, t):
    rows = zip(t.tolist(), EVENTS.x.tolist(), EVENTS.y.tolist(), EVENTS.p.tolist(), strict=True)
    (path / "a.txt").write_text("640 480\n" + "".join(f"{a} {x} {y} {p}\n" for a, x, y, p in rows))
    return path / "a.txt"


ARRAYS = [as_npz, as_table, as_dict, as_records, as_dsec, as_m3ed]


def true_times(kind):
    """Times in µs, as a right reading gives them."""
    name, unit = ("epoch", kind[6:]) if kind.startswith("epoch") else ("", kind.split()[-1])
    shift = 1_700_000_000_000_000 if name else -50_000 if kind == "negative us" else 0
    return US + shift, unit


@pytest.mark.parametrize("kind", TIMES)
@pytest.mark.parametrize("write", ARRAYS)
def test_arrays_in_every_unit(tmp_path, write, kind):
    path = write(tmp_path, TIMES[kind])
    true, unit = true_times(kind)
    events = read_events(path, sensor=SENSOR)
    if kind in NOTED:
        assert "if they are in ns, say so (time_unit=ns)" in events.notes[0]
        assert events.duration_us == 1000 * EVENTS.duration_us
    else:
        assert np.abs(events.t - true).max() <= (0 if kind != "epoch s" else 1)
        assert bool(events.notes) is (kind not in READ)
    named = read_events(path, sensor=SENSOR, time_unit=unit)
    assert np.abs(named.t - true).max() <= (0 if kind != "epoch s" else 1)
    assert named.notes == ()
    window = {"sensor": SENSOR, "start_us": int(named.t[30]), "end_us": int(named.t[50]), "time_unit": unit}
    assert same(read_events(path, **window), named.slice(window["start_us"], window["end_us"]))
    newest = read_events(path, sensor=SENSOR, newest=Newest(most=9))
    assert newest.t.tolist() == events.t[-9:].tolist()
    assert newest.notes == events.notes


@pytest.mark.parametrize("kind", ["s", "epoch s", "us", "ns", "ms"])
@pytest.mark.parametrize("write", [as_text, as_mvsec])
def test_what_is_usually_in_seconds_in_every_unit(tmp_path, write, kind):
    sensor = None if write is as_text else SENSOR
    path, (true, unit) = write(tmp_path, TIMES[kind]), true_times(kind)
    events = read_events(path, sensor=sensor)
    if kind == "ms":
        assert "if they are in ms, say so (time_unit=ms)" in events.notes[0]
        assert events.duration_us == 1000 * EVENTS.duration_us
    else:
        assert np.abs(events.t - true).max() <= (0 if kind != "epoch s" else 1)
        assert bool(events.notes) is (unit != "s")
    named = read_events(path, sensor=sensor, time_unit=unit)
    assert np.abs(named.t - true).max() <= (0 if kind != "epoch s" else 1)
    assert named.notes == ()


def test_the_windows_of_an_excerpt_are_in_one_unit(tmp_path):
    path = as_npz(tmp_path, TIMES["s"])
    parts = Excerpt(path, sensor=SENSOR, windows=2).read_windows(Newest(us=20_000))
    assert [part.notes for part in parts] == [parts[0].notes] * 2
    assert "cannot be in µs" in parts[0].notes[0]
    assert parts[1].t[-1] == US[-1]
    span = Excerpt.in_seconds(path, 0.01, 0.02, sensor=SENSOR, time_unit="ms")  # as the user says, right or wrong
    assert (span.start_us, span.time_unit) == (round(US[0] / 1e3) + 10_000, "ms")


@pytest.mark.parametrize(
    ("t", "words"),
    [
        (np.linspace(0, 2, 100), r"cannot be in µs; give their unit \(time_unit=…\)"),  # of seconds or ms
        (np.arange(100) // 2 / 25, "cannot be in µs"),  # a simulator that stamps 25 frames a second
        ((US / 2e4 + 1e4).astype("f4"), "cannot be in µs"),  # float32 at 10,000 s: steps of 1 ms
        (US.astype("u8") + np.uint64(2**63), "cannot be in µs"),
    ],
)
def test_what_may_be_in_several_units_is_refused(tmp_path, t, words):
    with pytest.raises(CrossdraftError, match=words) as caught:
        read_events(as_npz(tmp_path, t), sensor=SENSOR)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("t", "unit"), [([0.0, 1.0], "s"), ([0.25, 15.5], "ms"), ([0, 1], None), ([5.0, 2000.5], None)]
)
def test_two_events_are_read_and_floats_close_together_noted(tmp_path, t, unit):
    np.savez(tmp_path / "a.npz", x=[1, 2], y=[1, 2], t=t, p=[0, 1])
    events = read_events(tmp_path / "a.npz", sensor=(64, 48))
    assert events.duration_us == round(t[1]) - round(t[0])
    assert [f"say so (time_unit={unit})" in note for note in events.notes] == ([] if unit is None else [True])


def test_a_text_of_more_than_a_day_asks_for_the_unit(tmp_path):
    (tmp_path / "a.txt").write_text("64 48\n5000 1 1 1\n2500000000 1 1 1\n")
    with pytest.raises(CrossdraftError, match=r"spans more than 86400 seconds.* \(time_unit=…\)"):
        read_events(tmp_path / "a.txt")
    assert read_events(tmp_path / "a.txt", time_unit="us").t.tolist() == [5000, 2_500_000_000]
    (tmp_path / "a.txt").write_text("64 48\n5000 1 1 1\n40001 1 1 1\n")
    assert "say so (time_unit=us)" in read_events(tmp_path / "a.txt").notes[0]


def test_coarse_times_are_noted(tmp_path):
    events = read_events(as_npz(tmp_path, (US + 6e9).astype("f4")), sensor=SENSOR)
    assert events.notes == ("Times are stored as float32, in steps of 512 µs.",)


def test_a_unit_that_is_none_or_is_known(tmp_path):
    path = as_npz(tmp_path, US)
    with pytest.raises(CrossdraftError, match="time_unit is 'minutes'; give one of s, ms, us, ns"):
        read_events(path, sensor=SENSOR, time_unit="minutes")
    (tmp_path / "a.dat").write_bytes(b"% Version 2\n\x0c\x08" + bytes(8))
    with pytest.raises(CrossdraftError, match=r"are in µs; time_unit is for dsec, "):
        list(iter_events(tmp_path / "a.dat", time_unit="us"))


@pytest.mark.parametrize("unit", EXPONENTS)
def test_times_beyond_any_clock_are_refused_in_every_unit(tmp_path, unit):
    for last in (2**62, 2**63 - 1, 1e300, float("inf")):
        with pytest.raises(CrossdraftError, match="finite numbers"):
            read_events(as_npz(tmp_path, np.append(US[:-1], last)), sensor=SENSOR, time_unit=unit)


@pytest.mark.parametrize("index", [None, np.arange(100)])
def test_an_offset_that_the_times_contain(tmp_path, index):
    path = as_dsec(tmp_path, US + OFFSET)
    with h5py.File(path, "a") as file:
        file["t_offset"] = OFFSET
        if index is not None:
            file["ms_to_idx"] = index
    events = read_events(path)
    assert events.t.tolist() == (US + OFFSET).tolist()
    assert events.notes == (f"Times begin beyond t_offset, {OFFSET} µs, so it is not added: they contain it.",)
    part = read_events(path, start_us=OFFSET + 50_000, end_us=OFFSET + 60_000)
    assert same(part, events.slice(OFFSET + 50_000, OFFSET + 60_000))


@pytest.mark.parametrize(
    ("first", "offset", "indexed", "added", "noted"),
    [
        (0, OFFSET, 0, OFFSET, False),  # as DSEC has it
        (60_000_000, OFFSET, 0, OFFSET, False),  # and a part of it from a minute on
        (OFFSET, OFFSET, 0, 0, True),
        (OFFSET, OFFSET, OFFSET + 1000, OFFSET, False),  # its own clock does show such times
        (OFFSET * 3 // 4, OFFSET, 0, OFFSET, True),
        (5_000_000, 5_000_000, 0, 5_000_000, True),  # a camera that ran for 5 s: either
        (800, 1000, 0, 1000, False),
        (5_000, -10_000_000, 0, -10_000_000, False),
        (5_000, 0, 0, 0, False),
    ],
)
def test_offsets(first, offset, indexed, added, noted):
    found, notes = zero_of(first, offset, indexed)
    assert found == added
    assert bool(notes) is noted


def found_unit(t, usual="us", pixels=640 * 480):
    return time_unit(lambda i, j: t[i:j], len(t), (pixels, 1), usual, "x")


@given(
    st.integers(2, 3000),
    st.integers(0, 36_000_000_000),  # ten hours
    st.sampled_from([0, 5, OFFSET, 1_700_000_000_000_000, -4_000_000]),
    st.sampled_from([64 * 48, 346 * 260, 640 * 480, 1280 * 720]),
    st.integers(0, 9),
)
@settings(max_examples=200, deadline=None)
def test_a_recording_in_us_is_never_refused_or_altered(count, span, start, pixels, seed):
    """However sparse, short or late it is: whole µs stay µs, and so do the seconds of a text."""
    t = start + np.sort(np.random.default_rng(seed).integers(0, span + 1, count))
    for times in (t, t.astype("f8")):
        unit, notes = found_unit(times, "us", pixels)
        assert unit == "us"
        assert not notes or 0 < t[-1] - t[0] < 1000 or (t - t[0]).max() % 1000 == 0
    if span <= 86_400_000_000 and np.any((t - t[0]) % 1_000_000):
        assert found_unit(t / 1e6, "s", pixels)[0] == "s"


@pytest.mark.parametrize(("count", "span_s"), [(150, 60), (150, 6), (1000, 60), (5000, 2), (50_000, 60)])
@pytest.mark.parametrize("pixels", [640 * 480, 346 * 260])
@pytest.mark.parametrize("seed", range(3))
def test_float32_holds_enough_of_a_recording_in_seconds_to_tell_its_unit(count, span_s, pixels, seed):
    """As float64 does, though only the first seconds are exact in it; none is taken for ms."""
    t = np.sort(np.random.default_rng(seed).integers(0, span_s * 1_000_000, count)) / 1e6
    found = []
    for times in (t, t.astype("f4")):
        try:
            found.append(found_unit(times, "us", pixels)[0])
        except CrossdraftError:
            found.append("refused")
    assert found[0] in ("s", "refused")
    assert found[1] == found[0]


@given(st.integers(2, 3000), st.floats(1000, 1e9), st.integers(0, 9))
@settings(max_examples=200, deadline=None)
def test_a_simulator_s_fractions_of_us_stay_us(count, span, seed):
    t = np.sort(np.random.default_rng(seed).uniform(0, span, count))
    t[-1] = t[0] + span
    assert found_unit(t)[0] == "us"


@pytest.mark.parametrize("step", [1000, 10_000, 33_333, 1_000_000])
@pytest.mark.parametrize("each", [1, 50, 2000])
def test_a_simulator_that_stamps_frames_is_read_in_us(step, each):
    t = np.repeat(np.arange(1, 201) * step, each)
    assert found_unit(t)[0] == "us"
    assert found_unit(t / 1e6, "s")[0] == "s"


@given(
    st.integers(100, 3000),
    st.floats(0.002, 50),
    st.sampled_from(list(EXPONENTS)),
    st.sampled_from(["us", "s"]),
    st.sampled_from([0, OFFSET, 1_700_000_000_000_000]),
    st.integers(0, 9),
)
@settings(max_examples=200, deadline=None)
def test_a_camera_s_times_in_any_unit_are_right_or_noted_or_refused(count, hz_px, unit, usual, start, seed):
    span = max(2000, int(count / hz_px / 307_200 * 1e6))
    t = start + np.sort(np.random.default_rng(seed).integers(0, span + 1, count))
    t[-1] = t[0] + span
    stored = t * 1000 if unit == "ns" else t if unit == "us" else t / 10.0 ** EXPONENTS[unit]
    try:
        found, notes = found_unit(stored, usual)
    except CrossdraftError as error:
        found, notes = None, (str(error),)
    if found is None:
        assert unit != usual
        assert "time_unit=…" in notes[0]
        return
    assert found == unit or notes
    assert found != unit or usual == unit or notes


@pytest.mark.parametrize("write", [*ARRAYS, as_text, as_mvsec])
@pytest.mark.parametrize("back", [7, 40_000, "reset"])
def test_a_step_back_is_refused_in_every_unit(tmp_path, write, back):
    t = US.copy()
    t[60:] -= t[60] if back == "reset" else t[60] - t[59] + back
    stored = t / 1e6 if write in (as_text, as_mvsec) else t
    with pytest.raises(CrossdraftError, match="out of order: event 60 is"):
        read_events(write(tmp_path, stored), sensor=SENSOR)


def test_columns_that_are_swapped_are_named(tmp_path):
    np.savez(tmp_path / "a.npz", x=EVENTS.y, y=EVENTS.x, t=US, p=EVENTS.p)
    with pytest.raises(CrossdraftError, match=r"y reaches .*the other way round: swap x and y"):
        read_events(tmp_path / "a.npz", sensor=SENSOR)
    with pytest.raises(CrossdraftError, match="the other way round"):
        read_events(as_npz(tmp_path, US), sensor=(480, 640))
    with pytest.raises(CrossdraftError, match="if the sensor has another size"):
        read_events(as_npz(tmp_path, US), sensor=(480, 480))


@pytest.mark.parametrize(("low", "high"), [(0, 3), (1, 2), (-1, 2)])
def test_polarities_that_are_none_are_named(tmp_path, low, high):
    (tmp_path / "a.txt").write_text(f"64 48\n0.1 1 1 {low}\n0.2 1 1 {high}\n")
    with pytest.raises(CrossdraftError, match=rf"must be 0/1 or -1/\+1, not {low}\.0\.\.{high}\.0;"):
        read_events(tmp_path / "a.txt")


def test_polarities_of_either_kind(tmp_path):
    for low in (-1, 0):
        (tmp_path / "a.txt").write_text(f"64 48\n0.1 1 1 {low}\n0.2 1 1 1\n")
        assert read_events(tmp_path / "a.txt").p.tolist() == [0, 1]


@pytest.mark.parametrize("suffix", [".h5", ".npy", ".txt", ".zip"])
@pytest.mark.parametrize(
    "events",
    [
        made_up(3000, *SENSOR, start_us=OFFSET), made_up(2, *SENSOR), made_up(2, *SENSOR, span_us=5),
        made_up(20, *SENSOR, span_us=4_000_000_000), made_up(200, *SENSOR, span_us=4_000_000_000),
        made_up(1, *SENSOR, start_us=7),
    ],
    ids=["50 ms", "two", "two in 5 µs", "twenty in an hour", "sparse", "one"],
)  # fmt: skip
def test_what_we_write_is_read_without_a_word(tmp_path, suffix, events):
    write_events(tmp_path / f"a{suffix}", events)
    found = read_events(tmp_path / f"a{suffix}")
    assert same(found, events)
    assert found.notes == ()


def test_real_recordings_in_every_unit(shared, tmp_path):
    for path in sorted((shared / "data" / "events").glob("*.npy")):
        events = read_events(path)
        assert events.notes == ()
        for unit in EXPONENTS:
            t = events.t * 1000 if unit == "ns" else events.t / 10 ** EXPONENTS[unit]
            np.savez(tmp_path / "a.npz", x=events.x, y=events.y, t=t, p=events.p)
            found = read_events(tmp_path / "a.npz", sensor=SENSOR)
            assert bool(found.notes) is (unit != "us")
            assert unit == "ns" or same(found, events)


def test_a_rate_that_no_camera_reaches_shows_another_unit(tmp_path):
    t = np.linspace(0.0, 1.0, 50_000)  # of a second: in µs, all of them came within one
    np.savez(tmp_path / "t.npz", x=np.zeros(len(t), np.uint16), y=np.zeros(len(t), np.uint16), t=t, p=t > 0.5)
    with pytest.raises(CrossdraftError, match="cannot be in µs; give their unit"):
        read_events(tmp_path / "t.npz", sensor=(640, 480))
    assert read_events(tmp_path / "t.npz", sensor=(640, 480), time_unit="s").duration_us == 1_000_000
