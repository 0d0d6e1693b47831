"""Opening files: what is let in, and that nothing else is touched."""

import socket
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from crossdraft.errors import CrossdraftError
from crossdraft.video import VideoInfo, VideoLimits, iter_frames, probe
from tests.video.helpers import FPS, FRAMES, HEIGHT, WIDTH, encode, numbers, picture, read_frames, tone


@pytest.mark.parametrize(
    ("container", "codec", "named"),
    [
        ("mp4", "h264", "h264"),
        ("mov", "mpeg4", "mpeg4"),
        ("matroska", "h264", "h264"),
        ("webm", "libvpx", "vp8"),
        ("webm", "libvpx-vp9", "vp9"),
        ("avi", "mpeg4", "mpeg4"),
        ("avi", "mjpeg", "mjpeg"),
        ("mpeg", "mpeg2video", "mpeg2video"),
        ("mpeg1video", "mpeg1video", "mpeg1video"),
    ],
)
def test_containers_and_codecs_that_are_read(tmp_path: Path, container: str, codec: str, named: str) -> None:
    # The name says nothing: the first bytes decide.
    path = encode(tmp_path / "clip.bin", container, codec, map(picture, range(FRAMES)))
    assert probe(path).codec == named
    frames, _ = read_frames(path, 5)
    assert numbers(frames) == [0, 5, 11, 17, 23]


def test_a_codec_off_the_list_is_named(tmp_path: Path) -> None:
    path = encode(tmp_path / "old.avi", "avi", "msmpeg4", map(picture, range(3)))
    with pytest.raises(CrossdraftError, match="uses the codec msmpeg4v3, which is not read") as caught:
        probe(path)
    command = f"make a copy: ffmpeg -i {path} -c:v libx264 -pix_fmt yuv420p old-h264.mp4"
    assert str(caught.value).endswith(command)


def test_sound_without_pictures(tmp_path: Path) -> None:
    with pytest.raises(CrossdraftError, match="no video stream"):
        probe(tone(tmp_path / "tone.mp4"))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b"\0", "is not a video"),
        (b"#EXTM3U\nfile:///etc/passwd\n", "is not a video"),
        (b"RIFF\0\0\0\0WAVEfmt ", "is not a video"),
        (b"\0\0\0\x18ftypmp42" + b"\0" * 40, "cannot be opened as a video"),
        (b"\x1a\x45\xdf\xa3" + b"\xff" * 40, "cannot be opened as a video|no video stream"),
    ],
)
def test_what_is_no_video(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "clip.mp4"
    path.write_bytes(content)
    for read in (probe, read_frames, lambda path: list(iter_frames(path))):
        with pytest.raises(CrossdraftError, match=says):
            read(path)


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(CrossdraftError, match="no video file at"):
        probe(tmp_path / "none.mp4")
    with pytest.raises(CrossdraftError, match="is a folder"):
        probe(tmp_path)
    with pytest.raises(CrossdraftError, match="no video file at"):
        probe("/dev/zero")


def test_a_url_is_a_missing_file_and_nobody_is_called() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        with pytest.raises(CrossdraftError, match="no video file at"):
            read_frames(f"http://127.0.0.1:{server.getsockname()[1]}/clip.mp4")
        with pytest.raises(TimeoutError):
            server.accept()


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
    with pytest.raises(CrossdraftError, match="above the limit of 9,437,184 pixels"):
        probe(path)
    assert probe(path, VideoLimits(pixels=2400 * 4096)).width == 4096


def test_an_absurd_count_is_refused_unread(patched: Callable[[str, int, int], Path]) -> None:
    path = patched("stts", 12, 2**31 - 1)  # samples in the first run of the time table
    with pytest.raises(CrossdraftError, match="more than 100000 frames"):
        probe(path)
