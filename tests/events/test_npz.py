import zipfile

import numpy as np
import pytest

from crossdraft.errors import CrossdraftError
from crossdraft.events import EventLimits, read_events
from crossdraft.events.read import detect_format
from tests.events.helpers import made_up, same


def written(path, form):
    events = made_up(500)
    columns = {name: getattr(events, name) for name in "xytp"}
    if form == "columns":
        np.savez(path, **columns)
    elif form == "compressed":
        np.savez_compressed(path, **columns)
    elif form == "table":
        np.savez(path, event_data=np.stack([columns[name].astype(np.int64) for name in "xytp"], axis=1))
    else:
        table = np.empty(500, [("t", "i8"), ("x", "u2"), ("y", "u2"), ("p", "u1"), ("more", "u1")])
        for name, column in columns.items():
            table[name] = column
        np.savez(path, event_data=table)
    return events


@pytest.mark.parametrize("form", ["columns", "compressed", "table", "structured"])
def test_every_form_of_eventbench(tmp_path, form):
    events = written(tmp_path / "a.npz", form)
    assert detect_format(tmp_path / "a.npz") == "npz"
    assert same(read_events(tmp_path / "a.npz", sensor=(64, 48)), events)
    part = read_events(tmp_path / "a.npz", sensor=(64, 48), start_us=10_000, end_us=20_000)
    assert same(part, events.slice(10_000, 20_000))


def test_what_is_refused(tmp_path):
    path = tmp_path / "a.npz"
    written(path, "columns")
    with pytest.raises(CrossdraftError, match="give the sensor size"):
        read_events(path)
    with pytest.raises(CrossdraftError, match="held_bytes"):
        read_events(path, sensor=(64, 48), limits=EventLimits(held_bytes=100))
    np.savez(path, x=np.zeros(3), y=np.zeros(3))
    with pytest.raises(CrossdraftError, match="lacks the event columns t, p"):
        read_events(path, sensor=(64, 48))
    np.savez(path, event_data=np.zeros((3, 5)))
    with pytest.raises(CrossdraftError, match=r"should be \[N, 4\]"):
        read_events(path, sensor=(64, 48))


def test_a_pickle_is_not_run(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (open, (str(tmp_path / "ran"), "w"))

    np.savez(tmp_path / "a.npz", x=np.array([Bomb()], object), y=np.zeros(1), t=np.zeros(1), p=np.zeros(1))
    with pytest.raises(CrossdraftError, match="pickle may run a program"):
        read_events(tmp_path / "a.npz", sensor=(64, 48))
    assert not (tmp_path / "ran").exists()


def test_a_header_that_lies_about_its_size(tmp_path):
    written(tmp_path / "a.npz", "columns")
    with zipfile.ZipFile(tmp_path / "a.npz") as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    content["x.npy"] = content["x.npy"].replace(b"(500,)", b"(9000000000,)")
    with zipfile.ZipFile(tmp_path / "b.npz", "w") as archive:
        for name, data in content.items():
            archive.writestr(name, data)
    with pytest.raises(CrossdraftError, match="damaged"):
        read_events(tmp_path / "b.npz", sensor=(64, 48))
