"""Writing frames to an H.264 mp4."""

import os
from collections.abc import Iterable
from fractions import Fraction
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from crossdraft.errors import CrossdraftError
from crossdraft.files import DeferredErrorFile, atomic_path
from crossdraft.video.container import av

MAX_SIDE = 16384  # the H.264 level limits end near here
MIN_FPS, MAX_FPS = 0.001, 1000  # a frame in a quarter of an hour; one each tick of most players' clocks


def write_mp4(path: str | os.PathLike[str], frames: Iterable[ArrayLike], fps: float | Fraction, crf: int = 18) -> None:
    """Write uint8 RGB frames [H, W, 3] as an H.264 yuv420p mp4; the file appears whole or not at all.

    Equal frames give equal bytes, whatever the number of cores.

    Args:
        path: path of the file; a `.mp4` name.
        frames: any iterable, consumed once, all of one even size. Frame i is shown at i / fps seconds.
        fps: frames per second, 0.001 to 1000.
        crf: x264's constant rate factor: 0 loses least, 18 is visually lossless, 51 is worst.

    Raises:
        CrossdraftError: no frames, frames of odd, differing or extreme size, an invalid fps or crf, or a path that
            cannot be written to.
    """
    if not MIN_FPS <= fps <= MAX_FPS:
        raise CrossdraftError(f"fps is {fps}; give a rate of {MIN_FPS} to {MAX_FPS} frames per second.")
    if not 0 <= crf <= 51:
        raise CrossdraftError(f"crf is {crf}; x264 takes 0 (best) to 51 (worst).")
    rate = Fraction(fps).limit_denominator(100_000)
    _write(path, enumerate(frames), rate, 1 / rate, crf)


def write_timed_mp4(path: str | os.PathLike[str], frames: Iterable[tuple[int, ArrayLike]], crf: int = 18) -> None:
    """Write frames as `write_mp4` does, each with its own time in µs from the clip's beginning.

    Raises:
        CrossdraftError: as `write_mp4`, or times that do not rise.
    """
    _write(path, frames, Fraction(30), Fraction(1, 1_000_000), crf)


def _write(
    path: str | os.PathLike[str], frames: Iterable[tuple[int, ArrayLike]], rate: Fraction, tick: Fraction, crf: int
) -> None:
    """Write frames with their times in ticks of so many seconds."""
    if Path(path).suffix.lower() != ".mp4":
        raise CrossdraftError(f"Cannot write {path} as mp4; give it a name that ends in .mp4.")
    rest = iter(frames)
    first = next(rest, None)
    if first is None:
        raise CrossdraftError(f"There are no frames to write to {path}.")
    with atomic_path(path) as temporary:
        shape = _checked(first[1], 0, None).shape
        try:
            _encode(temporary, chain([first], rest), rate, tick, crf, shape)
        except (av.FFmpegError, OSError) as error:
            reason = error.strerror or error  # without the temporary name
            raise CrossdraftError(f"Cannot write {path}: {reason}; is the disk full?") from error


def _encode(
    path: Path, frames: Iterable[tuple[int, ArrayLike]], rate: Fraction, tick: Fraction, crf: int,
    shape: tuple[int, ...],
) -> None:  # fmt: skip
    # Equal frames must give equal bytes: x264's output depends on the number of its threads and, where AVX-512 carries
    # its macroblock tree (as at 224 pixels), on the memory's earlier content.
    settings = {"crf": str(crf), "threads": "1", "x264-params": "mbtree=0"}
    # PyAV gets an opened file, not a name, which it could take for a URL.
    # faststart puts the index first, so that a download that stops early still shows what has arrived.
    with (
        DeferredErrorFile(path) as file,
        av.open(file, mode="w", format="mp4", options={"movflags": "+faststart"}) as container,
    ):
        stream = container.add_stream("h264", rate=rate, options=settings)
        stream.height, stream.width = shape[:2]
        stream.pix_fmt = "yuv420p"
        stream.codec_context.time_base, last = tick, -1
        for index, (ticks, frame) in enumerate(frames):
            if ticks <= last:
                raise CrossdraftError(
                    f"Frame {index} is at {ticks} µs, after one at {last} µs; a clip's times must rise."
                )
            picture = av.VideoFrame.from_ndarray(_checked(frame, index, shape), format="rgb24")
            picture.pts = last = ticks
            picture.time_base = tick
            container.mux(stream.encode(picture))
            file.check()
        container.mux(stream.encode(None))


def _checked(frame: ArrayLike, index: int, shape: tuple[int, ...] | None) -> np.ndarray:
    """Convert a frame to a contiguous array; raise CrossdraftError if it cannot be written."""
    array = np.ascontiguousarray(frame)
    if array.dtype != np.uint8 or array.ndim != 3 or array.shape[2] != 3:
        raise CrossdraftError(f"Frame {index} is {array.dtype} {list(array.shape)}; a frame is uint8 [H, W, 3] in RGB.")
    height, width = array.shape[:2]
    if height % 2 or width % 2 or not (2 <= height <= MAX_SIDE and 2 <= width <= MAX_SIDE):
        raise CrossdraftError(
            f"Frame {index} is {width}x{height}; H.264 with 4:2:0 colour needs even sides from 2 to {MAX_SIDE}, "
            "so crop or pad it."
        )
    if shape is not None and array.shape != shape:
        raise CrossdraftError(f"Frame {index} is {width}x{height}, but frame 0 is {shape[1]}x{shape[0]}.")
    return array
