"""Frames: what is encoded is decoded, and whatever else comes is refused with one sentence."""

import random
import struct
from contextlib import suppress
from dataclasses import fields

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossdraft.edge.codec import Blob, FrameError, Numbers, Real, Text, Texts, Whole
from crossdraft.edge.frames import (
    FRAME_BYTES,
    SCHEMA,
    VERSION,
    AskFrame,
    Commit,
    DraftFrame,
    Hello,
    Ping,
    decode,
    encode,
    fingerprint_of,
)

CODECS = SCHEMA.codecs

INT32 = st.integers(-(2**31), 2**31 - 1)
FLOAT32 = st.floats(width=32, allow_nan=False)


def values(codec):
    match codec:
        case Whole(most):
            return st.integers(0, most)
        case Real():
            return st.floats(allow_nan=False, allow_infinity=False)
        case Text(most):
            return st.text(max_size=min(most, 20))
        case Blob(least, most):
            return st.binary(min_size=least, max_size=min(most, max(least, 50)))
        case Numbers(kind, _):
            return st.lists(INT32 if kind.kind == "i" else FLOAT32, max_size=9).map(tuple)
        case Texts(_, _):
            return st.lists(st.text(max_size=9), max_size=5).map(tuple)
    raise AssertionError(codec)


@st.composite
def drafts(draw):
    """Draft frames whose parts agree in number."""
    nodes = draw(st.integers(0, 6))
    counts = tuple(draw(st.lists(st.integers(0, 4), max_size=nodes)))
    many = lambda kind, count: tuple(draw(st.lists(kind, min_size=count, max_size=count)))  # noqa: E731
    length, serial, start = (draw(st.integers(0, 1000)) for _ in range(3))
    probs = many(FLOAT32, nodes) if draw(st.booleans()) else ()
    ids, values = many(INT32, sum(counts)), many(FLOAT32, sum(counts))
    places = many(INT32, nodes), many(INT32, nodes), many(INT32, nodes)
    return DraftFrame(
        length,
        draw(st.binary(min_size=8, max_size=8)),
        serial,
        start,
        *places,
        probs,
        counts,
        ids,
        values,
        draw(st.integers(0, 1000)),
        draw(st.integers(0, 1 << 53)),
    )


FRAMES = st.one_of(
    drafts(),
    *(
        st.builds(frame, **{name: values(codec) for name, codec in codecs})
        for frame, codecs in CODECS.items()
        if frame is not DraftFrame
    ),
)


@given(FRAMES)
def test_what_is_encoded_is_decoded(frame):
    assert decode(encode(frame)) == frame


def test_every_frame_has_a_kind_of_its_own_and_a_codec_for_every_field():
    assert len(SCHEMA.kinds) == len(CODECS) == 11
    assert all([field.name for field in fields(frame)] == [name for name, _ in CODECS[frame]] for frame in CODECS)


@given(FRAMES, st.randoms(use_true_random=False))
def test_mutated_bytes_are_refused_or_are_another_frame(frame, chance: random.Random):
    data = bytearray(encode(frame))
    for _ in range(chance.randint(1, 4)):
        match chance.randrange(3):
            case 0:
                data[chance.randrange(len(data))] = chance.randrange(256)
            case 1:
                del data[chance.randrange(len(data)) :]
                data += bytes([chance.randrange(256)])
            case _:
                data.insert(chance.randrange(len(data) + 1), chance.randrange(256))
    with suppress(FrameError):
        assert type(decode(bytes(data))) in CODECS


@given(st.binary(max_size=200))
def test_noise_is_refused(data):
    with pytest.raises(FrameError):
        decode(data)


def packed(*values):
    return msgpack.packb(list(values))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ("text", "no binary one"),
        (None, "no binary one"),
        (bytes(FRAME_BYTES + 1), "no binary one"),
        (packed(VERSION + 1, "ping", 1.0), f"version {VERSION + 1}"),
        (packed(VERSION, "pickle", b"x"), "no frame of the kind 'pickle'"),
        (packed(VERSION, "ping"), "has 1 fields, not 0"),
        (packed(VERSION, "ping", 1.0, 2.0), "has 1 fields, not 2"),
        (packed(VERSION, "ping", "now"), "no finite number"),
        (packed(VERSION, "ping", float("nan")), "no finite number"),
        (packed(VERSION, "ping", True), "no finite number"),
        (packed(VERSION, "ask", b"short", b"{}", 2), "has not 16 to 16 bytes"),
        (packed(VERSION, "resume", bytes(16), -1, bytes(8), 0), "no whole number"),
        (packed(VERSION, "resume", bytes(16), True, bytes(8), 0), "no whole number"),
        (packed(VERSION, "hello", "x" * 201, bytes(32)), "no text of at most 200"),
        (packed(True, "end"), "no msgpack array"),
        (msgpack.packb({"version": 1}), "no msgpack array"),
        (msgpack.packb([VERSION, "ping", {"a": 1}]), "no msgpack array"),
        (msgpack.packb([VERSION, "ping", msgpack.ExtType(1, b"x")]), "no msgpack array"),
        (msgpack.packb([VERSION, "ping", msgpack.Timestamp(1)]), "no msgpack array"),
        (b"\x91" * 3000, "no msgpack array"),
        (b"\xdd\xff\xff\xff\xff", "no msgpack array"),
    ],
)
def test_what_is_no_frame_is_refused_by_name(data, words):
    with pytest.raises(FrameError, match=words):
        decode(data)


def test_numbers_are_bounded():
    long = packed(VERSION, "draft", 0, bytes(8), 1, 0, bytes(4 * 5000), b"", b"", b"", b"", b"", b"", 0, 0)
    odd = packed(VERSION, "draft", 0, bytes(8), 1, 0, b"abc", b"", b"", b"", b"", b"", b"", 0, 0)
    for data in (long, odd):
        with pytest.raises(FrameError, match="tokens"):
            decode(data)


def test_what_is_too_long_is_not_sent():
    with pytest.raises(FrameError, match="at most"):
        encode(AskFrame(bytes(16), bytes(FRAME_BYTES)))


def test_a_float_travels_to_the_bit():
    value = struct.unpack("<f", struct.pack("<f", 0.1))[0]
    frame = DraftFrame(0, bytes(8), 1, 0, (1,), (-1,), (0,), (), (1,), (7,), (value,))
    assert decode(encode(frame)).values == (value,)


def test_a_fingerprint_is_of_one_vocabulary():
    assert fingerprint_of({"a": 0, "b": 1}) == fingerprint_of({"b": 1, "a": 0})
    assert fingerprint_of({"a": 0, "b": 1}) != fingerprint_of({"a": 1, "b": 0})


def test_bytes_of_a_round():
    """What docs/edge.md says of them."""
    assert len(encode(Ping(1.0))) == 16
    commit = Commit(100, bytes(8), tuple(range(5)), (4, 1), (1, 2), (" a van is ahead", " of"), 64)
    draft = DraftFrame(100, bytes(8), 3, 0, tuple(range(8)), tuple(range(-1, 7)), (), (0.5,) * 8)
    assert len(encode(commit)) < 100
    assert len(encode(draft)) < 150
    assert len(encode(Hello("event", bytes(32)))) < 60
