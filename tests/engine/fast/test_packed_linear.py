"""Packed linear layers: the same products, and the same bits for a row whatever the other rows are."""

import copy
import os
import subprocess
import sys
import weakref

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from crossdraft.engine.fast import packed_linear
from crossdraft.engine.fast.packed_linear import CAPACITIES, DTYPES, PrepackedLinear, prepack, usual_rows
from crossdraft.errors import CrossdraftError

ROWS = (1, 2, 3, 8, 16, 17, 33)
# Products of 400 shapes; prints the process's memory after 200 of them, and after all.
MANY_SHAPES = """
import torch
from crossdraft.engine.fast.heap import resident, trim
from crossdraft.engine.fast.packed_linear import prepack

layers = torch.nn.ModuleList(torch.nn.Linear(width, 16) for width in range(64, 464))
prepack(layers)
for number, layer in enumerate(layers, 1):
    with torch.inference_mode():
        layer(torch.ones(3, layer.in_features))
    if number in (200, 400):
        trim()
        print(resident())
"""


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(96, 160)
        self.down = nn.Sequential(nn.GELU(), nn.Linear(160, 96, bias=False))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.down(self.up(rows))


@pytest.fixture
def block() -> Block:
    torch.manual_seed(0)
    return Block().eval()


@torch.inference_mode()
def test_products_are_those_of_the_plain_layers(block):
    plain = copy.deepcopy(block)
    assert prepack(block) == 2
    rows = torch.randn(2, 5, 96)
    torch.testing.assert_close(block(rows), plain(rows), rtol=1e-5, atol=1e-6)
    assert block(rows[:, :0]).shape == (2, 0, 96)


@pytest.mark.parametrize("dtype", DTYPES)
@torch.inference_mode()
def test_a_row_gets_the_same_bits_in_any_company(block, dtype):
    if prepack(block.to(dtype)) == 0:
        pytest.skip("this processor has no packed kernels for the type")
    rows = torch.randn(33, 96).to(dtype)
    together = block(rows)
    for count in ROWS:
        assert torch.equal(block(rows[:count].contiguous()), together[:count])


def test_weights_can_be_read_back(block):
    plain = copy.deepcopy(block).state_dict()
    prepack(block)
    assert isinstance(block.up, PrepackedLinear)
    assert torch.equal(block.up.weight, plain["up.weight"])
    packed = block.state_dict()
    assert packed.keys() == plain.keys()
    assert all(torch.equal(packed[name], plain[name]) for name in plain)


def test_doubles_and_other_kinds_of_layers_stay(block):
    assert prepack(block.double()) == 0
    assert type(block.up) is nn.Linear


def test_it_cannot_be_moved_or_cast_unawares(block):
    prepack(block)
    assert block.float() is block
    with pytest.raises(CrossdraftError, match="packed=False"):
        block.double()


def test_plain_weights_are_given_up_layer_by_layer():
    """A list of all modules would keep them to the end, and the model would need its memory twice."""
    model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)) for _ in range(6)))
    seen: list[weakref.ref[nn.Linear]] = []
    alive: list[int] = []

    def fill(linear: nn.Linear) -> None:
        alive.append(sum(ref() is not None for ref in seen))
        seen.append(weakref.ref(linear))

    assert prepack(model, fill) == 12
    assert max(alive) <= 1, alive


def test_products_never_take_kernels_for_training(block, monkeypatch):
    """Those do not know the packed layout, and oneDNN's plain loops take thousands of times as long."""
    grads, linear = [], packed_linear._linear
    monkeypatch.setattr(packed_linear, "_linear", lambda *args: grads.append(torch.is_grad_enabled()) or linear(*args))
    prepack(block)
    with torch.enable_grad():
        block(torch.ones(3, 96))
    assert grads == [False, False]


@pytest.mark.parametrize("shape", [(), (1, 8), (1, 9), (3, 47), (1, 129), (400,), (1, 0)])
@torch.inference_mode()
def test_numbers_of_rows_are_rounded_up_and_nothing_else_changes(block, shape, monkeypatch):
    """Kernels are made for usual numbers of rows alone; a row's bits are those that it has in any other company."""
    prepack(block)
    rows = torch.randn(*shape, 96)
    found = block(rows)
    monkeypatch.setattr(packed_linear, "usual_rows", lambda count, known, least: count)
    assert torch.equal(found, block(rows))
    assert found.shape == rows.shape


@given(st.integers(0, 5000))
def test_there_are_few_usual_numbers_of_rows(count):
    usual = usual_rows(count)
    assert usual >= count
    assert usual_rows(usual) == usual
    assert usual - count < max(1, min(16, count / 4))


