import gc
from weakref import ref

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from crossdraft.engine.cache import KVCache, KVPrefix
from crossdraft.errors import CrossdraftError
from tests.support import failing

HEADS, SIZE = 2, 3


def states(rows, *marks):
    """Keys that carry a mark per token, [rows, heads, n, size]."""
    line = torch.tensor(marks, dtype=torch.float64).view(1, 1, -1, 1)
    return line.expand(rows, HEADS, -1, SIZE).clone()


def write(cache, rows, *marks):
    cache.open_window(rows, len(marks))
    count = rows.stop - rows.start
    return cache.update(states(count, *marks), -states(count, *marks), 0)[0]


def content(cache, row):
    return cache.layers[0].keys[row, 0, : cache.lengths[row], 0].tolist()


def test_an_accepted_path_is_compacted_behind_the_committed_tokens():
    cache = KVCache(1)
    cache.add_row(32)
    write(cache, slice(0, 1), 1, 2)
    cache.advance(0, 2)
    seen = write(cache, slice(0, 1), 10, 11, 12, 13)
    assert seen[0, 0, :, 0].tolist() == [1, 2, 10, 11, 12, 13]
    cache.keep(0, [0, 3])
    assert content(cache, 0) == [1, 2, 10, 13]
    assert cache.layers[0].values[0, 0, :4, 0].tolist() == [-1, -2, -10, -13]
    write(cache, slice(0, 1), 20)
    cache.keep(0, [0])
    assert content(cache, 0) == [1, 2, 10, 13, 20]


def test_rows_of_different_length_write_behind_their_own_end():
    cache = KVCache(1, max_rows=2)
    for row, marks in ((0, (1, 2, 3)), (1, (4,))):
        cache.add_row(32)
        write(cache, slice(row, row + 1), *marks)
        cache.advance(row, len(marks))
    write(cache, slice(0, 2), 7, 8)
    cache.keep(0, [1])
    cache.keep(1, [0, 1])
    assert content(cache, 0) == [1, 2, 3, 8]
    assert content(cache, 1) == [4, 7, 8]


def test_each_row_of_a_window_gets_the_keys_and_values_of_its_own_heads():
    cache = KVCache(1, max_rows=3)
    for row, marks in enumerate(((1, 2, 3, 4), (5,), (6, 7, 8))):
        cache.add_row(32)
        write(cache, slice(row, row + 1), *marks)
        cache.advance(row, len(marks))
    keys, values = torch.rand(2, 2, HEADS, 2, SIZE, dtype=torch.float64)
    cache.open_window(slice(1, 3), 2)
    seen = cache.update(keys, values, 0)
    for row, start in enumerate((1, 3)):
        assert torch.equal(seen[0][row, :, start : start + 2], keys[row])
        assert torch.equal(seen[1][row, :, start : start + 2], values[row])
    assert [content(cache, row) for row in range(3)] == [[1, 2, 3, 4], [5], [6, 7, 8]]


def test_the_last_row_takes_the_index_of_one_that_leaves():
    cache = KVCache(1, max_rows=3)
    for row in range(3):
        cache.add_row(32)
        write(cache, slice(row, row + 1), *range(row, 2 * row + 1))
        cache.advance(row, row + 1)
        cache.rope_deltas[row] = -row
    assert cache.drop_row(0) == 2
    assert content(cache, 0) == [2, 3, 4]
    assert (cache.lengths, cache.rope_deltas) == ([3, 2], [-2, -1])


def test_a_row_may_begin_with_what_was_copied_out_of_another():
    cache = KVCache(1, max_rows=2)
    cache.add_row(32)
    write(cache, slice(0, 1), 1, 2, 3, 4)
    cache.advance(0, 4)
    span, rest = cache.span(0, 0, 2), cache.span(0, 2, 4)
    write(cache, slice(0, 1), 5)  # nobody has committed it
    cache.keep(0, [])
    cache.drop_row(0)
    cache.add_row(32)
    cache.append(0, KVPrefix(((span, 2), (rest, 1))))
    write(cache, slice(0, 1), 9)
    cache.advance(0, 1)
    assert content(cache, 0) == [1, 2, 3, 9]
    assert cache.layers[0].values[0, 0, :4, 0].tolist() == [-1, -2, -3, -9]
    assert (len(span), span.nbytes, cache.token_bytes) == (2, 2 * 2 * HEADS * SIZE * 8, 2 * HEADS * SIZE * 8)
    fresh = KVCache(1, max_rows=1)
    fresh.add_row(32)
    fresh.append(0, KVPrefix(((span, 2), (rest, 2))).first(3))
    assert content(fresh, 0) == [1, 2, 3]
    assert span.part(1, 2).layers[0][0][0, :, 0].tolist() == [2]


