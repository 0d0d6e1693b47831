"""Animated WebP files as clips, decoded by Pillow: FFmpeg decodes still ones alone."""

from collections.abc import Iterator
from fractions import Fraction
from io import BytesIO
from itertools import pairwise
from typing import TYPE_CHECKING, BinaryIO

from crossdraft.messages import pillow, rgb_pixels

if TYPE_CHECKING:
    from av import VideoFrame

HEAD = 21  # bytes that tell an animation from a still image
USUAL_MS = 100  # shown instead of a frame's time of 0, as FFmpeg shows a GIF's
MOST_BYTES = 1 << 28  # of a file; Pillow holds it whole
MILLI = 1000


def is_animation(head: bytes) -> bool:
    """True if the first bytes of a file are an animated WebP's."""
    return head[:4] == b"RIFF" and head[8:16] == b"WEBPVP8X" and len(head) >= HEAD and bool(head[20] & 2)


def read_header(file: BinaryIO, most: int) -> tuple[int, int, list[int]]:
    """Width and height of an animated WebP, and the ms at which its frames begin, `most` at most, and the last ends."""
    width = height = 0
    begins, at = [0], 12
    for _ in range(4 * most):  # a frame is one chunk, with at most three others
        file.seek(at)
        head = file.read(24)
        number = [int.from_bytes(head[start : start + 3], "little") for start in range(24)]
        if len(head) < 8 or len(begins) > most + 1:
            break
        if head[:4] == b"VP8X":
            width, height = number[12] + 1, number[15] + 1
        elif head[:4] == b"ANMF":
            begins.append(begins[-1] + (number[20] or USUAL_MS))
        length = int.from_bytes(head[4:8], "little")
        at += 8 + length + length % 2
    return width, height, begins


def decoded(file: BinaryIO, begins: list[int]) -> Iterator["VideoFrame"]:
    """Yield the frames of an animated WebP, until one cannot be decoded."""
    from av import VideoFrame

    reader = pillow()
    opened, _ = reader.OPEN["WEBP"]
    try:
        with opened(BytesIO(file.read(MOST_BYTES)), "") as image:
            for number, (begin, _) in enumerate(pairwise(begins)):
                image.seek(number)
                frame = VideoFrame.from_ndarray(rgb_pixels(image), format="rgb24")
                frame.pts, frame.time_base = begin, Fraction(1, MILLI)
                yield frame
    except Exception:  # noqa: BLE001 - whatever Pillow raises on broken bytes; the frames so far are counted
        return
