"""The rules along a tree, alone: against one token after another on each path, in float64.

The Triton kernel computes in float32: on a GPU, or in Triton's interpreter (`make kernels`).
"""

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from crossdraft.engine.recurrent.rules import Left, committed, convolve, read_text, read_tree, tap_table
from tests.engine.recurrent.tiny import kernel

PARENTS = (-1, 0, 0, 1, 1, 2, 3, -1, 7, 4)
HEADS, GROUPS, KEY, VALUE = 4, 2, 5, 3
RULES = {"delta": (1, True), "kimi": (KEY, True), "mamba": (1, False)}  # channels of a decay; the delta rule or not


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class Reader(NamedTuple):
    """A way to read trees, and how near it comes to the rule itself."""

    tree_rule: Any
    dtype: torch.dtype = torch.float64
    tolerance: float = 1e-13
    device: str = "cpu"

    def read(self, given, memory, seen, beta):
        """`read_tree`, of and in float64."""
        answers, left = self.tree_rule(*(self.sent(x) for x in (*given, memory, seen, beta)))
        return answers.cpu().double(), Left(*(x.cpu().double() for x in left))

    def sent(self, x):
        return x if x is None else x.to(self.device, self.dtype if x.is_floating_point() else None)


@pytest.fixture(params=["torch", "triton"])
def reader(request) -> Reader:
    return Reader(read_tree) if request.param == "torch" else Reader(kernel()[0], torch.float32, 1e-5, kernel()[1])


def inputs(rule: str, n: int, key: int = KEY, value: int = VALUE) -> tuple[tuple[Tensor, ...], Tensor, Tensor | None]:
    """q, k, v and decay of two rows, their memory, and beta."""
    channels, delta = RULES[rule]
    channels = key if channels > 1 else 1
    q, k = draw(2, GROUPS, n, key, seed=1), torch.nn.functional.normalize(draw(2, GROUPS, n, key, seed=2), dim=-1)
    decay = -draw(2, HEADS, n, channels, seed=4).abs()
    beta = draw(2, HEADS, n, 1, seed=5).sigmoid() if delta else None
    return (q, k, draw(2, HEADS, n, value, seed=3), decay), draw(2, HEADS, key, value, seed=6), beta


def one_by_one(given, memory, beta, path):
    """The answer at the end of a path, and the memory there, by the rule itself."""
    q, k, v, decay = (x.repeat_interleave(HEADS // x.shape[1], 1) for x in given)
    answer = torch.zeros_like(v[:, :, 0])
    for node in path:
        memory = memory * decay[:, :, node].exp()[..., None]
        known = (memory * k[:, :, node, :, None]).sum(-2)
        new = v[:, :, node] if beta is None else beta[:, :, node] * (v[:, :, node] - known)
        memory = memory + k[:, :, node, :, None] * new[:, :, None]
        answer = (memory * q[:, :, node, :, None]).sum(-2)
    return answer, memory


def paths_of(parents: tuple[int, ...]) -> list[list[int]]:
    paths: list[list[int]] = []
    for node, parent in enumerate(parents):
        paths.append([*(paths[parent] if parent >= 0 else ()), node])
    return paths


def seen_of(paths: list[list[int]]) -> Tensor:
    return torch.tensor([[other in path for other in range(len(paths))] for path in paths]).repeat(2, 1, 1)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    ("key", "value"), [(KEY, VALUE), (72, 40)]
)  # of one block of channels of the kernel, and of more
def test_every_node_gets_what_it_would_get_behind_its_own_path(rule, key, value, reader):
    given, memory, beta = inputs(rule, len(PARENTS), key, value)
    paths = paths_of(PARENTS)
    answers, left = reader.read(given, memory, seen_of(paths), beta)
    for node, path in enumerate(paths):
        answer, after = one_by_one(given, memory, beta, path)
        torch.testing.assert_close(answers[:, :, node], answer, rtol=0, atol=reader.tolerance * key)
        made = committed(memory, left, torch.tensor([node, node]), seen_of(paths))
        torch.testing.assert_close(made, after, rtol=0, atol=reader.tolerance)


@pytest.mark.parametrize("rule", RULES)
def test_rows_commit_paths_of_their_own(rule, reader):
    given, memory, beta = inputs(rule, len(PARENTS))
    paths = paths_of(PARENTS)
    _, left = reader.read(given, memory, seen_of(paths), beta)
    made = committed(memory, left, torch.tensor([9, 0]), seen_of(paths))
    for row, node in enumerate((9, 0)):
        expected = one_by_one(given, memory, beta, paths[node])[1][row]
        torch.testing.assert_close(made[row], expected, rtol=0, atol=reader.tolerance)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("fault", ["chain", "memory", "decay"])
def test_planted_faults_show(rule, fault, reader):
    given, memory, beta = inputs(rule, len(PARENTS))
    paths = paths_of(PARENTS)
    right, left = reader.read(given, memory, seen_of(paths), beta)
    if fault == "chain":  # a node sees its earlier siblings
        wrong, _ = reader.read(given, memory, torch.ones(2, 10, 10, dtype=torch.bool).tril(), beta)
    elif fault == "memory":
        wrong, _ = reader.read(given, torch.zeros_like(memory), seen_of(paths), beta)
    else:  # sums along the chain, not along paths
        shifted = Left(left.keys, left.values, given[3].cumsum(2))
        wrong = committed(memory, shifted, torch.tensor([9, 9]), seen_of(paths))
        right = committed(memory, left, torch.tensor([9, 9]), seen_of(paths))
    assert (wrong - right).abs().max() > 1e-2


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("n", [1, 64, 70, 129])
def test_a_long_text_is_read_in_pieces(rule, n, reader):
    given, memory, beta = inputs(rule, n)
    answers, after = read_text(*(reader.sent(x) for x in (*given, memory, beta)), reader.tree_rule)
    answer, expected = one_by_one(given, memory, beta, list(range(n)))
    torch.testing.assert_close(answers[:, :, -1].cpu().double(), answer, rtol=0, atol=reader.tolerance)
    torch.testing.assert_close(after.cpu().double(), expected, rtol=0, atol=reader.tolerance)


@pytest.mark.parametrize("width", [2, 4, 7])
def test_a_convolution_follows_the_path_of_each_token(width):
    n, weight, bias = len(PARENTS), draw(6, width, seed=2), draw(6, seed=3)
    wide = draw(2, width - 1 + n, 6)
    taps = tap_table(torch.tensor([PARENTS, PARENTS]), width)
    found = convolve(wide, taps, weight, bias)
    for node, path in enumerate(paths_of(PARENTS)):
        line = torch.cat((wide[:, : width - 1], wide[:, [width - 1 + step for step in path]]), 1)[:, -width:]
        torch.testing.assert_close(found[:, node], torch.einsum("btc,ct->bc", line, weight) + bias, rtol=0, atol=1e-14)
    wrong = convolve(wide, tap_table(torch.tensor([range(-1, n - 1)] * 2), width), weight, bias)
    assert (wrong - found).abs().max() > 1e-2


def test_half_precision_is_summed_in_single():
    wide, taps = draw(1, 9, 6).bfloat16(), tap_table(torch.tensor([[-1, 0, 1, 2, 3, 4]]), 4)
    weight = draw(6, 4, seed=2).bfloat16()
    exact = convolve(wide.double(), taps, weight.double())
    assert (convolve(wide, taps, weight).double() - exact).abs().max() <= exact.abs().max() * 2**-8
