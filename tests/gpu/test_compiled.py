"""Compiled passes, on a GPU captured as graphs: the answers are those of the executor `fast`."""

import pytest

from tests.gpu.pairs import answers, check_same, drafter_of, inline, target_of


@pytest.mark.parametrize(("name", "dtype"), [("llava_onevision", "float32"), ("video_llava", "bfloat16")])
@pytest.mark.parametrize("size", [1, 3])
def test_with_compiled_passes(size, name, dtype, record_property):
    """Rows are padded, lengths differ, windows grow, and a second cache brings memory of its own."""
    target = target_of(name, dtype)
    expected = answers(target, None)
    static = target.reading()
    static.compile(size, 4)
    for _ in range(2):
        drafter = drafter_of(name, dtype, words=2)
        found = answers(static, inline(drafter, "before"), adaptive=False, nodes=3, max_batch=size)
        check_same(target, dtype, expected, found, record_property)
