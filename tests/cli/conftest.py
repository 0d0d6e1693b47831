"""What several tests of commands need."""

from pathlib import Path

import pytest

from tests.support import PairPaths, endless_target


@pytest.fixture
def patient(pair: PairPaths, tmp_path: Path) -> Path:
    """A target with room for an answer of many seconds, and no token that ends it: Ctrl-C always finds it writing."""
    return endless_target(pair, tmp_path / "target")
