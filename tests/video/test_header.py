"""Headers: what they claim, and when that alone is enough to refuse."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from crossdraft.errors import CrossdraftError
from crossdraft.video import VideoInfo, VideoLimits, probe, read_frames
from tests.video.helpers import FPS, FRAMES, HEIGHT, WIDTH, encode, picture


def test_an_honest_header(clip: Path) -> None:
    assert probe(clip) == VideoInfo(WIDTH, HEIGHT, FRAMES, FPS, 1.0, "h264")


def test_a_header_that_counts_no_frames_is_estimated(tmp_path: Path) -> None:
    path = encode(tmp_path / "clip.mkv", "matroska", "h264", map(picture, range(FRAMES)))
    assert probe(path).frames == FRAMES


def test_a_bare_stream_claims_no_length(tmp_path: Path) -> None:
    info = probe(encode(tmp_path / "clip.m1v", "mpeg1video", "mpeg1video", map(picture, range(FRAMES))))
    assert (info.frames, info.seconds) == (0, 0.0)


@pytest.mark.parametrize(
    ("limits", "says"),
    [
        (VideoLimits(pixels=WIDTH * HEIGHT - 1), f"frames of {WIDTH}x{HEIGHT}"),
        (VideoLimits(frames=FRAMES - 1), "more than 23 frames"),
        (VideoLimits(seconds=0.9), "longer than 0.9 seconds"),
    ],
)
def test_a_claim_beyond_a_limit_is_refused(clip: Path, limits: VideoLimits, says: str) -> None:
    exact = VideoLimits(pixels=WIDTH * HEIGHT, frames=FRAMES, seconds=1.0)
    assert probe(clip, exact).frames == FRAMES
    for read in (probe, lambda path, limits: read_frames(path, limits=limits)):
        with pytest.raises(CrossdraftError, match=says):
            read(clip, limits)


def test_an_absurd_size_in_a_tiny_file_is_refused_unread(tmp_path: Path) -> None:
    path = encode(tmp_path / "bomb.avi", "avi", "mjpeg", [np.zeros((2400, 4096, 3), np.uint8)])
    assert path.stat().st_size < 2400 * 4096 // 30
    with pytest.raises(CrossdraftError, match="above the limit of 9437184 pixels"):
        probe(path)
    assert probe(path, VideoLimits(pixels=2400 * 4096)).width == 4096


def test_an_absurd_count_is_refused_unread(patched: Callable[[str, int, int], Path]) -> None:
    path = patched("stts", 12, 2**31 - 1)  # samples in the first run of the time table
    with pytest.raises(CrossdraftError, match="more than 100000 frames"):
        probe(path)
