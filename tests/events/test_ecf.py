"""Prophesee's HDF5: against an encoder written from the format's description, and the published codec's output."""

from contextlib import suppress
from itertools import pairwise

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crossdraft.errors import CrossdraftError
from crossdraft.events import EventLimits, Events, Newest, ecf, read_events
from crossdraft.events.read import detect_format
from tests.events.helpers import made_up, same


def groups(values):
    """Neighbours that are equal, as (value, number)."""
    edges = [0, *(np.flatnonzero(np.diff(values)) + 1).tolist(), len(values)]
    return [(int(values[a]), b - a) for a, b in pairwise(edges) if b > a]


def run(value, number, bits, size):
    """A word `value << bits | number`, or with the number behind it."""
    most = (1 << bits) - 1
    words = [value << bits | min(number, most)] + ([number] if number >= most else [])
    return words[0].to_bytes(size, "little") + b"".join(word.to_bytes(2, "little") for word in words[1:])


def packed(numbers, bits):
    """Four numbers in three words of `4 * bits / 3` bits; each number fills up the word before."""
    word = 4 * bits // 3
    numbers = [*numbers, *[0] * (-len(numbers) % 4)]
    out = b""
    for a, b, c, d in zip(*(iter(numbers),) * 4, strict=True):
        part = word - bits
        first = a << part | b & (1 << part) - 1
        second = b >> part << 2 * part | c & (1 << 2 * part) - 1
        third = c >> 2 * part << 3 * part | d
        out += b"".join((value & (1 << word) - 1).to_bytes(word // 8, "little") for value in (first, second, third))
    return out


def encoded(events: Events, packing: int) -> bytes:
    """A chunk of ECF, a step at a time."""
    now = events.t0
    out = (len(events) << 2 | packing).to_bytes(4, "little") + (now % (1 << 64)).to_bytes(8, "little")
    for time, number in groups(events.t):
        step = time - now
        if step >= 15:
            while step:
                out += bytes([0xF0 | step & 15])
                step >>= 4
        out += run(step, number, 4, 1)
        now = time
    x, y, p = (column.tolist() for column in (events.x, events.y, events.p))
    if packing & 2:
        return out + packed([b << 12 | a << 1 | c for a, b, c in zip(x, y, p, strict=True)], 24)
    out += b"".join(run(row, number, 5, 2) for row, number in groups(events.y))
    if packing & 1:
        return out + packed([a << 1 | c for a, c in zip(x, p, strict=True)], 12)
    while x:
        base, mask = x.pop(0), 0
        for column in range(1, 6):
            if x and x[0] == base + column:
                x.pop(0)
                mask |= 1 << 5 - column
        out += (base << 5 | mask).to_bytes(2, "little")
    return out + b"".join(run(polarity, number, 7, 1) for polarity, number in groups(events.p))


def decoded(chunk: bytes) -> Events:
    rows = ecf.decode(chunk)
    return Events.checked(rows["x"], rows["y"], rows["t"], rows["p"], 2048, 2048)


@st.composite
def streams(draw):
    """Events with runs and steps on both sides of every escape."""

    def columns(most, runs):
        return st.lists(st.tuples(st.integers(0, most), st.sampled_from(runs)), min_size=1, max_size=12)

    x, y, p = (
        draw(columns(most, runs))
        for most, runs in ((2047, (1, 2)), (2047, (1, 30, 31, 32, 70)), (1, (1, 126, 127, 300)))
    )
    steps = draw(columns(1 << draw(st.sampled_from((1, 4, 5, 8, 33))), (1, 2, 14, 15, 16, 255, 256)))
    rows = [np.repeat([value for value, _ in one], [number for _, number in one]) for one in (x, y, p)]
    t = np.repeat(np.cumsum([value for value, _ in steps]), [number for _, number in steps])
    count = min(map(len, (*rows, t)))
    first = draw(st.sampled_from((0, 1, -5, 1 << 40)))
    x, y, p = (row[:count] for row in rows)
    return Events.checked(x, y, t[:count] + first, p, 2048, 2048)


@settings(max_examples=120, deadline=None)
@given(streams(), st.sampled_from((0, 1, 2)))
def test_what_the_description_says_is_decoded(events, packing):
    assert same(decoded(encoded(events, packing)), events)


@settings(max_examples=60, deadline=None)
@given(streams(), st.sampled_from((0, 1, 2)), st.data())
def test_a_damaged_chunk_is_refused_or_read_never_worse(events, packing, data):
    chunk = encoded(events, packing)
    with pytest.raises(ValueError, match="chunk"):
        ecf.decode(chunk[: data.draw(st.integers(0, len(chunk) - (1 if packing == 0 else 12)))])
    place = data.draw(st.integers(0, len(chunk) - 1))
    broken = bytearray(chunk)
    broken[place] ^= data.draw(st.integers(1, 255))
    with suppress(ValueError):
        ecf.decode(bytes(broken))


def test_a_step_of_time_has_up_to_sixteen_parts():
    for highest, step in ((0, 5), (7, (7 << 60) + 5)):
        times = b"\x01\xf5" + b"\xf0" * 14 + bytes([0xF0 | highest]) + b"\x01"
        assert ecf.decode(b"\x0a" + bytes(11) + times + bytes(12))["t"].tolist() == [0, step]
    with pytest.raises(ValueError, match="more than 64 bits"):
        ecf.decode(b"\x0a" + bytes(11) + b"\x01" + b"\xf0" * 17 + b"\x01" + bytes(12))


def test_events_of_the_most_bytes_chunks_of_none_and_the_most_and_a_run_cut_in_its_number():
    long = b"\xf1" + b"\xf0" * 15 + b"\x0f\1\0"  # a step of 1 in sixteen parts, and a run of 1 behind its word
    assert ecf.decode(b"\x06" + bytes(11) + long + bytes(12))["t"].tolist() == [1]
    columns = b"\x1f\0\1\0" * 20 + bytes(40) + b"\xff\1\0" * 20  # of packing 0
    assert ecf.decode(b"\x50" + bytes(11) + long * 20 + columns)["t"].tolist() == list(range(1, 21))
    most = (65_535 << 2 | 2).to_bytes(4, "little") + bytes(8) + b"\x0f\xff\xff" + bytes(12 * 16_384)
    assert (len(ecf.decode(bytes(12))), len(ecf.decode(most))) == (0, 65_535)
    with pytest.raises(ValueError, match="do not add up"):
        ecf.decode(encoded(Events.checked(*np.zeros((3, 200), int), np.ones(200, int), 8, 8), 0)[:-1])


def made_for_the_codec(kind: int) -> Events:
    """Events whose runs and steps reach every escape; `kind` is how the published encoder packs them."""
    i = np.arange((300, 90, 60)[kind])
    t = 1_700_000 + i // 20 * 3 + i // 100 * 5000 + (i == len(i) - 1) * (1 << 33)
    y = (i // 60 * 7, i // 40 * 7, i * 37 % 720)[kind]
    x = (i % 60 + i // 6 % 2, i * i * 7 % 1280, i * 29 % 1280)[kind]
    return Events.checked(x, y, t, (i // 140 % 2, i * 5 // 3 % 2, i // 2 % 2)[kind], 2048, 2048)


# What ECF::Encoder of github.com/prophesee-ai/hdf5_ecf (commit 8735ce7, Apache-2.0), built with g++ 12, makes of them.
PUBLISHED = (
    (
        "b0040000a0f01900000000000f14003f14003f14003f14003f1400fbf8f3f10f14003f14003f14003f14003f1400fbf8f3f10f14"
        "003f14003f14003f14003f1300f0f0f0f0f0f0f0f0f2011f003c00ff003c00df013c00bf023c009f033c001f00ff009f017f021f"
        "03ff039f047f051f06ff061f00ff009f017f021f03ff039f047f051f06ff061f00ff009f017f021f03ff039f047f051f06ff061f"
        "00ff009f017f021f03ff039f047f051f06ff061f00ff009f017f021f03ff039f047f051f06ff067f8c00ff8c0014"
    ),
    (
        "69010000a0f01900000000000f14003f14003f14003f140039f0f0f0f0f0f0f0f0f2011f002800ff002800ca010f0039007f000e"
        "0ef815af121f3878469e560f7eb9934f020e40b85cbf791f1e7841ee680f18f942df690e2e385f8f921f603898fe360f0ef94d2f"
        "830e78781e1f611f5eb80bce500f60b9143f620e7e78396f951f18f87a5e300f6e39370f070e4038107f851f2ef805ae750f3879"
        "169f970e5eb8434f211f00b88cbe760f5e7951ef430e3800320000"
    ),
    (
        "f2000000a0f01900000000000f14003f14003f1300f0f0f0f0f0f0f0f0f2013a00000075a05002aff0060422e840095de1910b97"
        "31100d0ad081124522d2147f721917f2b8c21b2d63121e67b32220daa0032515a453274ff42b29c2884401fde4940337350805aa"
        "70850ae525d50c1f76110f9258c613cd66161607b71a187a40071db5a7571feff72321622848269de89828d738002a4a10890285"
        "29d904bf79090732f8c90b6d60100ea7b012101ae0001555a151178ff11b1902c8411e3de2922077322522eab082272523d2295f"
        "73012c"
    ),
)


@pytest.mark.parametrize("kind", range(3))
def test_what_the_published_codec_writes_is_decoded(kind):
    chunk = bytes.fromhex(PUBLISHED[kind])
    assert chunk[0] & 3 == kind
    assert same(decoded(chunk), made_for_the_codec(kind))
    assert encoded(made_for_the_codec(kind), kind)[: len(chunk) - 12] == chunk[:-12]  # the last words hold padding


def prophesee(path, chunks, count, size, geometry="64x48", filtered=True):
    """A file in the layout of Prophesee's writer, its chunks written as they are."""
    with h5py.File(path, "w") as file:
        table = file.create_dataset(
            "CD/events", (count,), ecf.EVENT, maxshape=(None,), chunks=(size,),
            compression=ecf.FILTER if filtered else None, allow_unknown_filter=True,
        )  # fmt: skip
        for index, chunk in enumerate(chunks):
            table.id.write_direct_chunk((index * size,), chunk)
        if geometry is not None:
            file.attrs["geometry"] = geometry


def in_chunks(events, size=64, packing=0):
    return [encoded(events.take(slice(begin, begin + size)), packing) for begin in range(0, len(events), size)]


@pytest.fixture
def recording(tmp_path):
    events = made_up(1000, start_us=5_000_000)
    prophesee(tmp_path / "a.h5", in_chunks(events), len(events), 64)
    return tmp_path / "a.h5", events


def test_a_file_is_recognised_and_read(recording):
    path, events = recording
    assert detect_format(path) == "prophesee"
    assert same(read_events(path), events)
    for first, last in ((5_000_000, 5_000_001), (5_010_000, 5_020_000), (4_000_000, 9_000_000), (9_000_000, 9_100_000)):
        assert same(read_events(path, start_us=first, end_us=last), events.slice(first, last))


def test_the_newest_window_reads_few_chunks(tmp_path, monkeypatch):
    events = made_up(300_000, span_us=3_000_000)
    prophesee(tmp_path / "a.h5", in_chunks(events, 2048, 2), len(events), 2048)
    read, honest = [], ecf.decode
    monkeypatch.setattr(ecf, "decode", lambda chunk: read.append(len(chunk)) or honest(chunk))
    found = read_events(tmp_path / "a.h5", newest=Newest(us=1000))
    assert same(found, events.slice(int(events.t[-1]) - 999, 1 << 60))
    assert len(read) < 50


def test_the_sensor_is_the_attribute_or_the_usual_one(tmp_path):
    events = made_up(100)
    for geometry, size in (
        ("64x48", (64, 48)),
        (np.bytes_(b"64x48"), (64, 48)),
        (None, (1280, 720)),
        ("?", (1280, 720)),
    ):
        prophesee(tmp_path / "a.h5", in_chunks(events, 64, 2), 100, 64, geometry)
        found = read_events(tmp_path / "a.h5")
        assert (found.width, found.height) == size
    with pytest.raises(CrossdraftError, match="outside"):
        read_events(tmp_path / "a.h5", sensor=(8, 8))


def test_chunks_that_the_writer_did_not_pack_and_files_without_the_codec(tmp_path):
    events = made_up(128)
    rows = np.zeros(128, ecf.EVENT)
    for name in "xypt":
        rows[name] = getattr(events, name)
    prophesee(tmp_path / "a.h5", [encoded(events.take(slice(0, 64)), 1)], 128, 64)
    with h5py.File(tmp_path / "a.h5", "a") as file:
        file["CD/events"].id.write_direct_chunk((64,), rows[64:].tobytes(), filter_mask=1)  # pyright: ignore[reportAttributeAccessIssue]
    assert same(read_events(tmp_path / "a.h5"), events)
    prophesee(tmp_path / "b.h5", [rows.tobytes()], 128, 128, filtered=False)
    assert same(read_events(tmp_path / "b.h5"), events)


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda chunks: [*chunks[:-1], chunks[-1][:-1]], "cannot be read as HDF5"),
        (lambda chunks: [*chunks[:-1], chunks[0]], "out of order"),
        (lambda chunks: [*chunks[:2], encoded(made_up(5, start_us=1), 0), *chunks[3:]], "too few events"),
        (lambda chunks: chunks[:-1], "cannot be read as HDF5"),
        (lambda chunks: [(65_536 << 2).to_bytes(4, "little") + bytes(60), *chunks[1:]], "allows 65,535"),
        (lambda chunks: [b"\1", *chunks[1:]], "cannot be read as HDF5"),
    ],
)
def test_damage_is_one_sentence(tmp_path, damage, sentence):
    events = made_up(256)
    prophesee(tmp_path / "a.h5", damage(in_chunks(events)), 256, 64)
    with pytest.raises(CrossdraftError, match=sentence) as caught:
        read_events(tmp_path / "a.h5")
    assert "\n" not in str(caught.value)


def test_what_is_no_row_of_events_is_refused(tmp_path):
    other = np.dtype([("x", "<u2"), ("y", "<u2"), ("p", "<i2"), ("t", "S8")])
    for shape, dtype in (((4, 4), ecf.EVENT), ((4,), other), ((4,), "<u2"), ((4,), np.dtype([("x", "<u2")]))):
        with h5py.File(tmp_path / "a.h5", "w") as file:
            file.create_dataset("CD/events", shape, dtype)
        with pytest.raises(CrossdraftError, match=r"should be|column t is of"):
            read_events(tmp_path / "a.h5")


def test_a_stated_size_beyond_the_stored_one_is_refused(tmp_path):
    prophesee(tmp_path / "a.h5", [], 1 << 40, 1024)
    with pytest.raises(CrossdraftError, match="unpacks from"):
        read_events(tmp_path / "a.h5")
    events = made_up(100)
    prophesee(tmp_path / "b.h5", in_chunks(events), 100, 64)
    with pytest.raises(CrossdraftError, match="more than 50 events"):
        read_events(tmp_path / "b.h5", limits=EventLimits(events=50))
