"""Writing mp4: what comes back, what is refused, what is left after."""

import subprocess
import sys
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch

from crossdraft.errors import CrossdraftError
from crossdraft.video import iter_frames, probe, write_mp4
from tests.video.helpers import FPS, FRAMES, HEIGHT, WIDTH, picture


def test_what_is_written_comes_back(clip: Path) -> None:
    info = probe(clip)
    assert (info.width, info.height, info.frames, info.codec) == (WIDTH, HEIGHT, FRAMES, "h264")
    assert (info.fps, info.seconds) == (FPS, pytest.approx(1.0))
    for index, (time_s, frame) in enumerate(iter_frames(clip)):
        assert time_s == pytest.approx(index / FPS)
        assert np.abs(frame.astype(int) - picture(index)).mean() < 3


def test_the_same_frames_give_the_same_bytes(tmp_path: Path) -> None:
    """Whatever lies in memory, and however many cores there are: x264 notes its settings in the stream."""
    frames = np.random.default_rng(0).integers(0, 256, (8, 28, 28, 3), np.uint8).repeat(8, 1).repeat(8, 2)
    found, ballast = set(), []
    for size in (1, 1 << 12, 1 << 16, 1 << 20):
        ballast.append(np.full(size, 255, np.uint8))
        write_mp4(tmp_path / "clip.mp4", frames, 24)
        found.add((tmp_path / "clip.mp4").read_bytes())
    assert len(found) == 1
    content = found.pop()
    assert b" threads=1 " in content
    assert b" mbtree=0 " in content


def test_a_fractional_rate_is_kept(tmp_path: Path) -> None:
    write_mp4(tmp_path / "ntsc.mp4", [picture(0)] * 4, Fraction(30000, 1001))
    assert probe(tmp_path / "ntsc.mp4").fps == pytest.approx(30000 / 1001)


@pytest.mark.parametrize("fps", [0.001, 1000])
def test_the_slowest_and_the_fastest_rate(tmp_path: Path, fps: float) -> None:
    write_mp4(tmp_path / "clip.mp4", [picture(0), picture(1)], fps)
    assert [time_s for time_s, _ in iter_frames(tmp_path / "clip.mp4")] == pytest.approx([0, 1 / fps])


def test_a_higher_crf_makes_a_smaller_file(tmp_path: Path) -> None:
    for crf in (10, 40):
        write_mp4(tmp_path / f"{crf}.mp4", [picture(index) for index in range(6)], 24, crf=crf)
    assert (tmp_path / "40.mp4").stat().st_size < (tmp_path / "10.mp4").stat().st_size


def test_torch_frames_are_taken(tmp_path: Path) -> None:
    write_mp4(tmp_path / "t.mp4", torch.full((3, 16, 16, 3), 128, dtype=torch.uint8), 8)
    assert probe(tmp_path / "t.mp4").frames == 3


def test_the_index_comes_first_so_that_a_partial_download_plays(clip: Path) -> None:
    content = clip.read_bytes()
    assert content.index(b"moov") < content.index(b"mdat")


@pytest.mark.parametrize(
    ("frames", "fps", "crf", "says"),
    [
        ([], 24, 18, "no frames"),
        ([picture(0, 63, 96)], 24, 18, "even sides"),
        ([picture(0, 64, 95)], 24, 18, "even sides"),
        ([np.zeros((0, 2, 3), np.uint8)], 24, 18, "even sides"),
        ([picture(0), picture(1, 32, 96)], 24, 18, "Frame 1 is 96x32, but frame 0 is 96x64"),
        ([picture(0).astype(np.float32)], 24, 18, "uint8"),
        ([picture(0)[..., 0]], 24, 18, "uint8"),
        ([picture(0)], 0, 18, "fps"),
        ([picture(0)], -24, 18, "fps"),
        ([picture(0)], 1e-6, 18, "fps is 1e-06; give a rate of 0.001 to 1000"),
        ([picture(0)], 1e9, 18, "fps"),
        ([picture(0)], float("nan"), 18, "fps"),
        ([picture(0)], float("inf"), 18, "fps"),
        ([picture(0)], 24, 52, "crf"),
    ],
)
def test_bad_frames_are_refused_and_nothing_is_left(
    tmp_path: Path, frames: list[np.ndarray], fps: float, crf: int, says: str
) -> None:
    with pytest.raises(CrossdraftError, match=says):
        write_mp4(tmp_path / "out.mp4", frames, fps, crf=crf)
    assert list(tmp_path.iterdir()) == []


def test_only_mp4_names(tmp_path: Path) -> None:
    with pytest.raises(CrossdraftError, match=r"ends in \.mp4"):
        write_mp4(tmp_path / "out.avi", [picture(0)], 24)


def test_a_failure_midway_keeps_the_old_file(tmp_path: Path) -> None:
    def frames() -> Iterator[np.ndarray]:
        yield picture(0)
        raise KeyboardInterrupt

    old = tmp_path / "out.mp4"
    old.write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt):
        write_mp4(old, frames(), 24)
    assert [path.name for path in tmp_path.iterdir()] == ["out.mp4"]
    assert old.read_bytes() == b"old"


def test_a_full_disk_is_one_sentence(tmp_path: Path) -> None:
    program = f"""
import resource, signal
import numpy as np
from crossdraft.errors import CrossdraftError
from crossdraft.video import write_mp4
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))
noise = np.random.default_rng(0).integers(0, 256, (64, 96, 3), dtype=np.uint8)
try:
    write_mp4({str(tmp_path / "out.mp4")!r}, [noise] * 8, 24)
except CrossdraftError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert f"Cannot write {tmp_path / 'out.mp4'}: File too large; is the disk full?" in done.stdout
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []
