import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossdraft.errors import CrossdraftError
from crossdraft.events import binary
from crossdraft.events.binary import WrappingClock, word_pairs
from crossdraft.events.limits import DEFAULT_LIMITS


def test_words_of_either_order_come_in_chunks(tmp_path, monkeypatch):
    monkeypatch.setattr(binary, "CHUNK_EVENTS", 2)
    (tmp_path / "a").write_bytes(b"head" + bytes(range(40)))
    with (tmp_path / "a").open("rb") as file:
        file.seek(4)
        chunks = [chunk.tolist() for chunk in word_pairs(file, ">", tmp_path, DEFAULT_LIMITS)]
        assert [len(chunk) for chunk in chunks] == [2, 2, 1]
        assert chunks[0][0] == [0x00010203, 0x04050607]
        file.seek(4)
        assert next(word_pairs(file, "<", tmp_path, DEFAULT_LIMITS))[0].tolist() == [0x03020100, 0x07060504]


def test_an_empty_rest_is_one_empty_chunk_and_a_cut_one_is_refused(tmp_path):
    (tmp_path / "a").write_bytes(bytes(9))
    with (tmp_path / "a").open("rb") as file:
        with pytest.raises(CrossdraftError, match="ends within an event"):
            next(word_pairs(file, "<", tmp_path, DEFAULT_LIMITS))
        file.seek(9)
        assert [chunk.shape for chunk in word_pairs(file, "<", tmp_path, DEFAULT_LIMITS)] == [(0, 2)]


@given(st.lists(st.integers(0, (1 << 31) - 1), max_size=30), st.integers(0, (1 << 32) - 1), st.integers(1, 5))
def test_a_wrap_is_undone_wherever_a_chunk_ends(steps, start, size):
    true = start + np.cumsum([0, *steps], dtype=np.int64)
    raw = (true % (1 << 32)).astype(np.uint32)
    clock = WrappingClock("x")
    found = [t for i in range(0, len(raw), size) for t in clock(raw[i : i + size]).tolist()]
    assert found == true.tolist()
    assert clock(raw[:0]).tolist() == []


def test_disorder_between_chunks_is_seen():
    clock = WrappingClock("x")
    clock(np.array([500], np.uint32))
    with pytest.raises(CrossdraftError, match="100 µs earlier"):
        clock(np.array([400], np.uint32))
