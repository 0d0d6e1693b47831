"""Turned videos and pixels that are not square, beside libavfilter, whose filters players use."""

import math
import struct
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import av
import numpy as np
import pytest
from av.filter import Graph
from av.video.stream import VideoStream

from crossdraft.errors import CrossdraftError
from crossdraft.video import VideoLimits, iter_frames, sample_frames
from crossdraft.video.upright import _display_matrix
from tests.video.helpers import HEIGHT, WIDTH, encode, picture

MIRRORED = [(degrees, mirrored) for degrees in (0, 90, 180, -90) for mirrored in (False, True)]


def written(path: Path, degrees: int = 0, aspect: Fraction | None = None, *, mirrored: bool = False) -> Path:
    """A clip of three frames whose header asks for a turn (anticlockwise), or for pixels that are not square."""
    with path.open("w+b") as file, av.open(file, "w", format="mp4") as out:
        stream = cast("VideoStream", out.add_stream("h264", rate=10))
        stream.height, stream.width, stream.pix_fmt = HEIGHT, WIDTH, "yuv420p"
        stream.set_display_rotation(degrees, hflip=mirrored)
        if aspect is not None:
            stream.codec_context.sample_aspect_ratio = aspect
        for index in range(3):
            out.mux(stream.encode(av.VideoFrame.from_ndarray(lopsided(index), format="rgb24")))
        out.mux(stream.encode(None))
    return path


def lopsided(index: int) -> np.ndarray:
    """A picture that is like none of its mirror images."""
    frame = picture(index)
    frame[: HEIGHT // 3, : WIDTH // 4] = (250, 0, 0)
    frame[-HEIGHT // 4 :, : WIDTH // 2] = (0, 0, 250)
    return frame


def as_player(path: Path, *more: tuple[str, str]) -> np.ndarray:
    """The first frame by the filters that ffplay and ffmpeg insert for a display matrix, and by more of them."""
    with path.open("rb") as file, av.open(file) as container:
        stream, frame = container.streams.video[0], next(container.decode(video=0))
        side = cast("Any", frame.side_data).get("DISPLAYMATRIX")
        matrix = struct.unpack("=9i", side) if side is not None else (1, 0, 0, 0, 1, 0, 0, 0, 1)
        theta = -math.degrees(-math.atan2(matrix[1], matrix[0])) % 360
        filters: list[tuple[str, str]] = []
        if abs(theta - 90) < 1:
            filters = [("transpose", "cclock_flip" if matrix[3] > 0 else "clock")]
        elif abs(theta - 180) < 1:
            filters = [("hflip", "")] * (matrix[0] < 0) + [("vflip", "")] * (matrix[4] < 0)
        elif abs(theta - 270) < 1:
            filters = [("transpose", "clock_flip" if matrix[3] < 0 else "cclock")]
        elif matrix[4] < 0:
            filters = [("vflip", "")]
        graph = Graph()
        last = graph.add_buffer(template=stream)
        aspect = str(stream.sample_aspect_ratio or 1)
        for name, given in (("setsar", aspect), *filters, *more, ("format", "rgb24"), ("buffersink", "")):
            following = graph.add(name, given or None)
            last.link_to(following)
            last = following
        graph.configure()
        graph.push(frame)
        return cast("av.VideoFrame", graph.pull()).to_ndarray()


@pytest.mark.parametrize(("degrees", "mirrored"), MIRRORED)
def test_a_turned_clip_is_shown_as_players_show_it(tmp_path: Path, degrees: int, *, mirrored: bool) -> None:
    path = written(tmp_path / "clip.mp4", degrees, mirrored=mirrored)
    sample, wanted = sample_frames(path, 3), as_player(path)
    assert np.abs(sample.frames[0].numpy().astype(int) - wanted).max() <= 2  # colour is converted after the turn
    assert wanted.shape[:2] == ((WIDTH, HEIGHT) if degrees % 180 else (HEIGHT, WIDTH))
    for ours, (_, streamed) in zip(sample.frames.numpy(), iter_frames(path), strict=True):
        assert np.array_equal(ours, streamed)
        assert streamed.flags.c_contiguous
    said = {0: "", 90: "turned by 90° anticlockwise", 180: "turned by 180°", -90: "turned by 90° clockwise"}[degrees]
    said = "mirrored" if mirrored else said
    note = f"{path} is shown {said}, as its header asks; an event recording of the same view must be shown likewise."
    assert sample.notes == ((note,) if said else ())


@pytest.mark.parametrize("aspect", [Fraction(2), Fraction(16, 15), Fraction(1, 2), Fraction(8, 9)])
@pytest.mark.parametrize("degrees", [0, 90])
def test_pixels_become_square_by_the_width(tmp_path: Path, aspect: Fraction, degrees: int) -> None:
    """As ffplay's window and FFmpeg's `scale=iw*sar:ih`; the filter for a turn also turns the pixels."""
    path = written(tmp_path / "clip.mp4", degrees, aspect)
    sample, wanted = sample_frames(path, 2), as_player(path, ("scale", "w=trunc(iw*sar+0.5):h=ih:flags=bicubic"))
    assert sample.frames.shape[1:] == wanted.shape
    assert np.abs(sample.frames[0].numpy().astype(int) - wanted).mean() < 1
    height, width = wanted.shape[:2]
    assert f"at {width}x{height}, in square pixels" in sample.notes[0]


def test_wide_pixels_are_within_the_limits(tmp_path: Path) -> None:
    path = written(tmp_path / "clip.mp4", 0, Fraction(2))
    for read in (sample_frames, lambda path, _, limits: list(iter_frames(path, limits))):
        with pytest.raises(CrossdraftError, match=r"has frames of 192x64, above the limit of 12,287 pixels"):
            read(path, 3, VideoLimits(pixels=2 * WIDTH * HEIGHT - 1))
    with pytest.raises(CrossdraftError, match=r"3 frames of 192x64 .* take at most 1"):
        sample_frames(path, 3, VideoLimits(held=3 * WIDTH * HEIGHT))


def test_a_recording_without_a_matrix_is_not_touched(tmp_path: Path) -> None:
    path = encode(tmp_path / "clip.mkv", "matroska", "h264", map(picture, range(3)))
    assert sample_frames(path, 3).frames.shape[1:3] == (HEIGHT, WIDTH)


def test_other_side_data_that_pyav_does_not_know() -> None:
    class Frame(SimpleNamespace):
        @property
        def side_data(self) -> object:
            raise ValueError("40 is not a valid Type")

    for degrees, wanted in ((-90, (0, 1, -1, 0)), (180, (-1, 0, 0, -1)), (0, (1, 0, 0, 1))):
        np.testing.assert_allclose(_display_matrix(cast("Any", Frame(rotation=degrees))), wanted, atol=1e-9)
