"""The examples in docstrings run."""

import doctest
from importlib import import_module
from pathlib import Path

import pytest

SOURCES = [Path(__file__).parents[1] / name for name in ("src", "lab/src", "plugins/vllm/src")]
MODULES = sorted(
    ".".join(path.relative_to(source).with_suffix("").parts).removesuffix(".__init__")
    for source in SOURCES
    for path in source.rglob("*.py")
    if ">>> " in path.read_text(encoding="utf-8")
)


@pytest.mark.parametrize("name", MODULES)
def test_examples_give_what_they_say(name):
    ran = doctest.testmod(import_module(name))
    assert ran.attempted > 0
    assert ran.failed == 0
