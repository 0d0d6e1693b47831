"""Prophesee RAW, by hand and against a slow reference decoder (`evt_reference`)."""

import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crossdraft.errors import CrossdraftError
from crossdraft.events import Newest, evt, evt_words, iter_events, read_events
from crossdraft.events.evt import EvtDecoder, EvtHeader, evt_header, read_evt
from crossdraft.events.limits import DEFAULT_LIMITS, EventLimits
from crossdraft.events.read import gathered
from crossdraft.events.stream import Events, Window
from tests.events.evt_reference import Reference, in_order, random_words, swapped
from tests.events.helpers import made_up, same

LINES = {
    "2": b"% evt 2.0\n% format EVT2;height=720;width=1280\n% geometry 1280x720\n% end\n",
    "2.1": b"% evt 2.1\n% format EVT21;height=720;width=1280\n% end\n",
    "3": b"% evt 3.0\n% format EVT3;height=720;width=1280\n% end\n",
}
TYPES = {"2": "<u4", "2.1": "<u8", "3": "<u2"}
HEADERS = {version: EvtHeader(version, (1280, 720)) for version in LINES}


def data_of(version: str, words: list[int]) -> bytes:
    return np.array(words, TYPES[version]).tobytes()


def decoded(
    version: str, words: list[int], header: EvtHeader | None = None
) -> tuple[list[tuple[int, ...]], EvtDecoder]:
    """All events as (t, x, y, p), and the decoder."""
    decoder = EvtDecoder(header or HEADERS[version])
    parts = decoder.decode(data_of(version, words)), decoder.flush()
    return [row for part in parts for row in rows_of(part)], decoder


def rows_of(events: Events) -> list[tuple[int, ...]]:
    return list(zip(*(getattr(events, name).tolist() for name in "txyp"), strict=True))


def raw(path: Path, version: str, words: list[int]) -> Path:
    path.write_bytes(LINES[version] + data_of(version, words))
    return path


def high3(value: int) -> int:
    return 8 << 12 | value


def event3(x: int, p: int = 0) -> int:
    return 2 << 12 | p << 11 | x


def high2(value: int) -> int:
    return 8 << 28 | value


def event2(low: int, x: int = 0, y: int = 0, p: int = 0) -> int:
    return p << 28 | low << 22 | x << 11 | y


def test_a_wrap_without_the_word_0(tmp_path):
    words = [0x8FFD, 0x6000, 0x0000, 0x2001, 0x8FFF, 0x2002, 0x8001, 0x6005, 0x2003, 0x8002, 0x6000, 0x2004]
    events = read_events(raw(tmp_path / "a.raw", "3", words))
    assert rows_of(events) == [(16764928, 1, 0, 0), (16773120, 2, 0, 0), (16781317, 3, 0, 0), (16785408, 4, 0, 0)]
    (note,) = events.notes
    assert note.startswith("Wraps of the clock without its last or first word: 1; ")
    assert "0.008 s" in note


@pytest.mark.parametrize(("before", "after", "noted"), [(4095, 0, False), (4094, 0, True), (3072, 0, True)])
def test_a_wrap_is_noted_unless_its_last_and_first_word_are_there(before, after, noted):
    found, decoder = decoded("3", [high3(before), 0, event3(1), high3(after), event3(2)])
    assert [t for t, *_ in found] == [before << 12, 4096 + after << 12]
    assert bool(decoder.notes) == noted


def test_a_step_back_of_evt2_is_put_in_order_and_never_4_77_hours():
    words = [high2(10), event2(5, 1), high2(9), event2(6, 2), high2(11), event2(7, 3)]
    found, decoder = decoded("2", words)
    assert found == [(582, 2, 0, 0), (645, 1, 0, 0), (711, 3, 0, 0)]
    assert decoder.notes == ("Events that came late, up to 63 µs, and were put in order: 1.",)


