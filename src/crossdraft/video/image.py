"""An image of a request, a file, its bytes or pixels, read as a clip of one frame.

Files are read by Pillow, as `transformers.image_utils.load_image` reads them for the models' own processors. Pillow
gets no file name, and tries only the format that the first bytes show.
"""

import os
import re
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from crossdraft.errors import CrossdraftError
from crossdraft.messages import pillow, portable, rgb_pixels
from crossdraft.video.clip_frames import ClipFrames, given_pixels
from crossdraft.video.limits import DEFAULT_LIMITS, VideoLimits

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = {b"\x89PNG\r\n\x1a\n": "PNG", b"\xff\xd8\xff": "JPEG", b"RIFF": "WEBP", b"BM": "BMP"}  # by first bytes
HEAD = 12  # bytes that show a format
BYTES_PER_PIXEL = 4  # limit of a file's bytes per allowed pixel: 268 MB
# The head of a JPEG scan of one to four components. Each scan of 20 bytes goes over all pixels again; the usual
# progressive file has ten.
SCAN = re.compile(rb"\xff\xda\x00(?:\x08\x01|\x0a\x02|\x0c\x03|\x0e\x04)")
MOST_SCANS = 100  # scans of a JPEG as large as a frame may be; fewer for a larger one
DEEP = ("I", "F")  # Pillow's modes, or their first letters, for grey beyond 8 bits


def image_frames(image: Any, limits: VideoLimits = DEFAULT_LIMITS) -> ClipFrames:
    """Read an image as a clip of one frame; a note says which part of it is not shown.

    Args:
        image: path of a PNG, JPEG, WebP or BMP file; its bytes, or a `data:` URL with them; a PIL image; uint8
            pixels [H, W, 3]; a `DecodedClip`. Files and PIL images are rotated as their EXIF says, and transparency is
            dropped.
        limits: limits of pixels and, by them, of bytes.

    Raises:
        CrossdraftError: `image` is of another kind, missing, broken, beyond a limit, or Pillow is not installed.
    """
    import torch

    from crossdraft.video.clip import DecodedClip

    if isinstance(image, DecodedClip):
        return image.frames
    image = portable(image)
    if isinstance(image, str | os.PathLike | bytes):
        pixels, notes = read_pixels(image if isinstance(image, bytes) else os.fsdecode(image), limits)
        return ClipFrames(torch.from_numpy(pixels), np.zeros(1), notes)
    found = given_pixels(
        image, 3, "The request's image", "the path or the bytes of a file, a PIL image, or pixels (uint8 RGB [H, W, 3])"
    )
    limits.check_image("The request's image", found.shape[1], found.shape[0])
    return ClipFrames(found[None], np.zeros(1))


def read_pixels(source: str | bytes, limits: VideoLimits = DEFAULT_LIMITS) -> tuple[np.ndarray, tuple[str, ...]]:
    """Pixels uint8 RGB [1, H, W, 3] and notes of an image file, by its path or its bytes, without torch.

    Raises:
        CrossdraftError: as `image_frames`.
    """
    if isinstance(source, bytes):
        return _decoded(source, "The request's image", limits)
    _check_there(source)
    try:
        with Path(source).open("rb") as file:
            return _decoded(file.read(BYTES_PER_PIXEL * limits.image + 1), source, limits)
    except OSError as error:
        raise CrossdraftError(f"Cannot read {source}: {error.strerror}.") from None


def check_image_file(path: str) -> None:
    """Refuse a path without a file in a supported image format; Pillow is not needed.

    Raises:
        CrossdraftError: the file does not exist, cannot be read, or begins like no supported format.
    """
    _check_there(path)
    try:
        with Path(path).open("rb") as file:
            head = file.read(HEAD)
    except OSError as error:
        raise CrossdraftError(f"Cannot read {path}: {error.strerror}.") from None
    _check_format(head, path)


def _check_there(path: str) -> None:
    """Refuse a URL, and a path without a file."""
    if "://" in path:
        raise CrossdraftError(f"Images are not fetched from addresses; save {path[:60]} and give the file's path.")
    if not Path(path).is_file():
        raise CrossdraftError(f"There is no image file at {path}; check the path.")


def _check_format(head: bytes, name: str) -> str:
    """Format of a file by its first bytes; raises CrossdraftError if it is not supported."""
    kind = image_format(head)
    if kind is None:
        raise CrossdraftError(f"{name} is not an image we read; give a PNG, JPEG, WebP or BMP file, a GIF as a video.")
    return kind


def image_format(head: bytes) -> str | None:
    """Pillow's name for the format of a file that begins with `head`, `HEAD` bytes; `None` = not supported."""
    found = next((kind for first, kind in FORMATS.items() if head.startswith(first)), None)
    return None if found == "WEBP" and head[8:12] != b"WEBP" else found


def _decoded(data: bytes, name: str, limits: VideoLimits) -> tuple[np.ndarray, tuple[str, ...]]:
    kind = _check_format(data[:HEAD], name)
    if len(data) > BYTES_PER_PIXEL * limits.image:
        raise CrossdraftError(
            f"{name} has more than {BYTES_PER_PIXEL * limits.image:,} bytes, the limit of an image; save it again."
        )
    reader = pillow()
    opened, _ = reader.OPEN[kind]  # `Image.open` would warn of a size before the limit is checked
    try:
        with opened(BytesIO(data), "") as image:
            limits.check_image(name, image.width, image.height)
            if kind == "JPEG":
                _check_scans(data, name, image.width * image.height, limits)
            notes = tuple(_notes(image, name))
            return rgb_pixels(image, in_place=True)[None], notes
    except CrossdraftError:
        raise
    except (MemoryError, reader.DecompressionBombError):
        raise CrossdraftError(
            f"{name} needs more memory than there is, or is far above the limit of {limits.image:,} pixels; scale it "
            "down."
        ) from None
    except Exception:  # noqa: BLE001 - whatever Pillow raises on broken bytes
        raise CrossdraftError(
            f"{name} cannot be decoded as an image: it is cut off or broken; copy it again."
        ) from None


def _check_scans(data: bytes, name: str, pixels: int, limits: VideoLimits) -> None:
    """Refuse a JPEG whose scans cover more pixels than `MOST_SCANS` over a frame of a clip."""
    most = min(MOST_SCANS, MOST_SCANS * limits.pixels // max(pixels, 1))
    if len(SCAN.findall(data)) > most:
        raise CrossdraftError(f"{name} has more than {most} scans, the limit of a JPEG of its size; save it again.")


def _notes(image: "Image", name: str) -> list[str]:
    """Notes on parts of an opened file that are not shown."""
    found: list[str] = []
    if image.format != "MPO" and getattr(image, "is_animated", False):  # a JPEG's other pictures are no animation
        found.append(f"{name} is animated; only its first frame is shown. Give it as a video to show all.")
    if image.mode.startswith(DEEP):
        found.append(
            f"{name} is grey of more than 8 bits, whose values above 255 are shown as white, as the models' own "
            "processors do; save it with 8 bits."
        )
    return found
