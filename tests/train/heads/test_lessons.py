"""Which answers a step learns from."""

from crossdraft.train.heads.lessons import _order


def test_an_epoch_shows_every_answer_once_in_batches_of_like_length():
    lengths = tuple((7 * i) % 40 for i in range(64))
    batches = _order(0, 0, 4, lengths)
    assert sorted(index for batch in batches for index in batch) == list(range(64))
    spread = [max(lengths[i] for i in batch) - min(lengths[i] for i in batch) for batch in batches]
    assert max(spread) <= 6  # of 40: sixteen batches are sorted together
    assert batches != _order(0, 1, 4, lengths)
    assert batches == _order(0, 0, 4, lengths)


def test_what_does_not_fill_a_batch_waits_for_another_epoch():
    assert all(len(batch) == 4 for batch in _order(0, 0, 4, (1,) * 10))
    assert [len(batch) for batch in _order(0, 0, 4, (1,) * 3)] == [3]  # unless there is nothing else