def test_a_copy_holds_the_same_and_goes_its_own_way():
    cache = KVCache(1, max_rows=2)
    for row, marks in ((0, (1, 2, 3)), (1, (4,))):
        cache.add_row(32)
        cache.rope_deltas[row] = row + 5
        write(cache, slice(row, row + 1), *marks)
        cache.advance(row, len(marks))
    write(cache, slice(0, 2), 7, 8)  # not committed yet
    copy = cache.copy()
    copy.keep(0, [1])
    write(copy, slice(0, 1), 9)
    copy.advance(0, 1)
    cache.keep(0, [0, 1])
    assert content(copy, 0) == [1, 2, 3, 8, 9]
    assert content(cache, 0) == [1, 2, 3, 7, 8]
    assert content(copy, 1) == content(cache, 1) == [4]
    assert (copy.lengths, copy.rope_deltas, copy.capacity) == ([5, 1], [5, 6], cache.capacity)
    assert copy.layers[0].keys[0, 0, 5:].count_nonzero() == 0
    assert KVCache(2).copy().rows == 0


def test_a_joining_row_may_enlarge_every_row():
    cache = KVCache(1, max_rows=2, capacity=64)
    cache.add_row(10)
    write(cache, slice(0, 1), 1, 2)
    cache.advance(0, 2)
    cache.add_row(500)
    assert cache.capacity >= 500
    assert content(cache, 0) == [1, 2]


def test_what_does_not_fit_is_refused():
    cache = KVCache(1, capacity=64)
    cache.add_row(64)
    with pytest.raises(CrossdraftError, match="room for the prompt"):
        cache.open_window(slice(0, 1), 65)
    with pytest.raises(CrossdraftError, match="rows are in use"):
        cache.add_row(1)
    with pytest.raises(CrossdraftError, match="cannot be cut"):
        cache.truncate(0, 1)


@given(st.lists(st.tuples(st.integers(1, 6), st.randoms(use_true_random=False)), max_size=8))
def test_any_history_of_kept_paths_equals_a_list(rounds):
    cache, expected, mark = KVCache(1), [], 0
    cache.add_row(64)
    for count, chance in rounds:
        marks = list(range(mark, mark + count))
        mark += count
        path = sorted(chance.sample(range(count), chance.randint(0, count)))
        write(cache, slice(0, 1), *marks)
        cache.keep(0, path)
        expected += [marks[node] for node in path]
    if cache.layers[0].is_initialized:
        assert content(cache, 0) == expected


def filled_cache(tokens, capacity):
    cache = KVCache(2, capacity=capacity)
    cache.add_row(capacity)
    append(cache, tokens)
    return cache


def append(cache, tokens, value=1.0):
    cache.open_window(slice(0, 1), tokens)
    for store in cache._stores:
        store.update(torch.full((1, 2, tokens, 4), value), torch.full((1, 2, tokens, 4), -value))
    cache.advance(0, tokens)


def test_a_copy_takes_memory_for_what_is_used_and_grows_as_far_as_its_source():
    cache = filled_cache(100, 4096)
    copy = cache.copy()
    assert copy.nbytes == cache.copy_bytes
    assert copy.nbytes <= cache.nbytes * (100 + 2 * 64) / 4096
    assert copy.capacity == cache.capacity
    for step in range(40):
        append(copy, 90, float(step))
    assert copy.lengths == [100 + 40 * 90]
    assert torch.equal(copy.first(1, 100)[0], cache.first(1, 100)[0])
    assert [float(copy.first(1, 3700)[0][0, 0, 100 + 90 * step, 0]) for step in (0, 17, 39)] == [0.0, 17.0, 39.0]
    with pytest.raises(CrossdraftError, match="4096"):
        append(copy, 400)


