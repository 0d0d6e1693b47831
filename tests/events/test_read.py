import subprocess
import sys

import h5py
import numpy as np
import pytest

from crossdraft.errors import CrossdraftError
from crossdraft.events import Excerpt, concatenate, iter_events, read_events, write_events
from crossdraft.events.read import READERS, detect_format
from tests.events.helpers import made_up, same


@pytest.mark.parametrize(
    ("suffix", "kind"), [(".h5", "dsec"), (".hdf5", "dsec"), (".npy", "eventgpt"), (".txt", "e2vid"), (".zip", "e2vid")]
)
def test_formats_are_found_out_and_read_back(tmp_path, suffix, kind):
    events = made_up(400, 640, 480)
    path = tmp_path / f"a{suffix}"
    write_events(path, events)
    assert detect_format(path) == kind
    assert same(read_events(path), events)
    assert same(read_events(str(path), format=kind), events)
    assert same(concatenate(list(iter_events(path, start_us=9_000, end_us=20_000))), events.slice(9_000, 20_000))


def test_content_counts_more_than_the_suffix(tmp_path):
    events = made_up(40, 640, 480)
    write_events(tmp_path / "a.h5", events)
    (tmp_path / "a.h5").rename(tmp_path / "a.bin")
    assert same(read_events(tmp_path / "a.bin"), events)


def test_first_bytes_of_camera_formats(tmp_path):
    for head, suffix, kind in (
        (b"#!AER-DAT2.0\r\n", ".aedat", "aedat2"),
        (b"#!AER-DAT4.0\r\n", ".aedat", "aedat4"),
        (b"% evt 3.0\n", ".raw", "evt"),
        (b"% Version 2\n", ".dat", "dat"),
    ):
        path = tmp_path / f"a{suffix}"
        path.write_bytes(head)
        assert detect_format(path) == kind


@pytest.mark.parametrize("suffix", [".h5", ".npy", ".zip", ".aedat4"])
def test_content_of_another_kind_is_refused(tmp_path, suffix):
    (tmp_path / f"a{suffix}").write_bytes(b"something else altogether")
    with pytest.raises(CrossdraftError, match="is not a whole"):
        read_events(tmp_path / f"a{suffix}")


def test_missing_empty_folder_and_unknown(tmp_path):
    (tmp_path / "empty.h5").touch()
    (tmp_path / "a.xyz").write_bytes(b"hello")
    for name, words in (
        ("absent.h5", "There is no event recording"),
        ("empty.h5", "is empty"),
        ("", "is a folder"),
        ("a.xyz", "no format that we know"),
    ):
        with pytest.raises(CrossdraftError, match=words) as caught:
            read_events(tmp_path / name)
        assert "\n" not in str(caught.value)
    with pytest.raises(CrossdraftError, match="no event format 'avi'"):
        read_events(tmp_path / "a.xyz", format="avi")
    with pytest.raises(CrossdraftError, match="before it starts"):
        read_events(tmp_path / "a.xyz", format="dat", start_us=5, end_us=4)


@pytest.mark.parametrize("kind", READERS)
def test_every_reader_refuses_bytes_that_mean_nothing(tmp_path, kind):
    if kind == "aedat4":
        pytest.importorskip("faery")
    path = tmp_path / "a.bin"
    path.write_bytes(bytes(range(1, 256)) * 40)
    with pytest.raises(CrossdraftError) as caught:
        read_events(path, format=kind)
    assert "\n" not in str(caught.value)


def test_disorder_between_chunks_is_seen(tmp_path, monkeypatch):
    monkeypatch.setattr("crossdraft.events.random_access.FIRST_EVENTS", 2)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name, values in (("x", [0] * 4), ("y", [0] * 4), ("t", [5, 6, 3, 4]), ("p", [0] * 4)):
            file[f"events/{name}"] = np.array(values)
    with pytest.raises(CrossdraftError, match="3 µs earlier"):
        read_events(tmp_path / "a.h5")


def test_writing_by_suffix(tmp_path):
    with pytest.raises(CrossdraftError, match="suffixes"):
        write_events(tmp_path / "a.avi", made_up(5))
    write_events(tmp_path / "b.npy", iter([made_up(5), made_up(5, start_us=100_000)]))
    assert len(read_events(tmp_path / "b.npy")) == 10
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.npy"]


def test_numpy_alone_is_enough_to_import_the_room():
    code = "import sys, crossdraft.events; print(sorted({'h5py', 'cv2', 'av', 'torch', 'faery'} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_an_excerpt_keeps_how_its_recording_is_read(tmp_path):
    events = made_up(400)
    write_events(tmp_path / "a.txt", events)
    (tmp_path / "a.rec").write_text((tmp_path / "a.txt").read_text().split("\n", 1)[1])
    excerpt = Excerpt(tmp_path / "a.rec", 9_000, 20_000, "e2vid", (64, 48))
    assert same(excerpt.read(), events.slice(9_000, 20_000))
    with pytest.raises(CrossdraftError, match="no format that we know"):
        Excerpt(tmp_path / "a.rec").read()
