"""The check of line budgets finds a room that has grown, one that has shrunk, and one that has gone."""

import importlib.util
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[1] / "tools" / "size.py"


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("size_tool", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_room_above_its_budget_is_found(tool, tmp_path):
    (tmp_path / "room" / "inner").mkdir(parents=True)
    (tmp_path / "room" / "a.py").write_text("a = 1\n" * 300)
    (tmp_path / "room" / "inner" / "b.py").write_text("b = 1\n" * 5)
    (tmp_path / "room" / "c.txt").write_text("c\n" * 1000)
    assert tool.lines(tmp_path / "room") == 305
    assert tool.complaints(tmp_path, {"room": 305}) == []
    (grown,) = tool.complaints(tmp_path, {"room": 304})
    assert "has 305 lines, and its budget is 304" in grown
    (shrunk,) = tool.complaints(tmp_path, {"room": 506})
    assert "lower its budget of 506" in shrunk
    assert "is not there" in tool.complaints(tmp_path, {"gone": 1})[0]


def test_every_room_keeps_its_budget(tool):
    assert tool.main() == 0