@pytest.mark.parametrize(("late", "kept"), [(10_000, True), (10_001, False)])
def test_how_late_an_event_may_be(late, kept):
    found, decoder = decoded("3", [high3(5), 6 << 12 | 4000, 0, event3(1)])
    time = 5 * 4096 + 4000 - late
    words = [high3(time >> 12), 6 << 12 | time & 0xFFF, event3(2)]
    decoder = EvtDecoder(HEADERS["3"])
    first = decoder.decode(data_of("3", [high3(5), 6 << 12 | 4000, 0, event3(1), *words]))
    if kept:
        assert rows_of(decoder.flush())[0][0] == time
        return
    assert rows_of(first) == found  # nothing else can come in front of it
    with pytest.raises(CrossdraftError, match=f"out of order: event 1 is {late:,} µs earlier"):
        decoder.flush()


@pytest.mark.parametrize("jump", [101, 3000])
def test_a_damaged_clock_word_is_no_wrap(jump):
    """Whether a value jumps up and comes back, or down: the way there and back is disorder, and no lap is added."""
    with pytest.raises(CrossdraftError, match="out of order"):
        decoded("3", [high3(100), 0, event3(1), high3(jump + 400), event3(2), high3(102), event3(3)])
    with pytest.raises(CrossdraftError, match="out of order"):
        decoded("3", [high3(3500), 0, event3(1), high3(100), event3(2), high3(3501), event3(3)])


def test_a_camera_that_was_started_anew_is_refused_and_what_came_before_is_read(tmp_path):
    words = [high3(2000), 0, event3(1), high3(2001), event3(2), high3(0), event3(3), high3(1), event3(4)]
    path = raw(tmp_path / "a.raw", "3", words)
    with pytest.raises(
        CrossdraftError, match=r"event 2 is 8,196,096 µs earlier .* up to 8,196,096 µs \(end_us=…\)"
    ) as caught:
        read_events(path)
    assert "\n" not in str(caught.value)
    assert read_events(path, end_us=8196096).x.tolist() == [1]


def test_lost_packets_leave_the_times_that_the_words_say():
    found, decoder = decoded("3", [high3(7), 0, event3(1), high3(2000), event3(2), 6 << 12 | 9, event3(3)])
    assert [t for t, *_ in found] == [7 << 12, 2000 << 12, (2000 << 12) + 9]
    assert decoder.notes == ()


def test_a_repeated_time_high_keeps_the_lower_part():
    found, _ = decoded("3", [high3(7), 6 << 12 | 50, 0, event3(1), high3(7), event3(2), high3(8), event3(3)])
    assert [t - (7 << 12) for t, *_ in found] == [50, 50, 4096]


def test_vectors_of_evt3_and_some_that_are_cut_short():
    base = 3 << 12 | 1 << 11 | 100
    vector12, vector8 = 4 << 12, 5 << 12
    words = [high3(0), 6 << 12 | 1, 7, base, vector12 | 0x801, vector12 | 2, vector8 | 0x80, event3(5)]
    words += [base - 60, vector12 | 1, 8, base - 100, vector8 | 3, vector12 | 1]
    found, _ = decoded("3", words)
    assert [(x, y, p) for _, x, y, p in found] == [
        (100, 7, 1), (111, 7, 1), (113, 7, 1), (131, 7, 1), (5, 7, 0), (40, 7, 1), (0, 8, 1), (1, 8, 1), (8, 8, 1),
    ]  # fmt: skip


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("said", [True, False])
def test_both_orders_of_evt21_whether_the_header_says_which_or_not(tmp_path, legacy, said):
    words = [high2(3) << 32, event2(5, 32, 9, 1) << 32 | 0xC000_0001, event2(6, 0, 1) << 32 | 2]
    order = (b";endianness=legacy" if legacy else b";endianness=little") if said else b""
    lines = LINES["2.1"].replace(b"=1280", b"=1280" + order)
    (tmp_path / "a.raw").write_bytes(lines + (swapped(words) if legacy else data_of("2.1", words)))
    found = rows_of(read_events(tmp_path / "a.raw"))
    assert found == [(197, 32, 9, 1), (197, 62, 9, 1), (197, 63, 9, 1), (198, 1, 1, 0)]


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize(("piece", "last"), [(8, 90), (1 << 20, 8999)])
def test_the_order_of_evt21_shows_in_words_of_time_alone(legacy, piece, last):
    """As of a camera whose lens is covered at first."""
    words = [high2(i) << 32 for i in range(last + 1)] + [event2(1, 32, 3) << 32 | 1 << bit for bit in range(32)]
    data = swapped(words) if legacy else data_of("2.1", words)
    decoder = EvtDecoder(EvtHeader("2.1", (1280, 720)))
    parts = [decoder.decode(data[at : at + piece]) for at in range(0, len(data), piece)]
    assert [row for part in (*parts, decoder.flush()) for row in rows_of(part)] == [
        (last * 64 + 1, 32 + bit, 3, 0) for bit in range(32)
    ]
    assert decoder.notes == ()


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("first", [8, 1 << 20])
def test_the_order_of_evt21_shows_among_triggers_and_not_in_an_event_alone(legacy, first):
    words = [event2(1) << 32 | 1, *(kind << 60 for kind in (10, 14, 15)), high2(3) << 32, event2(5, 32, 9, 1) << 32 | 2]
    data = swapped(words) if legacy else data_of("2.1", words)
    decoder = EvtDecoder(EvtHeader("2.1", (1280, 720)))
    parts = decoder.decode(data[:first]), decoder.decode(data[first:]), decoder.flush()
    assert [row for part in parts for row in rows_of(part)] == [(197, 33, 9, 1)]


