"""Columns of every dtype in every reader of arrays: numbers are read as they are, all else is one sentence."""

from fractions import Fraction

import h5py
import numpy as np
import pytest
import torch

from crossdraft.errors import CrossdraftError
from crossdraft.events import Events, Excerpt, read_events
from crossdraft.events.stream import Newest, Window

COUNT = 20
GOOD = {"x": np.arange(COUNT), "y": np.arange(COUNT), "t": np.arange(COUNT) * 1000, "p": np.arange(COUNT) % 2}
NUMBERS = ["i1", "u1", ">i2", "u4", "i8", ">i8", "u8", "f2", "f4", "f8", ">f8"]
REFUSED = {
    "text": np.arange(COUNT).astype("U8"),
    "bytes": np.arange(COUNT).astype("S8"),
    "dates": np.arange(COUNT).astype("datetime64[us]"),
    "microseconds": np.arange(COUNT).astype("timedelta64[us]"),
    "nanoseconds": np.arange(COUNT).astype("timedelta64[ns]"),
    "complex": np.arange(COUNT) + 1j,
    "void": np.zeros(COUNT, "V4"),
    "records": np.zeros(COUNT, [("a", "i4")]),
    "objects": np.array([Fraction(1, 3)] * COUNT, dtype=object),
    "2-d": np.zeros((COUNT, 1)),
    "0-d": np.int64(3),
    "empty": np.zeros(0),
    "huge": np.full(COUNT, 2**64 - 1, np.uint64),
    "nan": np.full(COUNT, np.nan),
    "infinite": np.full(COUNT, np.inf),
    "negative": np.full(COUNT, -(2**63), np.int64),
    "truth": np.arange(COUNT) > 5,
}


def as_npz(path, columns):
    np.savez(path / "a.npz", **columns)
    return path / "a.npz"


def as_dict(path, columns):
    np.save(path / "a.npy", np.array(columns, dtype=object), allow_pickle=True)
    return path / "a.npy"


def as_records(path, columns):
    kept = {name: np.asarray(column) for name, column in columns.items()}
    if any(column.shape != (COUNT,) for column in kept.values()):
        pytest.skip("records have columns of one length")
    table = np.zeros(COUNT, [(name, column.dtype) for name, column in kept.items()])
    for name, column in kept.items():
        table[name] = column
    np.savez(path / "r.npz", event_data=table)
    return path / "r.npz"


def as_dsec(path, columns):
    with h5py.File(path / "a.h5", "w") as file:
        for name, column in columns.items():
            try:
                file[f"events/{name}"] = column
            except TypeError:
                pytest.skip("HDF5 holds no such column")
        file["t_offset"] = 0
        file["ms_to_idx"] = np.arange(COUNT)
    return path / "a.h5"


WRITERS = [as_npz, as_dict, as_records, as_dsec]


@pytest.mark.parametrize("window", [Window(), Window(start_us=3000, end_us=9000)], ids=["all", "window"])
@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize("name", "xytp")
@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_no_number_is_refused_in_one_sentence(tmp_path, kind, name, write, window):
    if (kind, name) == ("truth", "p"):
        return
    path = write(tmp_path, {**GOOD, name: REFUSED[kind]})
    with pytest.raises(CrossdraftError) as error:
        read_events(str(path), sensor=(640, 480), start_us=window.start_us, end_us=window.end_us)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", "xytp")
@pytest.mark.parametrize("kind", sorted(set(REFUSED) - {"truth"}))
def test_so_are_columns_given_as_arrays(kind, name):
    with pytest.raises(CrossdraftError):
        Events.checked(**{**GOOD, name: REFUSED[kind]}, width=640, height=480)


def circular():
    row = []
    row.append(row)
    return row


NO_COLUMNS = {
    "ragged": [[1], [1, 2]],
    "circular": circular(),
    "none": None,
    "a set": {1},
    "words": ["1"] * COUNT,
    "huge": [10**400] * COUNT,
    "bfloat16": torch.zeros(COUNT, dtype=torch.bfloat16),
    "graph": torch.zeros(COUNT, requires_grad=True),
    "sparse": torch.zeros(COUNT).to_sparse(),
    "nowhere": torch.zeros(COUNT, device="meta"),
    "conjugate": torch.zeros(COUNT, dtype=torch.complex64).conj(),
    "nested": torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)], layout=torch.jagged),
    "masked": np.ma.masked_equal(np.arange(COUNT), 3),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", "xytp")
@pytest.mark.parametrize("kind", NO_COLUMNS)
def test_what_is_no_column_at_all_is_refused_by_name(kind, name):
    with pytest.raises(CrossdraftError, match=rf"^events: .*(column {name}|the columns x, y, t, p)"):
        Events.checked(**{**GOOD, name: NO_COLUMNS[kind]}, width=640, height=480)


NO_NUMBERS = {"text": "7", "list": [7], "complex": 7j, "fraction": 7.5, "nan": np.nan, "infinite": np.inf}


@pytest.mark.parametrize("value", NO_NUMBERS.values(), ids=NO_NUMBERS)
def test_spans_and_sensors_that_are_no_numbers_are_refused(tmp_path, value):
    path = tmp_path / "a.txt"
    path.write_text("640 480\n0.1 1 1 1\n0.2 1 1 1\n")
    for asked in (
        lambda: Events.checked(**GOOD, width=value, height=480),
        lambda: read_events(path, sensor=(640, value)),
        lambda: read_events(path, sensor=value),
        lambda: read_events(path, start_us=value),
        lambda: read_events(path, end_us=value),
        lambda: Newest(us=value),
        lambda: Newest(most=value),
        lambda: Excerpt(path, windows=value),
    ):
        with pytest.raises(CrossdraftError):
            asked()
    if not isinstance(value, float) or value != 7.5:
        with pytest.raises(CrossdraftError, match="the span is"):
            Excerpt.in_seconds(path, value)


@pytest.mark.parametrize("path", [None, 7, b"a.txt", "a" * 5000, "a\0b"], ids=repr)
def test_what_is_no_path_of_a_recording_is_refused(path):
    with pytest.raises(CrossdraftError):
        read_events(path)


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("name", "xytp")
def test_numbers_of_every_dtype_are_read_as_they_are(tmp_path, name, dtype, write):
    column = (np.arange(COUNT) % 2 if name == "p" else np.arange(COUNT)).astype(dtype)
    found = read_events(str(write(tmp_path, {**GOOD, name: column})), sensor=(640, 480))
    assert getattr(found, name).tolist() == column.astype(np.int64).tolist()
