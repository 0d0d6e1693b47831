"""Which answers a step learns from."""

from pathlib import Path

import pytest

from crossdraft.errors import CrossdraftError
from crossdraft_lab.train.capture.store import CaptureStore
from crossdraft_lab.train.core.dist import MicroBatch
from crossdraft_lab.train.heads.batches import StoredBatches, _order
from tests.train.capture.test_store import answers, write

ALIKE = (0,) * 64  # clips of one size


def test_an_epoch_shows_every_answer_once_in_batches_of_like_length():
    lengths = tuple((7 * i) % 40 for i in range(64))
    batches = _order(0, 0, 4, lengths, ALIKE)
    assert sorted(index for batch in batches for index in batch) == list(range(64))
    spread = [max(lengths[i] for i in batch) - min(lengths[i] for i in batch) for batch in batches]
    assert max(spread) <= 6  # of 40: sixteen batches are sorted together
    assert batches != _order(0, 1, 4, lengths, ALIKE)
    assert batches == _order(0, 0, 4, lengths, ALIKE)


def test_what_does_not_fill_a_batch_waits_for_another_epoch():
    assert all(len(batch) == 4 for batch in _order(0, 0, 4, (1,) * 10, (0,) * 10))
    few = _order(0, 0, 4, (1,) * 3, (0,) * 3)  # unless there is nothing else
    assert [len(batch) for batch in few] == [3]


def test_fewer_answers_than_passes_are_refused(tmp_path: Path):
    write(tmp_path, answers(3, (2, 3), (2, 2), (4, 3)))
    stored = StoredBatches(CaptureStore.open(tmp_path), (1,))
    assert [len(stored.batch(0, 8, MicroBatch(index, 2)).tokens) for index in range(2)] == [1, 2]
    with pytest.raises(CrossdraftError, match=r"has 3 of optim\.clips=8 answers, .* among 4 passes; lower"):
        stored.batch(0, 8, MicroBatch(0, 4))


def test_a_batch_is_about_clips_of_one_size():
    lengths, sizes = tuple((7 * i) % 40 for i in range(64)), tuple(i % 3 for i in range(64))
    batches = _order(0, 0, 4, lengths, sizes)
    assert all(len({sizes[index] for index in batch}) == 1 and len(batch) == 4 for batch in batches)
    assert len({index for batch in batches for index in batch}) == 4 * len(batches) == 60  # of 22, 21 and 21
    assert len(batches) == len(_order(0, 1, 4, lengths, sizes))


def test_visual_batches_of_a_list_hold_clips_of_one_size(tmp_path: Path):
    write(tmp_path, [one for size in (3, 4, 3, 4) for one in answers(size, (2, 3), (2, 2), (4, 3))])
    stored = StoredBatches(CaptureStore.open(tmp_path), (1,), (0,))
    shapes = [stored.batch(step, 2, MicroBatch()).visual[0].shape[:2] for step in range(6)]
    assert sorted(shapes) == [(2, 3)] * 3 + [(2, 4)] * 3
    assert sorted(index for step in range(6) for index in stored.indices(step, 2)) == list(range(12))
