"""Videos made on the spot."""

import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from crossdraft.video import write_mp4
from tests.video.helpers import FPS, FRAMES, picture


@pytest.fixture(scope="session")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One second, 24 frames of 96x64."""
    path = tmp_path_factory.mktemp("video") / "clip.mp4"
    write_mp4(path, (picture(index) for index in range(FRAMES)), FPS)
    return path


@pytest.fixture
def patched(clip: Path, tmp_path: Path) -> Callable[[str, int, int], Path]:
    """A copy of `clip` with one 32-bit field of one mp4 box overwritten; the offset counts from the box's name."""

    def patch(box: str, offset: int, value: int) -> Path:
        content = bytearray(clip.read_bytes())
        struct.pack_into(">I", content, content.index(box.encode()) + offset, value)
        path = tmp_path / f"{box}.mp4"
        path.write_bytes(content)
        return path

    return patch