def test_other_words_are_passed_over_and_undefined_ones_are_noted():
    words = [high3(1), 3, event3(1), 0xA << 12 | 1, 0xE << 12 | 0x16, 0xF << 12 | 5, 7 << 12, event3(2)]
    found, decoder = decoded("3", [*words, *(kind << 12 for kind in (9, 11, 12, 13))])
    assert [x for _, x, *_ in found] == [1, 2]
    assert decoder.notes == ("Words that EVT3 does not define, ignored: 4.",)
    found, decoder = decoded("2", [high2(1), *(kind << 28 for kind in (*range(2, 8), *range(9, 16))), event2(1)])
    assert (len(found), decoder.words.undefined) == (1, 10)  # 10, 14 and 15 are defined


@pytest.mark.parametrize(
    ("raw", "us"), [((3072, 0), 4096 << 12), ((3071, 0), 0), ((0, 3071), 3071 << 12), ((0, 3072), -1024 << 12)]
)
def test_the_greatest_wrap_and_the_latest_word_from_before_one(raw, us):
    """Both are of a quarter of the range, 1024 steps; beyond it there is silence, or a step back."""
    clock = evt_words.HighClock(12, 12)
    assert clock(np.array(raw)).tolist() == [raw[0] << 12, us]
    assert clock.stepped == (us < raw[0] << 12)
    clock = evt_words.HighClock(12, 12)
    for values in ([4000, 4], [2000, 4000, 4090, 2]):  # gaps of 100 steps, and of 8
        clock(np.array(values))
    assert (clock.wraps, clock.gap_us) == (2, 100 << 12)


def test_events_before_the_clock_a_row_or_a_base_and_of_another_sensor_are_left_out():
    found, decoder = decoded(
        "3", [5, event3(1), high3(1), event3(2), 1 << 12 | 9, event3(3), 4, event3(4), 4 << 12 | 3]
    )
    assert [x for _, x, *_ in found] == [2, 4]
    assert decoder.notes == ("Events of unknown time, row or column, left out: 4.",)
    assert decoded("2", [event2(1), event2(2), high2(1), event2(3)])[1].words.dropped == 2
    assert decoded("2.1", [event2(1) << 32 | 7, high2(1) << 32])[1].words.dropped == 3


def test_an_event_outside_the_sensor_is_named_by_its_number():
    decoder = EvtDecoder(EvtHeader("2", (640, 480)), source="a.raw")
    words = [high2(1), *[event2(1, 639, 479)] * 1200, event2(2, 640, 3)]
    assert len(decoder.decode(data_of("2", words))) == 1200
    for again in (lambda: decoder.decode(b""), decoder.flush):
        with pytest.raises(CrossdraftError, match=r"^a.raw: event 1,200 is at x=640, y=3, outside the 640x480 sensor"):
            again()


