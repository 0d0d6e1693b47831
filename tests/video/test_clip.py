"""How many frames of a clip are read, and what may stand for a clip."""

import io

import numpy as np
import pytest
import torch

from crossdraft.errors import CrossdraftError
from crossdraft.video.clip import DEFAULT_FRAMES, FrameSampling, count_frames, read_clip
from crossdraft.video.container import VideoInfo
from crossdraft.video.write import write_mp4


def header(seconds: float, frames: int = 0) -> VideoInfo:
    return VideoInfo(64, 64, frames, 24.0, seconds, "h264")


@pytest.mark.parametrize(
    ("sampling", "seconds", "expected"),
    [
        (FrameSampling(), 60.0, DEFAULT_FRAMES),
        (FrameSampling(num_frames=12), 60.0, 12),
        (FrameSampling(fps=2), 5.0, 10),
        (FrameSampling(fps=2, num_frames=3), 5.0, 3),
        (FrameSampling(fps=0.01), 5.0, 1),
        (FrameSampling(fps=1, min_frames=4), 2.0, 4),
        (FrameSampling(fps=24, max_frames=32), 60.0, 32),
        (FrameSampling(fps=24), 3600.0, 768),
        (FrameSampling(fps=100), 1.0, 24),  # the clip has no more
    ],
)
def test_frames_are_counted(sampling, seconds, expected):
    assert sampling.count("x.mp4", header(seconds, round(seconds * 24))) == expected


def test_frames_are_counted_without_reading_them(tmp_path, monkeypatch):
    """Of a file, and of what is no file; as many as are read."""
    write_mp4(tmp_path / "x.mp4", np.zeros((24, 32, 32, 3), np.uint8), fps=12)
    clips = (str(tmp_path / "x.mp4"), tmp_path / "x.mp4", np.zeros((6, 4, 4, 3), np.uint8))
    samplings = (FrameSampling(5), FrameSampling(fps=3), FrameSampling())
    read = [[len(read_clip(clip, sampling)) for clip in clips] for sampling in samplings]
    assert read == [[5, 5, 6], [6, 6, 6], [8, 8, 6]]
    monkeypatch.setattr("crossdraft.video.read.sample_frames", lambda *_: pytest.fail("decoded"))
    assert [[count_frames(clip, sampling) for clip in clips] for sampling in samplings] == read
    with pytest.raises(CrossdraftError, match="not fetched"):
        count_frames("http://x/y.mp4", FrameSampling(5))


def test_a_rate_needs_a_length():
    with pytest.raises(CrossdraftError, match=r"x\.avi does not say how long it is.*num_frames"):
        FrameSampling(fps=2).count("x.avi", header(0.0))
    assert FrameSampling(num_frames=2).count("x.avi", header(0.0)) == 2


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, FrameSampling(8)),
        ({"num_frames": None, "fps": None, "min_frames": 4}, FrameSampling(8)),
        ({"num_frames": 32}, FrameSampling(32)),
        ({"fps": 2, "min_frames": 4, "max_frames": 768, "size": {}}, FrameSampling(None, 2, 4, 768)),
        # SmolVLM's, as its repositories have it and as HF's video processor saves it
        ({"video_sampling": {"fps": 1, "max_frames": 64, "video_size": {}}}, FrameSampling(None, 1, max_frames=64)),
        ({"fps": 1, "num_frames": 64, "max_image_size": {}}, FrameSampling(None, 1, max_frames=64)),
        # GLM's, as HF's video processor saves it
        (
            {"fps": 2, "num_frames": 16, "max_duration": 300, "max_image_size": {}},
            FrameSampling(None, 2, max_frames=600),
        ),
    ],
)
def test_the_checkpoint_may_say(settings, expected):
    assert FrameSampling.from_settings(settings) == expected


def test_an_option_goes_before_the_checkpoint():
    own = FrameSampling(32)
    assert own.instead(None, None) is own
    assert own.instead(4, None) == FrameSampling(4)
    assert own.instead(None, 1.5) == FrameSampling(fps=1.5)


def test_a_file_is_sampled_and_an_array_is_not(tmp_path):
    moving = tmp_path / "clip.mp4"
    write_mp4(moving, [np.full((64, 64, 3), 10 * i, np.uint8) for i in range(24)], fps=24)
    for sampling, count in ((FrameSampling(5), 5), (FrameSampling(fps=6), 6)):
        sample = read_clip(moving, sampling)
        assert len(sample.frames) == len(sample.times_s) == count
    array = np.zeros((11, 4, 4, 3), np.uint8)
    for given in (array, torch.from_numpy(array), list(array)):
        sample = read_clip(given, FrameSampling(5))
        assert (sample.frames.dtype, len(sample.frames)) == (torch.uint8, 11)
        assert sample.times_s.tolist() == list(range(11))


@pytest.mark.parametrize(
    ("video", "words"),
    [
        (None, "no video"),
        (b"\0\0\0\x18ftyp", "is a bytes; write it to a file and give the path"),
        (io.BytesIO(b"x"), "is a BytesIO; write it to a file"),
        ("https://example.com/x.mp4", r"download https://example\.com/x\.mp4 and give the file's path"),
        (5, "is an int; give the path"),
        (object(), "is an object; give the path"),
        (np.zeros((4, 4, 3), np.uint8), r"is an ndarray of uint8 \[4, 4, 3\]"),
    ],
)
def test_what_is_no_clip_is_one_sentence(video, words):
    with pytest.raises(CrossdraftError, match=words):
        read_clip(video, FrameSampling())
