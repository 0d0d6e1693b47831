"""Which value is of which kind."""

from typing import Literal

import pytest

from crossdraft.heads.networks.settings import fits, told

RIGHT = [
    (3, int), (3, float), (0.5, float), (True, bool), ("a", Literal["a", "b"]), ("x", str),
    ((1, 2), tuple[int, ...]), ((), tuple[float, ...]), ((1, 0.5), tuple[float, ...]), (None, int | None),
    (7, int | None),
]  # fmt: skip
WRONG = [
    ("3", int), (3.0, int), (True, int), (False, float), ("1e-6", float), (1, bool), ("c", Literal["a", "b"]),
    (3, tuple[int, ...]), ((1, "2"), tuple[int, ...]), ("12", tuple[int, ...]), ([1], tuple[int, ...]), (None, int),
    ("7", int | None), ({}, int),
]  # fmt: skip


@pytest.mark.parametrize(("value", "kind"), RIGHT)
def test_what_fits(value, kind):
    assert fits(value, kind)


@pytest.mark.parametrize(("value", "kind"), WRONG)
def test_what_does_not(value, kind):
    assert not fits(value, kind)


def test_kinds_in_words():
    assert told(tuple[int, ...] | None) == "a list, each a whole number, or null"
    assert told(Literal["uniform", "random"]) == "one of uniform, random"
