"""A capture that several trainings learn from."""

from pathlib import Path

import pytest

from tests.train.capture.both import capture_both


@pytest.fixture(scope="session")
def captured(pair, tmp_path_factory) -> Path:
    """A capture to learn from; beside it stands one of validation scenes."""
    out = tmp_path_factory.mktemp("capture") / "store"
    return capture_both(pair, out, "--clips 2 --prompts 4 --max-new-tokens 12 --workers 0 --device cpu --json")
