"""Broken recordings of every format: one sentence of ours, no warning, and nothing that is dropped unsaid."""

import random
import struct
import warnings

import pytest

from crossdraft.errors import CrossdraftError
from crossdraft.events import Events, read_events, write_events
from tests.events.helpers import made_up

SENSOR = (240, 180)


def dat(header=b"% Width 240\n% Height 180\n"):
    words = [word for i in range(50) for word in (i * 10, (i % 200) | (i % 100) << 14 | (i % 2) << 28)]
    return header + b"\x0c\x08" + struct.pack(f"<{len(words)}I", *words)


def aedat2():
    words = [word for i in range(50) for word in ((i % 100) << 22 | (i % 200) << 12, i * 10)]
    return b"#!AER-DAT2.0\r\n#End Of ASCII Header\r\n" + struct.pack(f">{len(words)}I", *words)


def ncaltech101():
    return b"".join(struct.pack(">BBI", i, i, i * 10)[:3] + struct.pack(">H", i * 10) for i in range(50))


def written(tmp_path, name):
    write_events(tmp_path / name, made_up(200))
    return (tmp_path / name).read_bytes()


def broken(content, chance):
    """A good file with a part cut off, changed, taken out or put in."""
    bent, at = bytearray(content), chance.randrange(len(content))
    match chance.randrange(5):
        case 0:
            del bent[at:]
        case 1:
            del bent[at : at + chance.randrange(1, 20)]
        case 2:
            bent[at:at] = chance.randbytes(chance.randrange(1, 20))
        case 3:
            bent[at : at + 8] = b"\xff" * 8
        case _:
            for _ in range(5):
                bent[chance.randrange(min(len(bent), 120))] = chance.randrange(256)
    return bytes(bent)


def read_or_refuse(path, **settings):
    """What is found, or None where it was refused as it should be; a warning or another error fails the test."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            return read_events(path, **settings)
        except CrossdraftError as error:
            sentence = str(error)
    assert "\n" not in sentence
    return None


@pytest.mark.parametrize("name", ["a.dat", "a.aedat", "a.bin", "a.txt", "a.zip", "a.h5", "a.npy"])
def test_broken_files_are_read_or_refused_in_one_sentence(tmp_path, name):
    made = {"a.dat": dat, "a.aedat": aedat2, "a.bin": ncaltech101}
    content = made[name]() if name in made else written(tmp_path, name)
    path, chance = tmp_path / name, random.Random(name)
    path.write_bytes(content)
    assert isinstance(read_or_refuse(path), Events)
    for _ in range(150):
        path.write_bytes(broken(content, chance))
        read_or_refuse(path)
        path.write_bytes(chance.randbytes(chance.randrange(1, 400)))
        read_or_refuse(path, sensor=SENSOR)


@pytest.mark.parametrize(
    "line",
    [
        "nan 1 1 1", "inf 1 1 1", "1e400 1 1 1", "1e13 1 1 1", "0.1 nan 1 1", "0.1 1.5 1 1", "0.1 -1 1 1",
        "0.1 1 1 0.5", "0.1 1 1 True", "2020-01-01T00:00:00 1 1 1", "1+2j 1 1 1", "0x10 1 1 1", "0.1 1 1",
        "0.1 1 1 1 1", "0.1,1,1,1", "'0.1' 1 1 1", "1_000 1 1 1", "\x00", "9" * 200 + " 1 1 1", "0.1 1 1 1e300",
    ],
)  # fmt: skip
def test_lines_that_are_no_event_are_refused(tmp_path, line):
    (tmp_path / "a.txt").write_text(f"240 180\n{line}\n")
    assert read_or_refuse(tmp_path / "a.txt") is None


@pytest.mark.parametrize("body", ["# c\n", "#\n# d\n", "  # c\n\n", "# 0.1 1 1 1"])
def test_text_of_comments_alone_has_no_events(tmp_path, body):
    (tmp_path / "a.txt").write_text(f"# made by hand\n240 180\n{body}")
    assert len(read_or_refuse(tmp_path / "a.txt")) == 0
    (tmp_path / "a.txt").write_text(f"240 180\n0.1 1 1 1\n{body}\n0.2 1 1 0 # good\n")
    assert read_or_refuse(tmp_path / "a.txt").t.tolist() == [100_000, 200_000]


@pytest.mark.parametrize("name", ["Width", "Height", "T0"])
@pytest.mark.parametrize("value", [b"-5", b"240.0", b"1e3", b"nan", b"abc", b"240 180", b"+3", b"\xb2", b"1_0"])
def test_numbers_of_a_header_that_are_none_are_refused_and_not_left_out(tmp_path, name, value):
    (tmp_path / "a.dat").write_bytes(dat(b"% Width 240\n% Height 180\n% " + name.encode() + b" " + value + b"\n"))
    with pytest.raises(CrossdraftError, match=f"{name} in its header is"):
        read_events(tmp_path / "a.dat")


@pytest.mark.parametrize(
    ("header", "words"),
    [
        (b"", "does not begin with a header"),
        (b"% geometry 240x180\n% end\n", "does not begin with a header"),
        (b"%" * 100_000, "does not begin with a header"),
        (b"% evt 3.0\n% geome", "ends within its header"),
        (b"% format HISTO3D;height=320;width=320\n% end\n", "is HISTO3D, which is not read"),
        (b"% evt 4.0\n", r"is EVT4\.0"),
    ],
)
def test_a_raw_file_that_does_not_say_its_encoding_is_not_guessed_at(tmp_path, header, words):
    (tmp_path / "a.raw").write_bytes(header + struct.pack("<4I", 0x80000000, 1, 2, 3))
    with pytest.raises(CrossdraftError, match=words):
        read_events(tmp_path / "a.raw")


@pytest.mark.parametrize("name", ["a.raw", "a.aedat4"])
def test_a_few_broken_files_through_faery(tmp_path, name):
    pytest.importorskip("faery")
    content, chance = written(tmp_path, name), random.Random(name)
    for _ in range(4):
        (tmp_path / name).write_bytes(broken(content, chance))
        read_or_refuse(tmp_path / name)