def test_a_file_that_is_cut_anywhere_is_read_up_to_there_or_refused(tmp_path):
    words = [high3(3), 6 << 12 | 1, 7, event3(1), event3(2, 1), high3(4), 3 << 12 | 9, 4 << 12 | 0xF, event3(3)]
    content = LINES["3"] + data_of("3", words)
    whole, count = Reference("3").read(words), 0
    for size in range(1, len(content) + 1):
        (tmp_path / "a.raw").write_bytes(content[:size])
        found, left = read_or_why(tmp_path / "a.raw"), size - len(LINES["3"])
        if isinstance(found, str):
            assert left < 0
            assert "ends within its header" in found or "does not begin with a header" in found
            continue
        assert len(found) >= count
        count = len(found)
        assert rows_of(found) == whole[:count]
        assert left < 0 or any("cut off" in note for note in found.notes) == bool(left % 2)
    assert count == len(whole)


def read_or_why(path: Path) -> Events | str:
    try:
        return read_events(path)
    except CrossdraftError as error:
        return str(error)


@pytest.mark.parametrize(
    ("lines", "wanted"),
    [
        (b"% evt 3.0\n", EvtHeader("3", None, 10)),
        (b"% format EVT2;width=640;height=480\n% T0 57\nrest", EvtHeader("2", (640, 480), 43, 57)),
        (b"% Width 320\n% Height 240\n% evt 2.1\r\n% end\n% evt", EvtHeader("2.1", (320, 240), 42)),
        (b"% plugin_name hal_plugin_gen31_fx3\n% evt 2.0\n", EvtHeader("2", (640, 480), 45)),
        (b"% format EVT21;height=720;width=1280;endianness=legacy\n", EvtHeader("2.1", (1280, 720), 55, 0, True)),
    ],
)
def test_headers(lines, wanted):
    assert evt_header(lines, "a") == wanted


def test_a_header_without_a_sensor_is_noted(tmp_path):
    (tmp_path / "a.raw").write_bytes(b"% evt 3.0\n" + data_of("3", [high3(1), 2, event3(1)]))
    assert read_events(tmp_path / "a.raw").notes == ("The header names no sensor; 1280x720 pixels were assumed.",)
    assert read_events(tmp_path / "a.raw", sensor=(64, 48)).notes == ()


def disagrees(seed: int) -> bool:
    """True unless a random stream, in random pieces, is decoded as by the reference."""
    chance = random.Random(seed)
    version = chance.choice(["2", "2.1", "3", "3"])
    words = random_words(version, chance)
    reference = Reference(version)
    wanted, late, fault = in_order(reference.read(words), 1280, 720)
    legacy = version == "2.1" and chance.random() < 0.5
    data = swapped(words) if legacy else data_of(version, words)
    decoder, found, why, at = EvtDecoder(EvtHeader(version, (1280, 720), legacy=legacy)), [], "", 0
    longest = chance.choice([9, 60, 2000])
    try:
        while at < len(data):
            step = chance.randrange(1, longest)
            found += rows_of(decoder.decode(data[at : at + step]))
            at += step
        found += rows_of(decoder.flush())
    except CrossdraftError as error:
        why = "outside" if "outside" in str(error) else "order" if "out of order" in str(error) else str(error)
    counts = decoder.words.dropped, decoder._late, decoder.words.clock.wraps
    right = fault or counts == (reference.dropped, late, reference.wraps)
    return not (found == wanted and why == fault and right)


def test_random_streams_are_decoded_as_by_the_reference(monkeypatch):
    """Wrapped, reset, late, cut short and damaged at random, in pieces of any size."""
    for seed in range(150):
        monkeypatch.setattr(evt, "AT_ONCE", (16, 200, 1 << 17)[seed % 3])
        assert not disagrees(seed), seed


@pytest.mark.parametrize(
    ("module", "name", "value"),
    [(evt_words, "WRAP_US", 0), (evt, "DISORDER_US", 5_000), (evt_words, "WIDTH_OF", np.zeros(16, int))],
)
def test_a_planted_fault_is_found(monkeypatch, module, name, value):
    monkeypatch.setattr(module, name, value)
    assert any(map(disagrees, range(200)))


