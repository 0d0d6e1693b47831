"""The check of the README's table: a table that is right passes, and each number that is not is named."""

import importlib.util
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TABLE = """text

| | cores | same tokens | first provisional, ms | TTFT, ms | E2E, ms | τ | speedup |
|---|---|---|---|---|---|---|---|
| the target alone, our engine | 2 | 32/32 | | 49 | 165 | 1.00 | 1 |
| Hugging Face `generate` | 1 | 32/32 | | 120 | 322 | 1.00 | 0.52 [0.49, 0.55] |
| **`glance`** | 1 + 1 | 32/32 | 22 | 71 | 81 | 17.36 | **1.98 [1.77, 2.21]** |

more
"""


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("readme_numbers_tool", ROOT / "tools" / "readme_numbers.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def method(name, ttft, total, tau, speedup, provisional=None):
    value, low, high = speedup
    return {
        "name": name,
        "identical": {"equal": 32, "total": 32},
        "first_provisional_ms": None if provisional is None else {"median": provisional},
        "ttft_ms": {"median": ttft},
        "total_ms": {"median": total},
        "tau": tau,
        "speedup": {"value": value, "ci95": [low, high]},
    }


REPORT = {
    "methods": [
        method("target-all", 49.2, 164.9, 1.0, (1.0, 1.0, 1.0)),
        method("hf", 119.8, 322.1, 1.0, (0.521, 0.49, 0.549)),
        method("glance", 71.1, 81.4, 17.36, (1.984, 1.77, 2.21), provisional=21.8),
    ]
}


def test_a_table_that_is_right_passes(tool):
    assert tool.differences(TABLE, REPORT) == []


@pytest.mark.parametrize(
    ("right", "wrong", "column"),
    [("1.98 [", "1.99 [", "speedup"), ("2.21]", "2.22]", "speedup"), ("| 71 |", "| 70 |", "TTFT, ms"),
     ("17.36", "17.37", "τ"), ("| 22 |", "| |", "first provisional"), ("| 120 |", "| 121 |", "TTFT, ms"),
     ("1.00 | 1 |", "1.00 | 1.01 |", "speedup")],
)  # fmt: skip
def test_a_number_that_is_wrong_is_named(tool, right, wrong, column):
    assert right in TABLE
    (said,) = tool.differences(TABLE.replace(right, wrong, 1), REPORT)
    assert column in said


def test_a_leaked_token_is_named(tool):
    report = json.loads(json.dumps(REPORT))
    report["methods"][2]["identical"]["equal"] = 31
    (said,) = tool.differences(TABLE, report)
    assert "same tokens" in said


def test_rows_and_tables_that_are_missing_are_named(tool):
    assert "no method" in tool.differences(TABLE, {"methods": REPORT["methods"][:2]})[0]
    assert "No table" in tool.differences("nothing", REPORT)[0]


def test_the_readme_has_the_table_and_it_is_what_was_measured(tool):
    """As `make check` looks at it; without the JSON there is nothing to compare."""
    names = [name for name, _ in tool.rows((ROOT / "README.md").read_text(encoding="utf-8"))]
    assert "glance" in names
    assert tool.main() == 0
