"""What several tests of commands need."""

import json
import shutil
from pathlib import Path

import pytest

from tests.support import PairPaths


@pytest.fixture
def patient(pair: PairPaths, tmp_path: Path) -> Path:
    """A target with room for an answer of many seconds, and no token that ends it: Ctrl-C always finds it writing."""
    folder = shutil.copytree(pair.target, tmp_path / "target")
    config = json.loads((folder / "config.json").read_text())
    config["text_config"]["max_position_embeddings"] = 20_000
    (folder / "config.json").write_text(json.dumps(config))
    ends = json.loads((folder / "generation_config.json").read_text())
    ends["eos_token_id"] = config["video_token_index"]
    (folder / "generation_config.json").write_text(json.dumps(ends))
    return folder
