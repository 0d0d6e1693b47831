"""The plug-in is no package of this environment: processes that a test starts find it by `PYTHONPATH`."""

import os
from pathlib import Path

import pytest

PLUGIN = Path(__file__).parents[3] / "plugins" / "vllm" / "src"


@pytest.fixture(autouse=True)
def _plugin_for_processes(monkeypatch):
    known = [str(PLUGIN), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(known))