def test_the_newest_window_and_any_span_are_those_of_the_whole_file(tmp_path, monkeypatch):
    """Exactly, and most of the words before them are passed over."""
    given: list[int] = []
    decode = EvtDecoder.decode
    monkeypatch.setattr(EvtDecoder, "decode", lambda self, data: given.append(len(data)) or decode(self, data))
    saved = Counter[str]()
    for seed in range(120):
        chance = random.Random(seed)
        version = chance.choice(["2", "2.1", "3", "3"])
        words = random_words(version, chance, steady=True)
        path = raw(tmp_path / "a.raw", version, words)
        monkeypatch.setattr(evt, "BLOCK_BYTES", 1 << 20)
        whole = gathered(read_evt(path, None, Window()), path)
        monkeypatch.setattr(evt, "BLOCK_BYTES", chance.choice([16, 64, 256, 1024]))
        edges = sorted(int(whole.t[chance.randrange(len(whole))]) + chance.randrange(-2, 3) for _ in range(2))
        start, end = (edge if chance.random() < 0.6 else None for edge in edges)
        us, most = (
            chance.choice([None, 1, chance.randrange(1, 20_000)]),
            chance.choice([None, chance.randrange(50, 300)]),
        )
        newest = chance.choice([None, Newest(us, chance.randrange(50 if most else 300), most)])
        wanted = Window(start, end).clip(whole)
        given.clear()
        window = Window(start, end, newest)
        found = gathered(read_evt(path, None, window), path, DEFAULT_LIMITS, newest)
        assert same(found, wanted if newest is None else newest.of(wanted)), (seed, window)
        saved[version] += sum(given) < 0.7 * len(data_of(version, words))
    assert min(saved.values()) > 10, saved


def test_the_newest_events_are_found_behind_a_long_silence(tmp_path, monkeypatch):
    monkeypatch.setattr(evt, "BLOCK_BYTES", 64)
    path = raw(tmp_path / "a.raw", "2", [high2(1), event2(5, 1), event2(9, 2), *map(high2, range(2, 2000))])
    for newest in (Newest(us=5), Newest(us=4), Newest(most=1)):
        assert read_events(path, newest=newest).x.tolist() == ([1, 2] if newest.us == 5 else [2])


def test_a_whole_file_is_gone_through_once(tmp_path, monkeypatch):
    path = raw(tmp_path / "a.raw", "2", [high2(1), *map(event2, range(60))])
    monkeypatch.setattr(evt_words.Evt2Words, "skip", None)
    assert len(read_events(path)) == 60
    with pytest.raises(TypeError):
        read_events(path, newest=Newest(most=1))


def test_words_that_are_passed_over_leave_the_state_of_decoded_ones():
    words = evt_words.Evt3Words()

    def skip(*given: int) -> int:
        return words.skip(memoryview(data_of("3", list(given))))

    def last() -> tuple[int, int]:
        (time,), _, (row,), _ = words.decode(memoryview(data_of("3", [event3(3)])))
        return time, row

    words.decode(memoryview(data_of("3", [high3(10), 6 << 12 | 900])))
    assert skip(event3(1), event3(2)) == 0  # in no row
    assert skip(5, event3(1)) == 1
    assert skip(7, event3(1), 6 << 12 | 901, event3(2)) == 2
    assert skip(event3(1)) == 1
    assert last() == ((10 << 12) + 901, 7)
    assert skip(event3(1), high3(11), 6) == 1
    assert last() == (11 << 12, 6)
    vector = 4 << 12 | 1
    assert skip(vector, 3 << 12 | 9, vector) == 1  # the first has no column
    assert skip(1 << 12 | 9, event3(1)) == 0  # a row of another sensor


