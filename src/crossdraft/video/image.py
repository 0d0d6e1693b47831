"""An image as a request gives it, a file or pixels, as a clip of one frame."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from crossdraft.errors import CrossdraftError
from crossdraft.video.limits import DEFAULT_LIMITS, VideoLimits

if TYPE_CHECKING:
    from torch import Tensor

# First bytes -> FFmpeg's name for the format, and for its codec.
FORMATS = {
    b"\x89PNG\r\n\x1a\n": ("png_pipe", "png"),
    b"\xff\xd8\xff": ("jpeg_pipe", "mjpeg"),
    b"RIFF": ("webp_pipe", "webp"),
    b"BM": ("bmp_pipe", "bmp"),
}


def read_image(image: Any, limits: VideoLimits = DEFAULT_LIMITS) -> "Tensor":
    """uint8 RGB [1, H, W, 3] of a PNG, JPEG, WebP or BMP file, or of pixels [H, W, 3]; transparency is left out.

    Raises:
        CrossdraftError: neither, missing, broken, or beyond a limit.
    """
    import torch
    from torch import Tensor

    from crossdraft.video.clip import DecodedClip

    if isinstance(image, DecodedClip):
        return image.frames.frames
    if isinstance(image, str | os.PathLike):
        return torch.from_numpy(read_pixels(os.fsdecode(image), limits))
    try:
        pixels = image.cpu() if isinstance(image, Tensor) else torch.as_tensor(np.ascontiguousarray(image))
    except (TypeError, ValueError, RuntimeError):
        pixels = None
    if pixels is None or pixels.ndim != 3 or pixels.shape[-1] != 3 or pixels.dtype != torch.uint8:
        shape = "" if pixels is None else f" of shape {list(pixels.shape)} and {pixels.dtype}"
        raise CrossdraftError(
            f"The request's image is a {type(image).__name__}{shape}; give the path of a file, or pixels "
            "(uint8 [H, W, 3])."
        )
    limits.check("The request's image", width=pixels.shape[1], height=pixels.shape[0], frames=1, seconds=0)
    return pixels[None]


def read_pixels(name: str, limits: VideoLimits = DEFAULT_LIMITS) -> np.ndarray:
    """As `read_image` of a file, without torch."""
    if "://" in name or name.startswith("data:"):
        raise CrossdraftError(f"Images are not fetched from addresses; save {name[:60]} and give the file's path.")
    if not Path(name).is_file():
        raise CrossdraftError(f"There is no image file at {name}; check the path.")
    try:
        with Path(name).open("rb") as file:
            return _decoded(file, name, limits)
    except OSError as error:
        raise CrossdraftError(f"Cannot read {name}: {error.strerror}.") from None


def _decoded(file: BinaryIO, name: str, limits: VideoLimits) -> np.ndarray:
    from crossdraft.video.container import LIBRARY_ERRORS, av

    head = file.read(12)
    file.seek(0)
    known = next((known for first, known in FORMATS.items() if head.startswith(first)), None)
    if known is None or (head[:4] == b"RIFF" and head[8:] != b"WEBP"):
        raise CrossdraftError(f"{name} is not an image we read; give a PNG, JPEG, WebP or BMP file.")
    kind, codec = known
    options = {"codec_whitelist": codec, "max_pixels": str(limits.pixels)}
    try:
        with av.open(file, "r", format=kind, options=options, metadata_errors="replace") as container:
            stream = container.streams.video[0]
            context = stream.codec_context
            limits.check(name, width=context.width, height=context.height, frames=1, seconds=0)
            context.options = {"max_pixels": str(limits.pixels)}
            frame = next(iter(container.decode(stream)))
            return frame.to_ndarray(format="rgb24")[None]
    except CrossdraftError:
        raise
    except (*LIBRARY_ERRORS, StopIteration):
        raise CrossdraftError(
            f"{name} cannot be decoded as an image: it is cut off or broken; copy it again."
        ) from None
