"""Animated WebP and GIF files as clips."""

from contextlib import suppress
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageSequence

from crossdraft.errors import CrossdraftError
from crossdraft.video import VideoLimits, iter_frames, probe, sample_frames
from crossdraft.video.animation import is_animation, read_header
from crossdraft.video.image import image_frames
from tests.video.helpers import HEIGHT, WIDTH, animation, picture

MS = [100] * 9 + [2100, 2000, 60]
BEGINS_S = [*np.arange(10) / 10, 3, 5]


@pytest.mark.parametrize("kind", ["webp", "gif"])
def test_an_animation_is_a_clip_with_its_own_times(tmp_path: Path, kind: str) -> None:
    path = animation(tmp_path / "clip", MS, kind)
    info = probe(path)
    assert (info.width, info.height, info.frames, info.codec) == (WIDTH, HEIGHT, len(MS), kind)
    assert info.seconds == pytest.approx(5.06)
    streamed = list(iter_frames(path))
    np.testing.assert_allclose([time_s for time_s, _ in streamed], BEGINS_S, atol=1e-6)
    with Image.open(path) as image:
        theirs = [np.asarray(frame.convert("RGB")) for frame in ImageSequence.Iterator(image)]
    assert all(np.array_equal(ours, wanted) for (_, ours), wanted in zip(streamed, theirs, strict=True))
    sample = sample_frames(path, 6)
    assert np.array_equal(sample.frames, np.stack([theirs[number] for number in (0, 9, 9, 10, 10, 11)]))
    assert (sample.notes, len(sample.pixels)) == ((), 4)


def test_chunks_of_an_animation_written_by_hand() -> None:
    def chunk(name: bytes, content: bytes) -> bytes:
        return name + len(content).to_bytes(4, "little") + content + bytes(len(content) % 2)

    size, frame = b"\2\0\0\0\x07\0\0\x05\0\0", chunk(b"ANMF", bytes(12) + (70_000).to_bytes(3, "little") + b"\0")
    first = b"RIFF\0\0\0\0WEBP" + chunk(b"VP8X", size) + chunk(b"ICCP", b"odd") + chunk(b"ANIM", bytes(6)) + frame
    assert is_animation(first[:21])
    assert read_header(BytesIO(first + b"ANMF\0"), 2) == (8, 6, [0, 70_000])
    assert read_header(BytesIO(first + frame), 1) == (8, 6, [0, 70_000])  # of the four chunks that one frame may have


def test_webp_without_loss_keeps_every_pixel(tmp_path: Path) -> None:
    frames = sample_frames(animation(tmp_path / "clip.webp", [40, 40, 40], "webp"), 3).frames
    assert np.array_equal(frames, np.stack([picture(index) for index in range(3)]))


@pytest.mark.parametrize("kind", ["webp", "gif"])
def test_a_frame_of_no_length_is_shown_for_a_tenth(tmp_path: Path, kind: str) -> None:
    """As FFmpeg does with a GIF."""
    path = animation(tmp_path / "clip", [0, 20, 0, 50], kind)
    np.testing.assert_allclose([time_s for time_s, _ in iter_frames(path)], [0, 0.1, 0.12, 0.22], atol=1e-6)


def test_a_still_is_no_clip_and_a_gif_no_image(tmp_path: Path) -> None:
    Image.fromarray(picture(3)).save(tmp_path / "still.webp")
    with pytest.raises(CrossdraftError, match=r"is not a video we read; give an mp4, .* GIF or animated WebP file"):
        sample_frames(tmp_path / "still.webp")
    with pytest.raises(CrossdraftError, match="give a PNG, JPEG, WebP or BMP file, a GIF as a video"):
        image_frames(animation(tmp_path / "a.gif", [100, 100], "gif"))
    sample = image_frames(animation(tmp_path / "a.webp", [100, 100], "webp"))
    name = tmp_path / "a.webp"
    assert sample.notes == (f"{name} is animated; only its first frame is shown. Give it as a video to show all.",)


@pytest.mark.parametrize("kind", ["webp", "gif"])
def test_limits_hold_for_animations(tmp_path: Path, kind: str) -> None:
    path = animation(tmp_path / "clip", MS, kind)
    with pytest.raises(CrossdraftError, match=r"pixels; scale it down|no known size|cannot be opened"):
        sample_frames(path, 3, VideoLimits(pixels=HEIGHT * WIDTH - 1))
    with pytest.raises(CrossdraftError, match="more than 11 frames"):
        sample_frames(path, 3, VideoLimits(frames=11))
    with pytest.raises(CrossdraftError, match="longer than 5 seconds"):
        sample_frames(path, 3, VideoLimits(seconds=5))
    with pytest.raises(CrossdraftError, match="pixels in all its frames"):
        sample_frames(path, 3, VideoLimits(decoded=11 * HEIGHT * WIDTH))


@pytest.mark.parametrize("kind", ["webp", "gif"])
def test_cut_anywhere(tmp_path: Path, kind: str) -> None:
    content, path = animation(tmp_path / "clip", [100] * 4, kind, 16, 24).read_bytes(), tmp_path / "cut"
    for length in np.linspace(21, len(content) - 1, 25, dtype=int):
        path.write_bytes(content[:length])
        with suppress(CrossdraftError):  # and nothing else
            assert 1 <= len(sample_frames(path, 4).pixels) <= 4


def test_a_forged_webp_of_chunks_without_end(tmp_path: Path) -> None:
    content = bytearray(animation(tmp_path / "clip.webp", [100] * 2, "webp", 16, 24).read_bytes())
    path = tmp_path / "forged.webp"
    path.write_bytes(bytes(content[:30]) + b"ANMF\x10\0\0\0" * 300)
    with pytest.raises(CrossdraftError):
        sample_frames(path, 2, VideoLimits(frames=100))
    content[34:38] = (0xFFFFFFFF).to_bytes(4, "little")  # the second chunk ends behind the file
    path.write_bytes(content)
    with pytest.raises(CrossdraftError, match="Not one frame"):
        sample_frames(path)