def test_a_span_of_a_recording_that_does_not_begin_at_0(tmp_path, monkeypatch):
    monkeypatch.setattr(evt, "BLOCK_BYTES", 64)
    words = [word for i in range(200) for word in (high3(i), i, event3(i))]
    (tmp_path / "a.raw").write_bytes(b"% T0 500000\n" + LINES["3"] + data_of("3", words))
    whole = read_events(tmp_path / "a.raw")
    assert whole.t0 == 500_000
    span = 500_000 + 100 * 4096, 500_000 + 150 * 4096
    assert same(read_events(tmp_path / "a.raw", start_us=span[0], end_us=span[1]), whole.slice(*span))


def test_a_clock_that_steps_back_is_seen_though_it_is_passed_over_and_so_is_the_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(evt, "BLOCK_BYTES", 64)
    words = [word for i in range(200) for word in (high3(i), i, event3(i))]
    path = raw(tmp_path / "a.raw", "3", words)
    assert len(read_events(path, newest=Newest(most=3))) == 3
    with pytest.raises(CrossdraftError, match="more than 150 events to read through"):
        read_events(path, newest=Newest(most=3), limits=EventLimits(scanned=150))
    raw(path, "3", [*words[:60], high3(3), event3(1), *words[60:]])
    with pytest.raises(CrossdraftError, match="out of order"):
        read_events(path, newest=Newest(most=3))


def test_a_file_comes_in_pieces_and_a_flushed_stream_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(evt, "BLOCK_BYTES", 64)
    words = [word for i in range(200) for word in (high3(i), i % 700, event3(i))]
    path = raw(tmp_path / "a.raw", "3", words)
    chunks = list(iter_events(path))
    assert len(chunks) > 5
    assert [x for chunk in chunks for x in chunk.x.tolist()] == list(range(200))
    decoder = EvtDecoder(HEADERS["3"])
    decoder.decode(data_of("3", words))
    assert decoder.flush().x[-1] == 199  # the scene is still, and nobody waits for what may come in front
    decoder.decode(data_of("3", [event3(6), 6 << 12 | 5, event3(7), 6 << 12 | 3, event3(8)]))
    assert decoder.flush().x.tolist() == [6, 8, 7]  # the first is of the time of the last one that was given away
    assert len(decoder.decode(data_of("3", [high3(198), event3(5)]))) == 0  # 4 ms late, but the others are given away
    with pytest.raises(CrossdraftError, match="out of order"):
        decoder.flush()


@pytest.mark.parametrize("version", ["evt2", "evt3"])
@pytest.mark.parametrize("start", [0, 57_922_807_588])
def test_silence_over_wraps_that_faery_writes(tmp_path, version, start):
    """It then writes every fourth part of the clock's range; its own reader loses such wraps of EVT3."""
    faery = pytest.importorskip("faery")
    events = made_up(300, 640, 480, start_us=start, span_us=60_000_000)
    columns: Any = np.zeros(len(events), faery.EVENTS_DTYPE)
    for name in "txyp":
        columns[name] = getattr(events, name)
    faery.events_stream_from_array(columns, (640, 480)).to_file(tmp_path / "a.raw", version=version)
    assert same(read_events(tmp_path / "a.raw"), events)


@pytest.mark.parametrize("version", ["evt2", "evt3"])
def test_real_recordings_are_decoded_as_faery_does(tmp_path, version, shared):
    faery = pytest.importorskip("faery")
    for path in sorted((shared / "data" / "events").glob("*.npy"))[-1:]:
        events = read_events(path)
        columns: Any = np.zeros(len(events), faery.EVENTS_DTYPE)
        for name in "txyp":
            columns[name] = getattr(events, name)
        faery.events_stream_from_array(columns, (events.width, events.height)).to_file(
            tmp_path / "a.raw", version=version
        )
        found = faery.events_stream_from_file(tmp_path / "a.raw").to_array()
        ours = read_events(tmp_path / "a.raw")
        for name in "txyp":
            assert np.array_equal(getattr(ours, name), found[name])


def test_a_clock_that_stands_still_holds_no_more_than_some_events_back(monkeypatch):
    monkeypatch.setattr(evt, "MOST_HELD", 10)
    decoder = EvtDecoder(HEADERS["3"])
    assert len(decoder.decode(data_of("3", [high3(9), 1, *map(event3, range(50))]))) == 40
    assert decoder.flush().x.tolist() == list(range(40, 50))