def test_a_copy_holds_what_nobody_has_committed_yet():
    cache = filled_cache(10, 1024)
    cache.open_window(slice(0, 1), 100)
    for store in cache._stores:
        positions = torch.arange(100.0).view(1, 1, 100, 1).expand(1, 2, 100, 4)
        store.update(positions, -positions)
    copy = cache.copy()
    for one in (cache, copy):
        one.keep(0, [3, 70, 99])
    assert copy.first(0, 13)[0][0, 0, 10:, 0].tolist() == [3.0, 70.0, 99.0]


def out_of_memory_once(monkeypatch, after):
    """The cache's memory runs out once, after so many tensors."""
    own, left = torch.Tensor.new_zeros, [after]

    def made(tensor, *shape):
        left[0] -= 1
        if left[0] == -1:
            raise torch.OutOfMemoryError("out of memory")
        return own(tensor, *shape)

    monkeypatch.setattr(torch.Tensor, "new_zeros", made)


@pytest.mark.parametrize("after", [0, 1, 3])
def test_a_row_that_finds_no_memory_costs_no_later_one(monkeypatch, after):
    cache = filled_cache(60, 64)
    out_of_memory_once(monkeypatch, after)
    with pytest.raises(torch.OutOfMemoryError):
        cache.reserve(2000)
    assert (cache.capacity, cache.lengths) == (64, [60])
    append(cache, 4)
    cache.drop_row(0)
    cache.add_row(150)
    append(cache, 150, 2.0)
    assert [len(cache.first(layer, 150)[0][0, 0]) for layer in (0, 1)] == [150, 150]


def test_a_first_pass_that_finds_no_memory_costs_no_later_request(monkeypatch):
    cache = KVCache(2, capacity=64)
    out_of_memory_once(monkeypatch, 2)
    cache.add_row(100_000)
    with pytest.raises(torch.OutOfMemoryError):
        append(cache, 10)
    cache.drop_row(0)
    cache.add_row(100)
    assert cache.capacity == 128
    append(cache, 100)
    assert cache.nbytes == 2 * 2 * 2 * 128 * 4 * 4


def test_each_layer_keeps_its_rows_where_its_keys_are():
    """As under a device map; `meta` stands for the second device."""
    cache = KVCache(num_layers=2, max_rows=2, capacity=8)
    where = ("cpu", "meta")

    def write(rows: slice, tokens: int) -> None:
        cache.open_window(rows, tokens)
        for layer, device in enumerate(where):
            new = torch.randn(rows.stop - rows.start, 2, tokens, 4, device=device)
            keys, values = cache.update(new, new, layer)
            assert keys.device.type == values.device.type == device

    for row, count in enumerate((3, 2)):
        cache.add_row(8)
        write(slice(row, row + 1), count)
        cache.advance(row, count)
    write(slice(0, 2), 3)  # rows of several lengths: written by indexes
    cache.keep(0, [1, 2])  # and compacted by indexes
    span = cache.span(0, 0, 5)
    assert [keys.device.type for keys, _ in span.layers.values()] == list(where)
    cache.drop_row(1)
    row = cache.add_row(200)  # grown
    cache.append(row, KVPrefix(((span, 5),)))
    assert cache.lengths[row] == 5
    assert [layer.keys.device.type for layer in cache._stores] == list(where)
    assert torch.equal(cache._stores[0].keys[row, :, :5], span.layers[0][0])


