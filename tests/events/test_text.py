import tracemalloc
import zipfile
from contextlib import suppress

import pytest

from crossdraft.errors import CrossdraftError
from crossdraft.events import Events, concatenate, iter_events, read_events, text, write_events
from tests.events.helpers import made_up, same


def test_a_file_written_by_hand(tmp_path):
    (tmp_path / "a.txt").write_text("240 180\n0.003811 96 133 0\n0.003820 97 134 1\n1.5 0 179 1\n")
    events = read_events(tmp_path / "a.txt")
    assert (events.width, events.height) == (240, 180)
    assert events.t.tolist() == [3811, 3820, 1_500_000]
    assert (events.x.tolist(), events.y.tolist(), events.p.tolist()) == ([96, 97, 0], [133, 134, 179], [0, 1, 1])


def test_zip_and_headless_text_and_signed_polarity(tmp_path):
    body = "10.000001 1 2 -1\n10.000002 2 1 1\n"
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("events.txt", "4 3\n" + body)
    (tmp_path / "b.txt").write_text(body)
    zipped = read_events(tmp_path / "a.zip")
    assert zipped.t.tolist() == [10_000_001, 10_000_002]
    assert zipped.p.tolist() == [0, 1]
    assert same(read_events(tmp_path / "b.txt", sensor=(4, 3)), zipped)
    with pytest.raises(CrossdraftError, match="give the sensor size"):
        read_events(tmp_path / "b.txt")


@pytest.mark.parametrize("suffix", [".txt", ".zip"])
@pytest.mark.parametrize("start", [0, -25_000, 1_506_117_889_123_456])
def test_what_is_written_is_read(tmp_path, suffix, start):
    events = made_up(300, start_us=start)
    write_events(tmp_path / f"a{suffix}", events)
    assert same(read_events(tmp_path / f"a{suffix}"), events)
    write_events(tmp_path / f"b{suffix}", Events.empty(3, 2))
    assert same(read_events(tmp_path / f"b{suffix}"), Events.empty(3, 2))


@pytest.mark.parametrize("lines", [1, 99, 100, 101, 300, 301])
def test_chunks_and_windows(tmp_path, monkeypatch, lines):
    events = made_up(300)
    write_events(tmp_path / "a.txt", events)
    monkeypatch.setattr(text, "CHUNK_LINES", lines)
    assert same(concatenate(list(iter_events(tmp_path / "a.txt"))), events)
    found = read_events(tmp_path / "a.txt", start_us=10_000, end_us=30_000)
    assert same(found, events.slice(10_000, 30_000))


def test_nothing_is_read_beyond_the_window(tmp_path, monkeypatch):
    monkeypatch.setattr(text, "CHUNK_LINES", 2)
    (tmp_path / "a.txt").write_text("4 3\n0.1 0 0 0\n0.2 0 0 0\n0.3 0 0 0\n0.4 0 0 0\nthis is no event\n")
    assert len(read_events(tmp_path / "a.txt", end_us=250_000)) == 2
    with pytest.raises(CrossdraftError, match="four numbers"):
        read_events(tmp_path / "a.txt")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("4 3\n0.1 0 0 a\n", "four numbers"),
        ("4 3\n0.1 0 0 0\n0.2 0\n", "four numbers"),
        ("4 3\n0.1 4 0 0\n", "outside the 4x3"),
        ("4 3\n0.2 0 0 0\n0.1 0 0 0\n", "out of order"),
        ("wide 3\n", "no event recording"),
        ("0.1 0 0 0\n", "does not begin"),
        ("0 0\n", "impossible"),
        ("4 3\n1e20 0 0 0\n", "finite numbers below"),
        ("4 3\n1e305 0 0 0\n", "finite numbers below"),
        ("4 3\nnan 0 0 0\n0.1 0 0 0\n", "finite numbers below"),
        ("4 3\n0.1 0 0 1e300\n", "polarity"),
        ("4 3\n" + "0" * 249 + "1 0 0 0\n", "more than 256 characters"),
        ("1" * 300 + " 3\n", "more than 256 characters"),
    ],
)
def test_bad_lines_are_refused(tmp_path, content, words):
    (tmp_path / "a.txt").write_text(content)
    with pytest.raises(CrossdraftError, match=words) as caught:
        read_events(tmp_path / "a.txt")
    assert "\n" not in str(caught.value)


def test_files_that_are_no_text(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"4 3\n\xff\xfe\n")
    with pytest.raises(CrossdraftError, match="not a text file"):
        read_events(tmp_path / "a.txt")
    write_events(tmp_path / "b.zip", made_up(300))
    whole = (tmp_path / "b.zip").read_bytes()
    (tmp_path / "c.zip").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CrossdraftError):
        read_events(tmp_path / "c.zip")
    with zipfile.ZipFile(tmp_path / "d.zip", "w") as archive:
        archive.writestr("a.txt", "4 3\n")
        archive.writestr("b.txt", "4 3\n")
    with pytest.raises(CrossdraftError, match="exactly one"):
        read_events(tmp_path / "d.zip")
    damaged = bytearray(whole)
    damaged[60] ^= 0xFF
    (tmp_path / "e.zip").write_bytes(damaged)
    with pytest.raises(CrossdraftError):
        read_events(tmp_path / "e.zip")


def test_a_line_without_end_is_not_read_to_its_end(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("events.txt", b"4 3\n" + b"1" * 16_000_000)
    tracemalloc.start()
    try:
        with pytest.raises(CrossdraftError, match="more than 256 characters"):
            read_events(tmp_path / "a.zip")
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_blank_lines_are_no_events(tmp_path, monkeypatch):
    monkeypatch.setattr(text, "CHUNK_LINES", 1)
    (tmp_path / "a.txt").write_text(f"\n4 3\n\n0.1 0 0 0{' ' * 246}\n  \n0.2 1 1 1\n\n")
    assert read_events(tmp_path / "a.txt").t.tolist() == [100_000, 200_000]


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_damage_in_a_zip_of_any_method_is_one_sentence(tmp_path, method):
    with zipfile.ZipFile(tmp_path / "a.zip", "w", method) as archive:
        archive.writestr("events.txt", "4 3\n" + "".join(f"0.{i} {i % 4} {i % 3} 1\n" for i in range(100, 300)))
    whole = (tmp_path / "a.zip").read_bytes()
    for position in range(0, len(whole), len(whole) // 60):
        damaged = bytearray(whole)
        damaged[position] ^= 0xFF
        (tmp_path / "b.zip").write_bytes(damaged)
        with suppress(CrossdraftError):
            assert isinstance(read_events(tmp_path / "b.zip", format="e2vid"), Events)