@given(st.lists(st.integers(0, 1000), max_size=300))
def test_numbers_of_rows_that_there_were_serve_those_a_little_smaller(counts):
    known: list[int] = []
    for count in counts:
        usual = usual_rows(count, known)
        assert count <= usual <= max(usual_rows(count), count + count // 8)
        known = sorted({*known, usual})
    assert all(usual == usual_rows(usual) for usual in known)


@torch.inference_mode()
def test_a_product_has_kernels_for_few_numbers_of_rows(block, monkeypatch):
    """Each takes half a megabyte, so lengths that come later use what is there."""
    prepack(block)
    made: set[int] = set()
    product = packed_linear._linear
    monkeypatch.setattr(packed_linear, "_linear", lambda rows, *rest: made.add(len(rows)) or product(rows, *rest))
    rows = torch.randn(512, 96)
    whole = block(rows)
    for count in range(512, 256, -1):
        assert torch.equal(block(rows[:count]), whole[:count])
    assert len(made) <= 8


def test_what_is_kept_of_products_is_bounded(block, monkeypatch):
    for name in CAPACITIES:
        monkeypatch.setenv(name, "")  # so that what `prepack` sets is taken back
        monkeypatch.delenv(name)
    prepack(block)
    assert {name: os.environ[name] for name in CAPACITIES} == {name: str(most) for name, most in CAPACITIES.items()}


def test_what_the_environment_says_is_kept_stays(block, monkeypatch):
    for name in CAPACITIES:
        monkeypatch.setenv(name, "7")
    prepack(block)
    assert [os.environ[name] for name in CAPACITIES] == ["7", "7"]


@pytest.mark.skipif(sys.platform != "linux", reason="read from /proc")
def test_memory_stays_what_it_is_where_products_are_of_many_shapes():
    """In a process of its own: the environment is asked once. They would keep 110 MiB more."""
    environment = {name: value for name, value in os.environ.items() if name not in CAPACITIES}
    found = subprocess.run([sys.executable, "-c", MANY_SHAPES], stdout=-1, text=True, check=True, env=environment)
    half, whole = map(int, found.stdout.split())
    assert whole - half < 16 << 20


@pytest.mark.times_products
@pytest.mark.parametrize(("packed_s", "packs"), [(0.5, True), (1.0, True), (1.09, True), (1.2, False), (3.0, False)])
def test_a_model_stays_plain_where_its_products_are_clearly_faster_so(block, monkeypatch, packed_s, packs):
    monkeypatch.setattr(packed_linear, "product_times", lambda *asked: (packed_s, 1.0))
    before, read = {name: value.clone() for name, value in block.state_dict().items()}, []
    assert prepack(block, read.append) == (2 if packs else 0)
    assert len(read) == (2 if packs else 0)  # what stays plain is read with the rest
    assert all(value.equal(before[name]) for name, value in block.state_dict().items())


@pytest.mark.times_products
def test_the_choice_is_for_all_products_of_a_model_at_its_usual_rows(block, monkeypatch):
    """By hand: at 16 rows 3 + 1 s packed and 1 + 4 s plain; at one row 1 + 3 s packed and 1 + 1 s plain."""
    asked = []

    def times(features, sizes, dtype, ways, threads):
        (first, _), (second, plain) = ways
        assert plain, "rows of a small model are not padded"
        assert threads == torch.get_num_threads()
        asked.append((features, sizes, dtype, first, second))
        return (3.0, 1.0) if (sizes == (160,)) == (second > 1) else (1.0, 4.0) if second > 1 else (1.0, 1.0)

    monkeypatch.setattr(packed_linear, "product_times", times)
    assert prepack(copy.deepcopy(block), rows=16) == 2
    assert prepack(copy.deepcopy(block), rows=1) == 0
    assert {rows for *_, rows in asked} == {1, 16}
    assert all(first == second for *_, first, second in asked)
    assert {(features, sizes, dtype) for features, sizes, dtype, *_ in asked} == {
        (96, (160,), torch.float32),
        (160, (96,), torch.float32),
    }


@pytest.mark.times_products
@pytest.mark.parametrize(("first_s", "second_s", "padded"), [(0.9, 0.5, True), (0.9, 1.5, False), (1.0, 1.0, False)])
def test_a_single_row_is_padded_where_six_take_less_time(block, monkeypatch, first_s, second_s, padded):
    """The sum over all products decides: 1 s and 1 s for a row, `first_s` and `second_s` for six."""
    asked, seen, multiply = [], set(), packed_linear._multiply
    monkeypatch.setattr(packed_linear, "CACHED_BYTES", 0)

    def times(features, sizes, dtype, ways, threads):
        asked.append(ways)
        return (0.1, 1.0) if ways[1][1] else (first_s if sizes == (160,) else second_s, 1.0)

    def counted(rows, packed, bias):
        seen.add(rows.shape[0])
        return multiply(rows, packed, bias)

    monkeypatch.setattr(packed_linear, "product_times", times)
    monkeypatch.setattr(packed_linear, "_multiply", counted)
    assert prepack(block) == 2
    assert set(asked) == {((6, False), (1, False)), ((6 if padded else 1, False), (1, True))}
    with torch.inference_mode():
        assert block(torch.ones(1, 96)).shape == (1, 96)
        assert block(torch.ones(0, 96)).shape == (0, 96)
        assert seen == ({6, 0} if padded else {1, 0})
        seen.clear()
        rows = torch.randn(1, 1, 96)
        (traced,) = packed_linear.traced_products([block.up], rows)
        assert seen == ({6} if padded else {1})
        assert torch.equal(traced, block.up(rows))


def test_ways_to_multiply_are_timed_once_a_process_on_weights_that_no_cache_holds(monkeypatch):
    """Packed products alone are those of a large model; a layer of 12 KiB, and one of more bytes than are wanted."""
    held, hold = [], packed_linear.Product.hold
    monkeypatch.setattr(packed_linear, "COLD_BYTES", 1 << 18)
    monkeypatch.setattr(packed_linear, "CACHED_BYTES", 1 << 20)
    monkeypatch.setattr(
        packed_linear.Product, "hold", lambda self, weights: (held.append(weights.nbytes), hold(self, weights))[1]
    )
    for sizes, plain, nbytes in (
        ((32, 16), True, 22 * (12 << 10)),
        ((32, 16), False, 86 * (12 << 10)),
        ((6000, 1000), False, 7000 * 256),
    ):
        held.clear()
        asked = 64, sizes, torch.float32, ((3, False), (2, plain)), 1
        first = packed_linear.product_times(*asked)
        assert min(first) > 0
        assert sum(held) == nbytes
        assert packed_linear.product_times(*asked) is first