def test_memory_follows_the_rows_in_use_and_is_given_back():
    """Twice as many rows once all are in use, half as many once three quarters are not for long; what is kept stays."""
    cache, states = KVCache(1, max_rows=6, capacity=64), {}

    def write(row, value):
        cache.open_window(slice(row, row + 1), 3)
        full = torch.full((1, 2, 3, 4), float(value))
        cache.layers[0].update(full, -full)
        cache.advance(row, 3)
        states[row] = value

    def check():
        for row in range(cache.rows):
            keys, values = cache.span(row, 0, 3).layers[0]
            assert (keys == states[row]).all()
            assert (values == -states[row]).all()
        assert cache.token_bytes == 2 * 2 * 4 * 4

    rows = []
    for number in range(6):
        cache.add_row(64)
        write(number, number + 1)
        rows.append(cache.allocated_rows)
        check()
    assert rows == [1, 2, 4, 4, 6, 6]
    while cache.rows > 1:
        states[0] = states[cache.rows - 1]  # the last row moves into the gap
        cache.drop_row(0)
        check()
    for _ in range(5):  # one has left already
        assert cache.allocated_rows == 6
        cache.drop_row(cache.add_row(64))
        check()
    assert cache.allocated_rows == 3
    cache.reserve(1024)
    assert cache.nbytes == 3 * 1024 * cache.token_bytes
    cache.drop_row(0)
    assert (cache.nbytes, cache.allocated_rows, cache.capacity) == (0, 1, 64)
    cache.add_row(64)
    write(0, 9)
    check()


def test_rows_that_others_left_get_no_memory_for_a_longer_row():
    cache = KVCache(1, max_rows=8, capacity=64)
    for _ in range(8):
        row = cache.add_row(64)
        cache.open_window(slice(row, row + 1), 3)
        cache.layers[0].update(*(torch.full((1, 2, 3, 4), float(row + 1)) for _ in range(2)))
        cache.advance(row, 3)
    for row in range(7, 0, -1):
        cache.drop_row(row)
    assert cache.allocated_rows == 8
    cache.add_row(1024)
    assert cache.nbytes == 2 * 1024 * cache.token_bytes
    assert (cache.span(0, 0, 3).layers[0][0] == 1).all()


def test_a_long_row_gives_its_positions_back_while_others_go_on():
    cache = KVCache(1, max_rows=4, capacity=64)
    for capacity in (100, 1024):
        row = cache.add_row(capacity)
        cache.open_window(slice(row, row + 1), 3)
        cache.layers[0].update(*(torch.full((1, 2, 3, 4), float(row + 1)) for _ in range(2)))
        cache.advance(row, 3)
    assert (cache.capacity, cache.nbytes) == (1024, 2 * 1024 * cache.token_bytes)
    cache.drop_row(1)
    assert (cache.capacity, cache.nbytes) == (128, 2 * 128 * cache.token_bytes)
    assert (cache.span(0, 0, 3).layers[0][0] == 1).all()


def test_where_there_is_no_room_to_give_memory_back_it_stays(monkeypatch):
    cache = KVCache(1, max_rows=4, capacity=64)
    for capacity in (64, 1024):
        cache.add_row(capacity)
    monkeypatch.setattr(cache, "_allocate", failing(RuntimeError("not enough memory")))
    cache.drop_row(1)
    assert cache.capacity == 1024


def test_rows_that_are_expected_get_memory_at_once():
    cache = KVCache(1, max_rows=6, capacity=64)
    cache.add_row(64)
    cache.expect(5)
    found = []
    for _ in range(4):
        cache.add_row(64)
        found.append(cache.allocated_rows)
    assert found == [5, 5, 5, 5]


def test_what_one_more_row_takes_is_known_before():
    cache = KVCache(1, max_rows=4, capacity=64)
    assert cache.nbytes_with(64) == 0  # sizes of keys are not known yet
    for rows in (1, 2):
        cache.add_row(64)
        cache.open_window(slice(rows - 1, rows), 1)
        cache.layers[0].update(torch.ones(1, 2, 1, 4), torch.ones(1, 2, 1, 4))
    assert cache.nbytes_with(64) == 4 * 64 * cache.token_bytes
    assert cache.nbytes_with(65) == 4 * 128 * cache.token_bytes
    wanted = cache.nbytes_with(65)
    cache.add_row(65)
    assert cache.nbytes == wanted == cache.nbytes_with(100)


def test_a_cache_is_freed_with_its_last_reference_and_waits_for_no_collection():
    cache = KVCache(1)
    cache.add_row(32)
    write(cache, slice(0, 1), 1, 2)
    keys = ref(cache.layers[0].keys)
    gc.disable()
    try:
        del cache
        assert keys() is None
    finally:
        gc.enable()
