"""Every test in this folder is for a GPU; CROSSDRAFT_TEST_DEVICE=cpu runs them on the CPU, to test the tests.

With CROSSDRAFT_TEST_REPORT=FILE each result is appended to a file, a line of JSON, so that a run that is cut short
leaves what it had.
"""

import json
import os
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker("gpu")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    path = os.environ.get("CROSSDRAFT_TEST_REPORT")
    if path is None or (report.when != "call" and report.outcome == "passed"):
        return
    entry = {
        "test": report.nodeid,
        "outcome": report.outcome,
        "seconds": round(report.duration, 3),
        **dict(report.user_properties),
    }
    if report.failed:
        entry["error"] = report.longreprtext[-2000:]
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(entry) + "\n")
